"""Log files that grow."""

from pathlib import Path

from paceline.cli.follow import Tail, last_lines


def test_only_complete_new_lines_are_shown(tmp_path: Path) -> None:
    log, tail = tmp_path / "a.log", Tail()
    assert tail.read(log) == []
    with log.open("a") as file:
        file.write("one\ntwo\nthr")
        file.flush()
        assert tail.read(log) == ["one", "two"]
        file.write("ee\n")
        file.flush()
        assert tail.read(log) == ["three"]
    assert tail.read(log) == []


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert last_lines(log, 2) == []
    log.write_text("one\ntwo\nthree\n")
    assert last_lines(log, 2) == ["two", "three"]
