"""Settings from the environment."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.runtime.config import read


@dataclass(frozen=True)
class Settings:
    path: Path
    count: int = 1
    ratio: float = 0.5
    on: bool = False
    name: str = "x"
    mode: Literal["fast", "slow"] = "fast"
    level: Literal[1, 2] = 1
    limit: int | None = None
    kind: Literal["a", "b"] | None = None
    folder: Path = field(default_factory=lambda: Path("default"))


def test_every_type_is_read_from_its_variable() -> None:
    environ = {
        "PACELINE_PATH": "/a",
        "PACELINE_COUNT": "-3",
        "PACELINE_RATIO": "1e-3",
        "PACELINE_ON": "Yes",
        "PACELINE_NAME": "two words",
        "PACELINE_MODE": "slow",
        "PACELINE_LEVEL": "2",
        "PACELINE_LIMIT": "7",
        "PACELINE_KIND": "b",
        "PACELINE_FOLDER": "b",
        "PACELINE_OTHER": "ignored",
    }
    assert read(Settings, environ) == Settings(
        Path("/a"), -3, 0.001, True, "two words", "slow", 2, 7, "b", Path("b")
    )


def test_unset_and_empty_variables_give_the_default() -> None:
    assert read(Settings, {"PACELINE_PATH": "/a", "PACELINE_COUNT": "", "PACELINE_LIMIT": ""}) == Settings(
        Path("/a")
    )


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("TRUE", True), ("off", False), ("0", False), ("no", False)]
)
def test_booleans_are_words(text: str, value: bool) -> None:
    assert read(Settings, {"PACELINE_PATH": "/a", "PACELINE_ON": text}).on is value


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("COUNT", "1.5", "int"),
        ("RATIO", "nan", "float"),
        ("RATIO", "-inf", "float"),
        ("ON", "maybe", "bool"),
        ("MODE", "Fast", "fast or slow"),
        ("LEVEL", "3", "1 or 2"),
        ("LIMIT", "many", "int"),
        ("KIND", "c", "a or b"),
    ],
)
def test_a_wrong_value_names_its_variable_and_what_it_may_be(name: str, value: str, wanted: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read(Settings, {"PACELINE_PATH": "/a", f"PACELINE_{name}": value})
    assert raised.value.message == f"PACELINE_{name}={value!r} is not {wanted}"
    assert raised.value.param == f"PACELINE_{name}"


def test_a_variable_without_default_is_asked_for() -> None:
    with pytest.raises(InvalidRequest, match=r"^PACELINE_PATH is not set$"):
        read(Settings, {})
