"""Commands to a running pipeline, its answers, and the lasting effects of commands.

Commands and answers are records of ``<prefix>.commands``. Anybody with the right to write to the topic may have written
a record, so its content cannot be trusted. The effects of the commands that were read are part of the checkpoint,
together with the offset of the next command. So each command is applied exactly once.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

from pgsluice.avro.wire import read_json
from pgsluice.loads import from_fields
from pgsluice.printable import quoted

COMMAND_BYTES_MAX: Final = 64 * 1024
"""The largest size of a command's record."""

WHERE_MAX: Final = 4096
"""The maximum length of the condition of a load, in characters."""

TABLES_MAX: Final = 100
"""The maximum number of table patterns in a command."""

REQUESTS_BYTES_MAX: Final = 64 * 1024
"""The largest total size of the waiting requests in a checkpoint. This is enough for several hundred tables. The size
is limited because every checkpoint repeats all requests."""

ID_MAX: Final = 64
"""The maximum length of a command's id, in characters. An id that pgsluice creates has the 32 digits of a UUID."""

_VERSION: Final = 1

Verb = Literal["start", "cancel", "pause", "resume", "pause_pipeline", "resume_pipeline"]
"""What a command does. ``start`` and ``cancel`` act on the loads of some tables. ``pause`` and ``resume`` act on all
loads. ``pause_pipeline`` and ``resume_pipeline`` act on the whole pipeline."""

VERBS: Final[tuple[Verb, ...]] = get_args(Verb)

Outcome = Literal["refused", "done", "accepted", "waiting", "loaded", "ended"]
"""The outcome that an answer reports.

``refused``: nothing was done. ``done``: everything was done. ``accepted``: the tables will be loaded, and further
answers about each table follow. Their outcomes are ``waiting`` (the table cannot be read now), ``loaded``, and
``ended`` (the load ended before all rows were read).
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to a pipeline.

    ``expires_ms``: when the command expires, in milliseconds since 1970. ``tables``: patterns of schema and table, as
    in the settings. ``where``: an SQL condition for the rows to read.
    """

    id: str
    verb: str
    expires_ms: int
    tables: tuple[str, ...] = ()
    where: str = ""

    def to_json(self) -> bytes:
        """Return the value of the command's record."""
        return json.dumps({"version": _VERSION, "command": asdict(self)}).encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a command. ``tables``: the tables concerned, if any. ``rows``: how many rows were loaded."""

    id: str
    outcome: str
    detail: str = ""
    tables: tuple[str, ...] = ()
    rows: int = 0

    @property
    def key(self) -> bytes:
        """The key of the answer's record."""
        return self.id.encode()

    def to_json(self) -> bytes:
        """Return the value of the answer's record."""
        return json.dumps({"version": _VERSION, "answer": asdict(self)}).encode()


@dataclass(frozen=True, slots=True)
class Request:
    """A request to load a table.

    ``command``: the id of the command that requested it. ``where``: an SQL condition for the rows to read.
    """

    command: str
    schema: str
    table: str
    where: str = ""

    @property
    def name(self) -> tuple[str, str]:
        """The table's name, as schema and table."""
        return self.schema, self.table

    def answer(self, outcome: Outcome, detail: str = "", rows: int = 0) -> Answer:
        """Return an answer about the table."""
        return Answer(self.command, outcome, detail, (quoted(self.schema, self.table),), rows)


@dataclass(frozen=True, slots=True)
class CommandState:
    """The lasting effects of the commands that were read, as a part of the checkpoint.

    ``topic_id`` and ``offset``: the topic and the offset of the next command to read. ``topic_id`` is empty if the
    topic was never read. ``is_paused``: all loads are paused. ``is_pipeline_paused``: the whole pipeline is paused, so
    it delivers nothing.
    """

    topic_id: str = ""
    offset: int = 0
    is_paused: bool = False
    requests: tuple[Request, ...] = ()
    is_pipeline_paused: bool = False

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of the state in a checkpoint.

        ``is_pipeline_paused`` is left out while it is false, because earlier versions, which cannot pause, refuse
        fields that they do not know. So these versions continue from the checkpoint of a pipeline that is not paused.
        They refuse the checkpoint of a paused pipeline. This is intended, because they could not keep it paused.
        """
        found = asdict(self)
        if not self.is_pipeline_paused:
            del found["is_pipeline_paused"]
        return found

    def of(self, name: tuple[str, str]) -> Request | None:
        """Return the request to load a table, or None if there is none."""
        return next((one for one in self.requests if one.name == name), None)

    def without(self, name: tuple[str, str]) -> "CommandState":
        """Return the state without the request to load a table."""
        return replace(self, requests=tuple(one for one in self.requests if one.name != name))

    def requesting(self, requests: tuple[Request, ...]) -> "CommandState":
        """Return the state with these requests added. Raise ValueError if there are too many."""
        found = replace(self, requests=(*self.requests, *requests))
        if len(json.dumps([asdict(one) for one in found.requests])) > REQUESTS_BYTES_MAX:
            raise ValueError(f"too many tables are waiting to be loaded: {len(self.requests)} already")
        return found


def read_command_state(found: object) -> CommandState:
    """Return the state of commands in a checkpoint. Raise ValueError if ``found`` is not such a state."""
    if not isinstance(found, Mapping):
        raise ValueError("'commands' is not an object")  # noqa: TRY004 - wrong data, not a wrong argument
    requests = found.get("requests", [])
    if not isinstance(requests, list):
        raise ValueError("'requests' is not an array")  # noqa: TRY004 - wrong data
    state = from_fields(CommandState, {name: value for name, value in found.items() if name != "requests"})
    return replace(state, requests=tuple(from_fields(Request, one) for one in requests))


def read_command(value: bytes | None) -> Command | None:
    """Return the command in a record, or None if it is an answer. Raise ValueError with the reason if it is neither."""
    kind, found = _read(value)
    if kind == "answer":
        return None
    command = from_fields(Command, found)
    if command.verb not in VERBS:
        raise ValueError(f"its verb is not one of {', '.join(VERBS)}")
    if not 0 < len(command.id) <= ID_MAX or not command.id.isascii() or not command.id.isalnum():
        raise ValueError(f"its id does not consist of 1 to {ID_MAX} letters and digits")
    return command


def read_answer(value: bytes | None) -> Answer | None:
    """Return the answer in a record, or None if the record contains anything else."""
    try:
        kind, found = _read(value)
        if kind != "answer" or found.get("outcome") not in get_args(Outcome):
            return None
        return from_fields(Answer, found)
    except ValueError:
        return None


def _read(value: bytes | None) -> tuple[str, dict[str, Any]]:
    """Return whether a record is a "command" or an "answer", and its fields. Raise ValueError if it is neither."""
    if value is None:
        raise ValueError("it has no value")
    if len(value) > COMMAND_BYTES_MAX:
        raise ValueError(f"it is larger than {COMMAND_BYTES_MAX} bytes")
    found = read_json(value.decode())
    if not isinstance(found, dict) or found.pop("version", None) != _VERSION or len(found) != 1:
        raise ValueError(f"it is not a JSON object of version {_VERSION}")
    ((kind, content),) = found.items()
    if kind not in ("command", "answer") or not isinstance(content, dict):
        raise ValueError("it is neither a command nor an answer")
    return kind, content
