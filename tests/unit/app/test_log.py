import io
import json
import logging
import re
import warnings
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any

import pytest
import structlog

from pgsluice.app import log
from pgsluice.finding import Verdict
from tests.support.log import restored_logging  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("restored_logging")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    log.configure(stream=stream)
    return stream


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line_of_json(stream: io.StringIO) -> None:
    structlog.get_logger("pgsluice.pipeline").info("streaming", slot="shop", cut=5)
    (event,) = events(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event.pop("timestamp"))
    assert event == {"event": "streaming", "level": "info", "logger": "pgsluice.pipeline", "slot": "shop", "cut": 5}


def test_loggers_made_before_follow_the_last_configuration() -> None:
    early = structlog.get_logger()
    first, second = io.StringIO(), io.StringIO()
    log.configure("error", "json", first)
    early.warning("not heard")
    early.error("heard")
    log.configure("debug", "json", second)
    early.debug("later")
    assert [event["event"] for event in events(first)] == ["heard"]
    assert events(second)[0]["logger"] == "pgsluice"


def test_the_format_depends_on_whether_the_stream_is_a_terminal() -> None:
    log.configure(stream=io.StringIO())
    assert log.writes_json()
    log.configure(stream=Terminal())
    assert not log.writes_json()


def test_people_at_a_terminal_get_colours_and_no_json() -> None:
    terminal = Terminal()
    log.configure("info", "auto", terminal)
    structlog.get_logger().info("streaming", confirmed_lsn=0x16B374D848)
    assert "\x1b[" in terminal.getvalue()
    assert "16/B374D848" in terminal.getvalue()
    asked_for = Terminal()
    log.configure("info", "json", asked_for)
    structlog.get_logger().info("streaming")
    assert events(asked_for)[0]["event"] == "streaming"


def test_the_console_format_can_be_chosen_without_a_terminal() -> None:
    stream = io.StringIO()
    log.configure("info", "console", stream)
    structlog.get_logger().info("streaming", slot="shop")
    assert re.search(r"\[info +\] streaming +\[pgsluice\] slot=shop", stream.getvalue())


def test_the_log_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure()
    structlog.get_logger().info("streaming")
    assert json.loads(capsys.readouterr().err)["event"] == "streaming"


def test_libraries_log_into_the_same_stream(stream: io.StringIO) -> None:
    library = logging.getLogger("rdkafka")
    library.debug("not heard")
    library.warning("broker %s is down", 5, extra={"broker": "b"})
    library.log(35, "between two levels")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    broker, between, warning = events(stream)
    assert (broker["event"], broker["level"], broker["logger"]) == ("broker 5 is down", "warning", "rdkafka")
    assert broker["broker"] == "b"
    assert "_record" not in broker
    assert between["level"] == "warning"
    assert "DeprecationWarning: old" in warning["event"]


def test_lines_about_requests_are_logged_only_at_debug(stream: io.StringIO) -> None:
    logging.getLogger("httpx2").info("HTTP Request: GET http://registry")
    assert events(stream) == []
    debugged = io.StringIO()
    log.configure("debug", "json", debugged)
    logging.getLogger("httpx2").info("HTTP Request: GET http://registry")
    assert events(debugged)[0]["event"] == "HTTP Request: GET http://registry"


def test_a_wrong_log_call_of_a_library_does_no_harm(stream: io.StringIO) -> None:
    wrong = logging.LogRecord("rdkafka", logging.WARNING, "x.c", 1, "broker %d is down", ("x",), None)
    (handler,) = [one for one in logging.getLogger().handlers if type(one).__module__ == log.__name__]
    handler.handle(wrong)
    assert events(stream)[0]["event"] == "broker %d is down"


@pytest.mark.parametrize("style", ["json", "console"])
def test_tracebacks_do_not_show_what_variables_hold(style: str) -> None:
    stream = io.StringIO()
    log.configure("info", style, stream)
    row = b"hunter2"
    try:
        len(row) // 0
    except ZeroDivisionError:
        structlog.get_logger().exception("bug")
    assert "ZeroDivisionError" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize("style", ["json", "console"])
def test_tracebacks_do_not_show_the_secrets_of_urls(style: str) -> None:
    stream = io.StringIO()
    log.configure("info", style, stream)
    structlog.get_logger().error("bug", exc_info=ValueError("no answer from http://u:hunter2@db/x"))
    assert "http://***@db/x" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


EVIL = "a\x1b[2J\u202eb\x9b\ud800\n2026-01-01 [info] forged"


def log_evil(style: str) -> str:
    stream = io.StringIO()
    log.configure("info", style, stream)
    structlog.get_logger().info(EVIL, gid=EVIL, short="\x1bc", tables=[EVIL], by_name={EVIL: 1})
    structlog.get_logger().error("bug", exc_info=ValueError(EVIL))
    return stream.getvalue()


def test_foreign_text_is_logged_without_control_characters() -> None:
    first, bug, *traceback = log_evil("console").removesuffix("\n").split("\n")
    assert first.isprintable()
    assert first.count("forged") == 4
    assert r"short=\x1bc" in first
    assert all(line.isprintable() for line in (bug, *traceback))
    assert len(traceback) == 2
    assert traceback[-1] == "  2026-01-01 [info] forged"


def test_json_consists_of_ascii() -> None:
    lines = log_evil("json").splitlines()
    assert len(lines) == 2
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert json.loads(lines[0])["gid"] == EVIL


def test_positions_are_written_as_postgresql_does(stream: io.StringIO) -> None:
    structlog.get_logger().info(
        "progress", lsn=1, confirmed_lsn=0x16B374D848, end_lsn=None, wrong_lsn=-1, flag_lsn=True, lsns=5
    )
    (event,) = events(stream)
    assert (event["lsn"], event["confirmed_lsn"], event["end_lsn"]) == ("0/1", "16/B374D848", None)
    assert (event["wrong_lsn"], event["flag_lsn"], event["lsns"]) == (-1, True, 5)


def test_values_that_could_contain_a_row_are_not_printed(stream: io.StringIO) -> None:
    structlog.get_logger().info(
        "all kinds",
        payload=b"hunter2",
        error=ValueError("duplicate key\nDETAIL: Key (id)=(hunter2)"),
        nested={"a": [1, b"hunter2", ("x",)], 2: None},
        verdict=Verdict.FAIL,
        path=PurePosixPath("/spill"),
        age=timedelta(seconds=5),
        ratio=0.5,
    )
    assert "hunter2" not in stream.getvalue()
    (event,) = events(stream)
    assert event["payload"] == "<bytes>"
    assert event["error"] == "ValueError: duplicate key"
    assert event["nested"] == {"a": [1, "<bytes>", ["x"]], "2": None}
    assert (event["verdict"], event["path"], event["age"], event["ratio"]) == ("FAIL", "/spill", "0:00:05", 0.5)


def test_passwords_in_urls_are_not_printed(stream: io.StringIO) -> None:
    logging.getLogger("rdkafka").warning("no token from http://u:hunter2@login/token?key=hunter2")
    structlog.get_logger().info("error", error=ValueError("at http://u:hunter2@db"), urls=["http://u:hunter2@db"])
    assert "hunter2" not in stream.getvalue()
    assert events(stream)[0]["event"] == "no token from http://***@login/token?***"


def test_a_closed_log_pipe_does_not_stop_the_process() -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    stream.close()
    structlog.get_logger().info("streaming")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def passes(limiter: log.RepeatLimiter, method: str = "info", **event: object) -> dict[str, object] | None:
    try:
        return dict(limiter(None, method, {"event": "retrying", **event}))
    except structlog.DropEvent:
        return None


def test_repeats_are_dropped_and_counted() -> None:
    clock = Clock()
    limiter = log.RepeatLimiter(10.0, clock)
    assert passes(limiter, slot="a", tries=1) == {"event": "retrying", "slot": "a", "tries": 1}
    clock.now += 9.9
    assert passes(limiter, slot="a", tries=2) is None
    assert passes(limiter, slot="a", tries=3) is None
    clock.now += 0.1
    assert passes(limiter, slot="a", tries=4) == {"event": "retrying", "slot": "a", "tries": 4, "repeats_dropped": 2}
    clock.now += 10
    assert passes(limiter, slot="a", tries=5) == {"event": "retrying", "slot": "a", "tries": 5}


def test_lines_that_differ_in_level_or_text_are_not_repeats() -> None:
    limiter = log.RepeatLimiter(10.0, Clock())
    assert passes(limiter, slot="a")
    assert passes(limiter, slot="b")
    assert passes(limiter, "warning", slot="a")
    assert passes(limiter)
    assert passes(limiter, "debug")
    assert passes(limiter, "debug")


def test_memory_for_repeats_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "REPEATS_TRACKED_MAX", 2)
    limiter = log.RepeatLimiter(10.0, Clock())
    assert all(passes(limiter, slot=slot) for slot in "abc")
    assert passes(limiter, slot="c") is None
    assert passes(limiter, slot="a")


def test_the_log_itself_drops_repeats(stream: io.StringIO) -> None:
    for number in range(3):
        structlog.get_logger().info("retrying", number=number)
    assert len(events(stream)) == 1


@pytest.mark.usefixtures("stream")
def test_warnings_are_kept_for_the_status_page_without_secrets() -> None:
    logger = structlog.get_logger("pgsluice.x")
    logger.info("fine")
    logger.warning("cannot ask", reason="http://user:secret@registry/?key=1 fails", rows=object(), remedy="ask again")
    newest = log.WARNINGS.newest_first()[0]
    assert (newest.level, newest.remedy) == ("warning", "ask again")
    assert newest.text == "cannot ask (reason: http://***@registry/?*** fails; rows: <object>)"
    assert newest.timestamp


def test_only_the_last_warnings_are_kept() -> None:
    kept = log.RecentWarnings()
    for number in range(log.WARNINGS_KEPT_MAX + 5):
        kept(None, "error", {"event": f"{number}" + "x" * 10_000})
    found = kept.newest_first()
    assert len(found) == log.WARNINGS_KEPT_MAX
    assert found[0].text.startswith(f"{log.WARNINGS_KEPT_MAX + 4}x")
    assert len(found[0].text) == log.WARNING_MAX_CHARACTERS
