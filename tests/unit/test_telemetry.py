"""One JSON line an event, whoever logs it; writing never waits, and what is lost is counted."""

from __future__ import annotations

import io
import json
import logging
import threading
from pathlib import Path
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from gateway.config import LogSettings
from gateway.telemetry import bind, configure_logging, dropped_lines, get_logger, request_context
from gateway.telemetry.sink import LineSink


def closed() -> None:
    """Let the writer end; what it held is written."""
    for handler in logging.getLogger().handlers:
        handler.close()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Stuck(io.StringIO):
    """A stream that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.free = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.free.wait(30)
        return super().write(text)


def test_events_are_lines_of_json_with_their_context(tmp_path: Path):
    with (tmp_path / "log").open("w") as out:
        configure_logging(LogSettings(), "gateway", out)
        with request_context(session_id="s"):
            id_ = UUID(int=7)
            get_logger("one.module").info("served", turn=id_, text="é\n\ud800", path=tmp_path)
        get_logger("one.module").debug("quiet")
        logging.getLogger("uvicorn").warning("from %s", "afar")
        closed()
    first, second = lines(tmp_path / "log")
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "turn": str(id_),
        "text": "é\n\ud800",
        "path": str(tmp_path),
        "event": "served",
        "component": "gateway",
        "session_id": "s",
        "level": "info",
        "logger": "one.module",
    }
    assert (second["event"], second["logger"], second["level"], second["component"]) == (
        "from afar", "uvicorn", "warning", "gateway",
    )  # fmt: skip


@pytest.mark.parametrize("standard", [False, True])
def test_a_traceback_is_part_of_its_line(tmp_path: Path, standard: bool):
    with (tmp_path / "log").open("w") as out:
        configure_logging(LogSettings(), "judge", out)
        log = logging.getLogger("m") if standard else get_logger("m")
        try:
            {}["lost"]
        except KeyError:
            log.exception("failed")
        closed()
    [line] = lines(tmp_path / "log")
    assert (line["event"], line["level"]) == ("failed", "error")
    assert line["exception"].endswith("KeyError: 'lost'")


def test_own_events_follow_the_level_and_other_libraries_are_not_debugged(tmp_path: Path):
    with (tmp_path / "log").open("w") as out:
        configure_logging(LogSettings(level="debug"), "gateway", out)
        get_logger("m").debug("shown")
        logging.getLogger("m").debug("hidden")
        configure_logging(LogSettings(level="error"), "gateway", out)
        get_logger("m").warning("hidden")
        logging.getLogger("m").warning("hidden")
        get_logger("m").error("shown")
        closed()
    assert [line["event"] for line in lines(tmp_path / "log")] == ["shown", "shown"]


def test_a_logger_follows_whatever_is_configured_after_it(tmp_path: Path):
    log = get_logger("m")
    for number in range(2):
        with (tmp_path / f"log-{number}").open("w") as out:
            configure_logging(LogSettings(level=("info", "error")[number]), f"c{number}", out)
            log.info("told %s of %d", "one", 2)
            with capture_logs() as captured:
                log.error("captured", of=number)
            log.error("failed")
            closed()
        assert captured == [{"event": "captured", "of": number, "log_level": "error"}]
    told, failed = lines(tmp_path / "log-0")
    assert (told["event"], told["logger"], failed["event"]) == ("told one of 2", "m", "failed")
    [failed] = lines(tmp_path / "log-1")
    assert (failed["event"], failed["component"]) == ("failed", "c1")


def test_lines_of_a_request_say_so_and_their_own_values_win(tmp_path: Path):
    log = get_logger("m")
    with (tmp_path / "log").open("w") as out:
        configure_logging(LogSettings(), "gateway", out)
        with request_context(request_id="r", turn_id="bound"):
            bind(turn_id="later", tenant="t")
            log.info("served", turn_id="own")
            log.info("ended")
        log.info("outside")
        closed()
    served, ended, outside = lines(tmp_path / "log")
    assert list(served) == [
        "request_id", "turn_id", "tenant", "event", "component", "logger", "level", "timestamp",
    ]  # fmt: skip
    assert (served["turn_id"], ended["turn_id"], ended["tenant"]) == ("own", "later", "t")
    assert "request_id" not in outside


def test_a_terminal_gets_a_form_for_people():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    configure_logging(LogSettings(), "gateway", out)
    get_logger("m").info("listening", port=8000)
    closed()
    assert "listening" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_nobody_waits_for_a_stream_that_hangs_and_what_is_lost_is_counted():
    out = Stuck()
    sink = LineSink(out, lambda count: f"lost {count}\n".encode(), limit=3)
    sink.put(b"first\n")
    assert out.reached.wait(30)
    for number in range(5):
        sink.put(f"{number}\n".encode())
    assert sink.dropped == 2
    out.free.set()
    sink.close()
    assert out.getvalue() == "first\n0\n1\n2\nlost 2\n"
    assert sink.dropped == 2


def test_a_closed_stream_ends_nobody(tmp_path: Path):
    out = (tmp_path / "log").open("w")
    configure_logging(LogSettings(), "gateway", out)
    out.close()
    get_logger("m").info("unheard")
    closed()
    assert dropped_lines() == 1
    assert (tmp_path / "log").read_text() == ""
