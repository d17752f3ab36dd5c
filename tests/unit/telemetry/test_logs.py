"""One line format for everything that a process says."""

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from paceline.telemetry import logs, traces


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_own_lines_and_those_of_libraries_have_the_same_fields(
    capsys: pytest.CaptureFixture[str], spans: InMemorySpanExporter
) -> None:
    logs.configure("info", "json", worker="w1")
    with (
        structlog.contextvars.bound_contextvars(request_id="r1"),
        traces.tracer().start_as_current_span("s") as span,
    ):
        structlog.get_logger("own").info("page_reused", page=7)
        logging.getLogger("nats.aio").warning("lost %s", "it")
    context = span.get_span_context()
    own, library = lines(capsys)
    ids = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
    common = {"worker": "w1", "request_id": "r1", **ids}
    assert own.pop("timestamp") <= library.pop("timestamp")
    assert own == {"event": "page_reused", "page": 7, "logger": "own", "level": "info", **common}
    assert library == {"event": "lost it", "logger": "nats.aio", "level": "warning", **common}


def test_lines_of_other_threads_name_the_worker_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json", worker="w1")
    thread = threading.Thread(target=lambda: structlog.get_logger("engine").info("step"))
    thread.start()
    thread.join()
    (line,) = lines(capsys)
    assert (line["event"], line["worker"]) == ("step", "w1")


def test_lines_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "json")
    structlog.get_logger("own").info("quiet")
    logging.getLogger("nats").info("quiet")
    structlog.get_logger("own").warning("loud")
    assert [line["event"] for line in lines(capsys)] == ["loud"]


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_an_exception_shows_its_traceback_and_no_values_of_variables(
    capsys: pytest.CaptureFixture[str], fmt: logs.LogFormat
) -> None:
    logs.configure("info", fmt)
    prompt = "the user's " + "prompt"
    try:
        raise ValueError(len(prompt))
    except ValueError:
        structlog.get_logger("own").exception("failed")
        logging.getLogger("aiohttp").exception("failed too")
    text = capsys.readouterr().err
    assert text.count("ValueError: 17") == 2
    assert text.count("Traceback (most recent call last)") == 2
    assert prompt not in text


def test_values_that_are_no_json_are_written_as_python_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    structlog.get_logger("own").info("odd", key=b"\x00", many={1: {2}}, big=1 << 70, text="\ud800")
    (line,) = lines(capsys)
    assert (line["key"], line["many"], line["big"]) == ("b'\\x00'", {"1": "{2}"}, 1 << 70)


def test_a_terminal_gets_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "console", worker="w1")
    structlog.get_logger("own").info("page_reused", page=7)
    text = capsys.readouterr().err
    assert "page_reused" in text
    assert not text.startswith("{")
