"""Loads: tables whose rows are being read, the progress of each, and the marks of loads in the cut records.

Loads in progress are part of the checkpoint. Each table whose load has ended has a record in ``<prefix>.snapshots``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Final, Literal, Self, TypeVar

from pgsluice.avro.wire import read_json
from pgsluice.errors import HistoryError
from pgsluice.layout import Layout, read_layout
from pgsluice.lsn import INVALID_LSN
from pgsluice.pgoutput.messages import BinaryValue, ColumnValue
from pgsluice.printable import quoted

FIRST_SEQ: Final = -(2**62)
"""The ``seq`` of the first row or mark at a position. The ``seq`` of every change that commits at this position is
higher."""

_VERSION: Final = 1

_NUMBER_MAX: Final = 2**62
"""The largest number that is accepted. No LSN comes near it, and sums with it still fit into an Avro long."""

State = Literal["begin", "rows", "end", "stale"]

ENDS: Final = ("end", "cancelled", "assumed", "stale")
"""The states in which a load can have ended."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Load:
    """A table whose rows are being read.

    ``shape``: a digest of everything that decides which rows and columns are read, and in which order. If it changes,
    the load begins again. ``key``: the columns that identify a row. ``last``: the key of the last row that is in the
    stream, as PostgreSQL's text; empty before the first row. ``rows``: how many rows are in the stream so far.
    ``is_read``: all rows have been read once.

    ``moved``: keys of rows that must be read again before the load ends (:func:`moved_key`). An UPDATE has changed the
    key of such a row but not its large values, so PostgreSQL did not send these values. If the load has not read the
    row under its former key, consumers have never received these values.
    """

    id: str
    schema: str
    table: str
    oid: int
    shape: str
    key: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    rows: int = 0
    is_read: bool = False
    moved: tuple[tuple[str, ...], ...] = ()

    @property
    def name(self) -> tuple[str, str]:
        """The table's name, as schema and table."""
        return self.schema, self.table

    def __str__(self) -> str:
        """Return the table's name in the form for messages."""
        return quoted(self.schema, self.table)


@dataclass(frozen=True, slots=True)
class LoadPosition:
    """The last LSN at which loads inserted rows into the stream, and the number of their rows and marks at this LSN."""

    lsn: int = INVALID_LSN
    count: int = 0

    def at(self, lsn: int) -> "LoadPosition":
        """Return the position for rows and marks at ``lsn``, after all rows and marks that are already at this LSN."""
        return self if lsn == self.lsn else LoadPosition(lsn)

    def after(self, count: int) -> "LoadPosition":
        """Return the position after ``count`` further rows and marks."""
        return LoadPosition(self.lsn, self.count + count)

    @property
    def seq(self) -> int:
        """The ``seq`` of the next row or mark."""
        return FIRST_SEQ + self.count


@dataclass(frozen=True, slots=True)
class LoadMark:
    """The entry of a cut record about one load, with the fields of ``contract/cut.avsc``.

    ``state`` is ``stale`` if the table has values that the stream does not have, because DDL has changed rows that were
    read, or because the table is not published any more. In this case, ``id`` is the id of the load that read the
    table. ``rows``: how many rows are in the stream so far.
    ``replaces``: whether consumers may delete, at the mark ``end``, the rows whose last event is older than the mark
    ``begin``, because the table does not have these rows any more.
    """

    topic: str
    schema: str
    table: str
    id: str
    state: State
    epoch: int
    lsn: int
    seq: int
    rows: int
    replaces: bool


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table whose load has ended: the value of its record in ``<prefix>.snapshots``.

    ``state``: ``end`` if all rows have been read, ``cancelled`` if a command has cancelled the load, ``assumed`` if the
    table counts as loaded because an earlier version of pgsluice has delivered its changes, and ``stale`` as in
    :class:`LoadMark`. The record is valid only if ``cut``, which the sink fills in, was committed.
    ``layout``: the layout of the table when the rows were read, or a later layout if DDL has not changed the rows since
    then. It is None if the layout is not known.
    """

    id: str
    schema: str
    table: str
    oid: int
    rows: int
    epoch: int
    cut: int = 0
    state: str = "end"
    layout: Layout | None = None

    @property
    def key(self) -> bytes:
        """The record's key. Each table has one record."""
        return table_key(self.schema, self.table)

    def to_json(self) -> bytes:
        """Return the record's value."""
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Return the table in ``data``. Raise HistoryError if ``data`` is not the value of a table's record.

        ``where``: what the error message calls the record.
        """
        try:
            found = read_json(data.decode())
            if not isinstance(found, dict) or found.pop("version", None) != _VERSION or found.get("state") not in ENDS:
                states = " or ".join(map(repr, ENDS))
                raise ValueError(f"it is not a JSON object of version {_VERSION} and state {states}")  # noqa: TRY301
            layout = found.pop("layout", None)
            return replace(from_fields(cls, found), layout=None if layout is None else read_layout(layout))
        except ValueError as error:
            raise HistoryError(
                f"{where} is not one that this version of pgsluice can read: {error}. Was it written by a newer "
                "version, or by another program? Run the version that wrote it, or choose another kafka.topic_prefix."
            ) from None


def moved_key(values: Sequence[ColumnValue]) -> tuple[str, ...] | None:
    """Return a key in the form of ``Load.moved``, or None if some of its values are not known.

    Each value begins with a letter for its format: ``b`` for binary, in hex, and ``t`` for text.
    """
    found = []
    for value in values:
        if isinstance(value, BinaryValue):
            found.append(f"b{value.hex()}")
        elif isinstance(value, bytes):
            found.append(f"t{value.decode()}")
        else:
            return None
    return tuple(found)


def assumed(
    tables: Mapping[tuple[str, str], int], loads: Iterable[Load], loaded: Mapping[tuple[str, str], Loaded], epoch: int
) -> list[Loaded]:
    """Return a record for each of ``tables`` (OIDs by name) that counts as loaded although it was never loaded.

    An earlier version of pgsluice, which loaded no table by default, has delivered the changes of these tables. So the
    user has copied the older rows in another way, or does not need them. Tables that are being loaded are left out.
    """
    loading = {one.oid for one in loads}
    found = []
    for name, oid in tables.items():
        former = loaded.get(name)
        if oid not in loading and (former is None or former.oid != oid):
            found.append(Loaded("", *name, oid, 0, epoch, state="assumed"))
    return found


def table_key(schema: str, table: str) -> bytes:
    """Return the key of a table's record in ``<prefix>.snapshots``."""
    return quoted(schema, table).encode()


def read_loads(found: object) -> tuple[Load, ...]:
    """Return the loads of a checkpoint. Raise ValueError if ``found`` is not a list of loads."""
    if not isinstance(found, list):
        raise ValueError("'loads' is not an array")  # noqa: TRY004 - wrong data, not a wrong argument
    return tuple(from_fields(Load, one) for one in found)


def read_load_position(found: object) -> LoadPosition:
    """Return the load position of a checkpoint. Raise ValueError if ``found`` is not a load position."""
    return from_fields(LoadPosition, found)


def from_fields(kind: type[T], found: object) -> T:
    """Return an object of ``kind`` with the fields in ``found``. Raise ValueError with the reason if one is invalid."""
    if not isinstance(found, Mapping):
        raise ValueError(f"a {kind.__name__} is not an object")  # noqa: TRY004 - wrong data, not a wrong argument
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    if not found.keys() <= known.keys():
        raise ValueError(f"a {kind.__name__} has fields that are not known")
    values: dict[str, Any] = {}
    for name, one in known.items():
        if name in found:
            values[name] = _value(name, found[name], one.type)
        elif one.default is MISSING:
            raise ValueError(f"{name!r} of a {kind.__name__} is missing")
    return kind(**values)


def _value(name: str, value: Any, kind: object) -> Any:  # noqa: ANN401 - any value of JSON, and any value of a field
    if kind is int and type(value) is int and 0 <= value <= _NUMBER_MAX:
        return value
    if kind in (str, bool) and type(value) is kind:
        return value
    if kind == tuple[tuple[str, ...], ...] and isinstance(value, list):
        return tuple(_value(name, one, tuple[str, ...]) for one in value)
    if kind == tuple[str, ...] and isinstance(value, list) and all(type(one) is str for one in value):
        return tuple(value)
    raise ValueError(f"{name!r} has an invalid value")
