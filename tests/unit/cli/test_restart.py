"""When the supervisor starts a child again."""

from paceline.cli.restart import STARTS, Restarts


def test_delay_doubles_up_to_ten_seconds() -> None:
    restarts = Restarts()
    delays = [restarts.after(1.0, was_ready=True) for _ in range(8)]
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert restarts.count == 8


def test_a_long_life_forgets_the_backoff() -> None:
    restarts = Restarts()
    for _ in range(5):
        restarts.after(1.0, was_ready=True)
    assert restarts.after(30.0, was_ready=True) == 0.2
    assert restarts.after(1.0, was_ready=True) == 0.4


def test_a_child_that_never_gets_ready_is_given_up() -> None:
    restarts = Restarts()
    delays = [restarts.after(2.0, was_ready=False) for _ in range(STARTS)]
    assert None not in delays[:-1]
    assert delays[-1] is None


def test_being_ready_once_forgives_failed_starts() -> None:
    restarts = Restarts()
    for _ in range(STARTS - 1):
        restarts.after(1.0, was_ready=False)
    restarts.after(1.0, was_ready=True)
    assert None not in [restarts.after(1.0, was_ready=False) for _ in range(STARTS - 1)]
    assert restarts.after(1.0, was_ready=False) is None
