"""Loads: tables whose rows are being read, how far that has come, and what the cut records say of it.

Loads in progress are part of the checkpoint. Tables that are finished are in ``<prefix>.snapshots``, one record each.
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
"""The ``seq`` of the first row or mark at a position: before every change that commits there."""

_VERSION: Final = 1

_NUMBER_MAX: Final = 2**62
"""The largest number that is read back. An Avro long has room for what is added to it, and no LSN comes near."""

State = Literal["begin", "rows", "end", "stale"]

ENDS: Final = ("end", "cancelled", "assumed", "stale")
"""What can have become of the rows of a table."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Load:
    """A table whose rows are being read.

    ``shape``: a digest of what decides which rows and columns are read, and in which order; if it changes, the load
    begins again. ``key``: the columns by which rows are told apart. ``last``: the key of the last row that is in the
    stream, as PostgreSQL's text; empty before the first. ``rows``: how many are. ``is_read``: all have been read once.
    ``moved``: the keys of rows that came under them by a change without all their values (:func:`moved_key`); they are
    read again before the end, because the rest may be what another row had that was not read.
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
        """Schema and table."""
        return self.schema, self.table

    def __str__(self) -> str:
        """Return the table's name as messages have it."""
        return quoted(self.schema, self.table)


@dataclass(frozen=True, slots=True)
class Place:
    """The last position at which rows were inserted, and how many rows and marks there are at it."""

    lsn: int = INVALID_LSN
    count: int = 0

    def at(self, lsn: int) -> "Place":
        """Return where the next ones go, whose position is ``lsn``."""
        return self if lsn == self.lsn else Place(lsn)

    def behind(self, count: int) -> "Place":
        """Return the place behind ``count`` more of them."""
        return Place(self.lsn, self.count + count)

    @property
    def seq(self) -> int:
        """The ``seq`` of the next row or mark."""
        return FIRST_SEQ + self.count


@dataclass(frozen=True, slots=True)
class Mark:
    """What a cut record says of one load; its fields are those of ``contract/cut.avsc``.

    ``rows``: how many are in the stream so far; at the ``end``, all. ``replaces``: at the ``end``, rows of the table
    that are older than the ``begin`` and did not come again are gone. ``stale``: DDL has changed rows since they were
    read, and the stream does not have what they are now; ``id`` is the load that has read them.
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
    """A table whose rows have been read: the value of its record in ``<prefix>.snapshots``.

    ``state``: they have been read to the ``end``, a command has ``cancelled`` that, they are ``assumed`` to be there,
    because an earlier version has delivered the table's changes, or they are ``stale``, because DDL has changed them
    since. It counts only if ``cut``, which the sink fills in, was committed. ``layout``: that of the table when the
    rows were read, or later, as long as DDL had not changed them; None if it is not known.
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
        """The record's key: one table, one record."""
        return table_key(self.schema, self.table)

    def to_json(self) -> bytes:
        """Return the record's value."""
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Return what ``data``, found ``where``, holds; HistoryError when it is no such record."""
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
    """Return a key as a load keeps it: each value after a letter for its format; None if it is not known in full."""
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
    """Return the records of the ``tables`` (oids by name) that count as loaded although they never were.

    They are those whose changes an earlier version has delivered, which loaded no table by default: its user has filled
    the targets in another way, or has started without the rows. A table that is being loaded does not count as loaded.
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
    """Return the loads that a checkpoint has; ValueError when they are none."""
    if not isinstance(found, list):
        raise ValueError("'loads' is not an array")  # noqa: TRY004 - wrong data, not a wrong argument
    return tuple(from_fields(Load, one) for one in found)


def read_place(found: object) -> Place:
    """Return the place that a checkpoint has; ValueError when it is none."""
    return from_fields(Place, found)


def from_fields(kind: type[T], found: object) -> T:
    """Return the ``kind`` with these fields; ValueError, saying why, when they are not those of one."""
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


def _value(name: str, value: Any, kind: object) -> Any:  # noqa: ANN401 - whatever JSON has, and the field
    if kind is int and type(value) is int and 0 <= value <= _NUMBER_MAX:
        return value
    if kind in (str, bool) and type(value) is kind:
        return value
    if kind == tuple[tuple[str, ...], ...] and isinstance(value, list):
        return tuple(_value(name, one, tuple[str, ...]) for one in value)
    if kind == tuple[str, ...] and isinstance(value, list) and all(type(one) is str for one in value):
        return tuple(value)
    raise ValueError(f"{name!r} has a value that it cannot have")
