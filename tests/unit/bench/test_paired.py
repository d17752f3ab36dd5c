import numpy as np
import pytest

from bench.paired import Interval, difference_of_means, difference_of_shares, student

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("degrees", "quantile"), [(3, 3.18245), (5, 2.57058), (30, 2.04227), (100, 1.98397)])
def test_student_is_what_tables_say(degrees: int, quantile: float) -> None:
    assert student(degrees) == pytest.approx(quantile, rel=0.003)


def test_means_of_pairs_by_hand() -> None:
    reference = np.array([10.0, 20.0, 30.0, 40.0])
    found = difference_of_means(reference + np.array([1.0, 2.0, 3.0, 4.0]), reference)
    # s = sqrt(5 / 3), and 3.18245 s / 2 = 2.05426
    assert found.mean == 2.5
    assert (found.low, found.high) == pytest.approx((0.44574, 4.55426), abs=0.005)


def test_what_items_have_in_common_has_no_part_in_the_interval() -> None:
    hard = RNG.normal(0, 100, 20)
    assert difference_of_means(hard + 1, hard).high == pytest.approx(1)


def test_few_items_have_no_interval() -> None:
    with pytest.raises(ValueError, match="3 items are too few"):
        difference_of_means(np.ones(3), np.zeros(3))


def test_relative_differences_from_logarithms() -> None:
    found = Interval(np.log(1.1), np.log(0.9), np.log(1.3)).expm1()
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, -0.1, 0.3))


def test_shares_of_pairs_by_hand() -> None:
    reference = np.arange(100) < 40
    found = reference.copy()
    found[[0, 1]] = False  # two lost
    found[90:98] = True  # eight gained
    interval = difference_of_shares(found, reference)
    # D = 6 / 102, and z sqrt((11 / 102 - D^2) / 102) = 0.062699
    assert interval.mean == 0.06
    assert (interval.low, interval.high) == pytest.approx((-0.003876, 0.121523), abs=1e-6)


def test_shares_without_a_change_still_have_a_width() -> None:
    same = np.ones(50, dtype=np.bool_)
    interval = difference_of_shares(same, same)
    assert interval.mean == 0
    assert interval.high == -interval.low > 0.02


def test_intervals_hold_the_truth_19_times_in_20() -> None:
    means = shares = 0
    for _ in range(1000):
        d = difference_of_means(RNG.normal(1, 3, 6), np.zeros(6))
        means += d.low <= 1 <= d.high
        reference, turned = RNG.random((2, 60)) < [[0.5], [0.1]]
        # As many right answers turn wrong as wrong ones turn right.
        e = difference_of_shares(reference ^ turned, reference)
        shares += e.low <= 0 <= e.high
    assert 930 <= means <= 970
    assert 930 <= shares <= 985
