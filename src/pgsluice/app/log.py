"""The log: structured events on standard error. By default, they are text on a terminal, and JSON elsewhere.

The commands configure the log. All other modules call ``structlog.get_logger``. Libraries use the standard library's
``logging``, whose events go to the same stream. :func:`only_plain_values` keeps row data out of the log.

https://www.structlog.org/en/stable/processors.html
"""

import logging
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import StringIO
from pathlib import PurePath
from threading import Lock
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from pgsluice.lsn import MAX_LSN, format_lsn
from pgsluice.printable import printable, without_url_secrets

REPEAT_INTERVAL_S = 10.0
"""The shortest time between two log lines of the same event. Events of level debug are not limited."""

REPEATS_TRACKED_MAX = 1000
"""The maximum number of different events that the limiter remembers. It forgets the oldest event first. A forgotten
event may be logged again before the interval has passed."""

WARNINGS_KEPT_MAX = 50
WARNING_MAX_CHARACTERS = 2000
"""How many warnings are kept in memory for the status page, and how many characters of each warning."""

_CHATTY = ("httpx", "httpx2")
"""Libraries that log a line at level info for every request."""

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str = "info", style: str = "auto", stream: TextIO | None = None) -> None:
    """Send every event of ``level`` and above to ``stream``, or to standard error if ``stream`` is None.

    This function may be called again, and the last call takes effect. ``style`` is ``json``, ``console``, or ``auto``,
    which means ``console`` on a terminal and ``json`` elsewhere.
    """
    out = stream or sys.stderr
    console = style == "console" or (style == "auto" and out.isatty())
    structlog.configure(
        processors=_processors(console=console, colors=out.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *names: _LineWriter(out, *names),
        cache_logger_on_first_use=False,  # loggers created before this call must also obey it
    )
    root = logging.getLogger()
    root.handlers[:] = [_ToStructlog()]
    root.setLevel(_LEVELS[level])
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    logging.captureWarnings(capture=True)


def writes_json() -> bool:
    """Return whether the configured log consists of JSON objects, one per line."""
    return isinstance(structlog.get_config()["processors"][-1], structlog.processors.JSONRenderer)


def _processors(*, console: bool, colors: bool) -> list[Processor]:
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _without_record,
        RepeatLimiter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lsns_as_text,
        only_plain_values,
        WARNINGS,
    ]
    if console:
        renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_write_traceback)
        return [*common, only_printable_text, renderer]
    return [*common, structlog.processors.ExceptionRenderer(_traceback), structlog.processors.JSONRenderer()]


def _traceback(exc_info: ExcInfo) -> str:
    """Return a traceback as text."""
    # structlog's default for a console prints local variables, which may contain rows.
    plain = StringIO()
    structlog.dev.plain_traceback(plain, exc_info)
    return without_url_secrets(plain.getvalue().strip("\n"))


def _write_traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    """Write an indented traceback, so that no line of an error's message looks like a line of the log."""
    stream.writelines(f"\n  {printable(line)}" for line in _traceback(exc_info).split("\n"))


class _LineWriter:
    """Writes the lines that structlog has rendered."""

    _lock = Lock()  # lines of several threads must not mix

    def __init__(self, stream: TextIO, name: str = "pgsluice") -> None:
        self.name = name
        self._stream = stream

    def msg(self, line: str) -> None:
        try:
            with self._lock:
                self._stream.write(line + "\n")
                self._stream.flush()
        except (OSError, ValueError):
            pass  # standard error is closed, but changes still have to be delivered

    debug = info = warning = error = critical = msg


class _ToStructlog(logging.Handler):
    """Sends the log records of libraries, which use ``logging``, to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - wrong arguments of a library's log call must not end a session
            message = str(record.msg)
        structlog.get_logger(record.name).log(level, message, exc_info=record.exc_info, _record=record)


def _without_record(_logger: object, _method: str, event: EventDict) -> EventDict:
    event.pop("_record", None)
    return event


@dataclass(slots=True)
class _Seen:
    at: float
    dropped: int = 0


class RepeatLimiter:
    """Lets each event through once per ``interval_s``, and drops its repeats.

    When the event is let through again, it has the number of the repeats that were dropped. Two events are the same if
    they have the same level and text, and the same texts in their fields. Counts, positions and times may differ.
    """

    def __init__(self, interval_s: float = REPEAT_INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._seen: OrderedDict[tuple[object, ...], _Seen] = OrderedDict()
        self._lock = Lock()

    def __call__(self, _logger: object, method: str, event: EventDict) -> EventDict:
        """Return ``event``, or raise DropEvent."""
        if method == "debug":
            return event
        texts = sorted((name, value) for name, value in event.items() if isinstance(value, str))
        with self._lock:
            dropped = self._pass((method, *texts))
        if dropped:
            event["repeats_dropped"] = dropped
        return event

    def _pass(self, identity: tuple[object, ...]) -> int:
        now = self._clock()
        seen = self._seen.get(identity)
        if seen is not None and now - seen.at < self._interval_s:
            seen.dropped += 1
            raise structlog.DropEvent
        self._seen[identity] = _Seen(now)
        self._seen.move_to_end(identity)
        if len(self._seen) > REPEATS_TRACKED_MAX:
            self._seen.popitem(last=False)
        return seen.dropped if seen is not None else 0


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning or an error. ``remedy`` is empty if the text itself says what to do."""

    timestamp: str
    level: str
    text: str
    remedy: str


class RecentWarnings:
    """Keeps the last warnings and errors of this process as they were logged, without secrets and rows."""

    _OWN: Final = frozenset({"event", "level", "logger", "timestamp", "remedy", "exc_info"})

    def __init__(self) -> None:
        self._kept: deque[Warned] = deque(maxlen=WARNINGS_KEPT_MAX)

    def __call__(self, _logger: object, method: str, event: EventDict) -> EventDict:
        """Keep ``event`` if it is a warning or an error. Return it unchanged in any case."""
        if method in {"warning", "error", "critical"}:
            more = "; ".join(f"{name}: {value}" for name, value in event.items() if name not in self._OWN)
            text = f"{event.get('event', '')}{more and f' ({more})'}"[:WARNING_MAX_CHARACTERS]
            remedy = str(event.get("remedy", ""))[:WARNING_MAX_CHARACTERS]
            self._kept.append(Warned(str(event.get("timestamp", "")), method, text, remedy))
        return event

    def newest_first(self) -> list[Warned]:
        """Return the warnings, the newest first."""
        return list(reversed(self._kept))


WARNINGS: Final = RecentWarnings()
"""The warnings of this process. There is only one instance, because the log has only one configuration."""


def lsns_as_text(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Write positions (``lsn`` and ``*_lsn``) in PostgreSQL's notation."""
    for name, value in event.items():
        if (name == "lsn" or name.endswith("_lsn")) and type(value) is int and 0 <= value <= MAX_LSN:
            event[name] = format_lsn(value)
    return event


def only_printable_text(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape texts that could control a terminal or look like another line.

    Texts in lists and dicts are escaped when they are printed.
    """
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


def only_plain_values(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Replace every value that could contain a row (bytes, messages, objects) by its type.

    Keep only the first line of an error. In texts, remove users, passwords and queries from URLs.
    """
    return {name: value if name == "exc_info" else _plain(value) for name, value in event.items()}


def _plain(value: object) -> object:
    match value:
        case int() | float() | None:
            return value
        case str() | datetime() | timedelta() | PurePath():
            return without_url_secrets(str(value))
        case BaseException():
            # The lines after the first may quote a row (DETAIL: Key (id)=(5) ...).
            return without_url_secrets(f"{type(value).__name__}: {str(value).partition(chr(10))[0]}")
        case Mapping():
            return {str(name): _plain(entry) for name, entry in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(entry) for entry in value]
        case _:
            return f"<{type(value).__name__}>"
