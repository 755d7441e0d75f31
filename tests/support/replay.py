"""Applies change events to tables in memory, as a mirror does, and checks that the events conform to the contract.

The tables are compared with those of PostgreSQL. Problems are collected by table, so that each scenario reports only
its own problems. Problems of the cuts themselves are collected separately.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count, groupby, pairwise
from operator import attrgetter, itemgetter
from typing import Any

import psycopg
from psycopg import sql

from tests.support.marks import Loads, Position, position_of
from tests.support.pg_text import SESSION, canonical_floats, converter
from tests.support.reader import Cut, Event

UNKNOWN = "<unknown>"
"""Stands for a value that was never sent.

If a row filter has turned an update into an insert, the insert can lack values.
"""

ESCAPE = re.compile("_x([0-9A-F]{4,6})_")

FLOATS = {"float4": "::float8", "_float4": "::float8[]"}
"""The casts with which single-precision values are read. PostgreSQL's cast to double precision is exact."""

Row = dict[str, str | None]
"""The text of each value by column."""

Columns = list[tuple[str, str, Callable[[Any], str]]]
"""The fields of a schema: name, column, and converter to PostgreSQL's text."""


@dataclass
class Table:
    """The content of one table, as its events describe it. Rows without a key are stored under arbitrary numbers."""

    name: str
    key: tuple[str, ...] | None = None
    """The columns of the key of the last event."""
    rows: dict[Any, Row] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    moving: Row | None = None
    """The row whose key is being changed, between its delete and its insert."""
    places: dict[Any, Position] = field(default_factory=dict)
    """The position of the last event of each row, by the row's key."""
    is_partial: bool = False
    """Whether the table in PostgreSQL may have rows that have not been loaded yet."""

    def drop_before(self, position: Position) -> None:
        """Remove the rows whose last event is before ``position``."""
        for key in [key for key, place in self.places.items() if place < position]:
            del self.rows[key], self.places[key]

    def clear(self) -> None:
        """Remove all rows."""
        self.rows.clear()
        self.places.clear()


class Replay:
    """All tables of one pipeline."""

    def __init__(
        self,
        *,
        tombstones: Callable[[str], bool],
        partitions: Callable[[str], int],
        partial: Collection[str] = (),
        completes: Callable[[dict[str, Any]], bool] = itemgetter("replaces"),
        forgets: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Start with empty tables.

        ``tombstones`` returns whether a table (``schema.table``) has tombstones. ``partitions`` returns the number of a
        topic's partitions. ``partial`` has the tables that had rows before the first event. ``completes`` gets a mark,
        and returns whether the mark's load reads all rows of the table. ``forgets`` gets the id of a load that reads
        all rows, and returns whether the consumer discards its copy of the table when the load begins.
        """
        self.loads = Loads(self._complain_of_load)
        self._completes = completes
        self._forgets = forgets
        self.tables: dict[str, Table] = {name: Table(name, is_partial=True) for name in partial}
        self.events: dict[str, list[Event]] = defaultdict(list)
        """The events of each table, without tombstones, and with only one copy of each truncate."""
        self.problems: list[str] = []
        self.cuts: list[Cut] = []
        self._tombstones = tombstones
        self._partitions = partitions
        self._topics: set[str] = set()
        self._next: dict[tuple[str, int], int] = {}
        """The end offset of each partition in the last cut that listed it."""
        self._places: dict[tuple[str, int], Event] = {}
        """The last event of each partition."""
        self._partition_of_key: dict[tuple[str, bytes | None], int] = {}
        self._columns: dict[int, Columns] = {}
        self._numbers = count()

    def apply(self, cuts: Iterable[Cut], is_new: Callable[[Event], bool] = lambda _: True) -> None:
        """Apply the next cuts. Events that are not new are checked as parts of their cut, but not applied again."""
        for cut in cuts:
            self._check_place(cut)
            self._check_cut(cut)
            self._check_offsets(cut)
            self.cuts.append(cut)
            self._apply_all([event for event in cut.events if event.value is not None and is_new(event)], cut.record)
            self._check_tombstones(cut)

    def _apply_all(self, events: list[Event], record: dict[str, Any]) -> None:
        """Apply the changes, the loaded rows and the marks of a cut in the order of their positions."""
        for mark in record["snapshots"]:
            place = position_of(mark)
            self._apply_some([event for event in events if event.position < place])
            events = [event for event in events if event.position >= place]
            self._on_mark(mark)
        self._apply_some(events)

    def _apply_some(self, events: list[Event]) -> None:
        """Apply changes and loaded rows that have no mark between them."""
        for event in _distinct(event for event in events if event.op == "r"):
            self.loads.on_row((event["schema"], event["table"]))
        self.apply_changes(events)

    def _on_mark(self, mark: dict[str, Any]) -> None:
        table, load = self.table(f"{mark['schema']}.{mark['table']}"), self.loads.on_mark(mark)
        if load is None or not self._completes(mark):
            return
        if mark["state"] == "begin":
            forgets = self._forgets(load.id)
            if forgets:
                table.clear()
            # In the copy of a table without a key, loaded rows exist twice until the load ends.
            table.is_partial = table.is_partial or forgets or table.key is None
        elif mark["state"] == "end":
            if mark["replaces"]:
                table.drop_before(load.begin)
            table.is_partial = False

    def _complain_of_load(self, what: str) -> None:
        self.problems.append(what)

    def apply_changes(self, events: Iterable[Event]) -> None:
        """Apply events of whole transactions, without checking their cut. Ignore messages."""
        changes = (event for event in events if event.op != "m")
        for _, copies in groupby(sorted(changes, key=attrgetter("position")), attrgetter("position")):
            self._apply(list(copies))

    def table(self, name: str) -> Table:
        """Return a table by ``schema.table``. It is empty if there were no events."""
        return self.tables.setdefault(name, Table(name))

    # --- cuts

    def _check_cut(self, cut: Cut) -> None:
        """Compare the cut record with the records of the cut."""
        record = cut.record
        events = _distinct(event for event in cut.events if event.value is not None)
        changes = [event for event in events if event["seq"] >= 0]  # without non-transactional messages
        lsns = sorted({event["lsn"] for event in changes})
        expected = {
            "cut": self.cuts[-1].record["cut"] + 1 if self.cuts else record["cut"],
            "first_lsn": lsns[0] if lsns else None,
            "last_lsn": lsns[-1] if lsns else None,
            "transactions": len(lsns),
            "events": len(events),
            "ts": max(changes, key=attrgetter("position"))["ts"] if changes else None,
        }
        found = {name: record[name] for name in expected}
        if found != expected:
            self._complain(cut, f"says {found}, but its records have {expected}")
        if {event["epoch"] for event in events} - {record["epoch"]}:
            self._complain(cut, "has events of another epoch")
        self._check_topics(cut, events)

    def _check_offsets(self, cut: Cut) -> None:
        """Check that the cut lists the right partitions, and that each begins at or after its previous end offset."""
        offsets = cut.offsets
        expected = {(event.topic, event.partition) for event in cut.events}
        self._topics |= {topic for topic, _ in offsets}
        # In each session, the first cut that writes to a topic lists all partitions of the topic.
        whole = {topic for topic, _ in offsets if all((topic, p) in offsets for p in range(self._partitions(topic)))}
        expected |= {(topic, place) for topic, place in offsets if topic in whole}
        if cut.record["full"]:
            expected = {(topic, place) for topic in self._topics for place in range(self._partitions(topic))}
        if offsets.keys() != expected:
            self._complain(cut, f"lists {offsets}, not {expected}")
        for place, (first, following) in offsets.items():
            if not self._next.get(place, 0) <= first <= following:
                self._complain(cut, f"{place} goes from {first} to {following} after {self._next[place]}")
            self._next[place] = following
        if not (self.cuts or cut.record["full"]):
            self._complain(cut, "is the first cut, but not full")

    def _check_topics(self, cut: Cut, events: list[Event]) -> None:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        schemas: dict[str, dict[int | None, None]] = defaultdict(dict)
        for event in sorted(events, key=attrgetter("position")):
            counts[event.topic][event.op] += 1
            schemas[event.topic].pop(event.schema_id, None)  # the list has the schemas in the order of their last use
            schemas[event.topic][event.schema_id] = None
        for topic in cut.record["topics"]:
            name = topic["topic"]
            if topic["counts"] != counts.pop(name, {}) or topic["schema_ids"] != list(schemas[name]):
                self._complain(cut, f"counts of {name}: {topic['counts']}, schemas {topic['schema_ids']}")
        if counts:
            self._complain(cut, f"does not list {list(counts)}")

    def _check_place(self, cut: Cut) -> None:
        """Check the order of the cuts, and the order and the offsets of the events in each partition."""
        if self.cuts:
            self._check_order(cut.record, self.cuts[-1].record, cut)
        offsets = cut.offsets
        for event in cut.events:
            first, following = offsets[event.topic, event.partition]
            if not first <= event.offset < following:
                self._complain(cut, f"{event} lies outside of {first} to {following}")
            self._check_partition(cut, event)

    def _check_order(self, record: dict[str, Any], last: dict[str, Any], cut: Cut) -> None:
        """Check that epochs never decrease, and that LSNs grow within an epoch. Do not compare LSNs of two epochs."""
        if record["epoch"] < last["epoch"]:
            self._complain(cut, f"is of epoch {record['epoch']}, after epoch {last['epoch']}")
        if record["epoch"] != last["epoch"]:
            return
        if record["end_lsn"] < last["end_lsn"]:
            self._complain(cut, f"ends before cut {last['cut']}")
        if record["first_lsn"] is not None and record["first_lsn"] < last["end_lsn"]:
            self._complain(cut, f"begins inside cut {last['cut']}")

    def _check_partition(self, cut: Cut, event: Event) -> None:
        last = self._places.get((event.topic, event.partition))
        if event.value is not None:
            if last is not None and last.position >= event.position:
                self._complain(cut, f"{event} follows {last}")
            self._places[event.topic, event.partition] = event
            if event.op == "t":
                return
        expected = self._partition_of_key.setdefault((event.topic, event.key_bytes), event.partition)
        if event.partition != expected or (event.key is None and event.partition != 0):
            self._complain(cut, f"{event}: its key was in partition {expected} before")

    def _check_tombstones(self, cut: Cut) -> None:
        """Check that each delete of a table with a key and tombstones is followed by a tombstone.

        No other event may be followed by a tombstone.
        """
        by_place: dict[tuple[str, int], list[Event]] = defaultdict(list)
        for event in cut.events:
            by_place[event.topic, event.partition].append(event)
        for (topic, _), events in by_place.items():
            deletes = [event for event in events if event.value is not None and event.op == "d"]
            expected = [
                event.key_bytes
                for event in deletes
                if event.key is not None and self._tombstones(f"{event['schema']}.{event['table']}")
            ]
            found = [
                after.key_bytes
                for before, after in pairwise(events)
                if after.value is None
                and before.value is not None
                and (before.op, before.key_bytes) == ("d", after.key_bytes)
            ]
            if found != expected or len(found) != sum(event.value is None for event in events):
                self._complain(cut, f"tombstones of {topic}: {found} after deletes of {expected}")

    def _complain(self, cut: Cut, what: str) -> None:
        self.problems.append(f"cut {cut.record['cut']}: {what}")

    # --- events

    def _apply(self, copies: list[Event]) -> None:
        """Apply one change. For a truncate, ``copies`` has an event for each partition. Otherwise, it has one event."""
        event = copies[0]
        name = f"{event['schema']}.{event['table']}"
        table = self.table(name)
        self.events[name].append(event)
        expected = self._partitions(event.topic) if event["op"] == "t" else 1
        if len(copies) != expected or len({copy.partition for copy in copies}) != expected:
            table.problems.append(f"{len(copies)} copies instead of {expected}: {copies}")
        try:
            self._change(table, event)
        except AssertionError as error:
            table.problems.append(f"{error}: {event}")

    def _change(self, table: Table, event: Event) -> None:
        if event["op"] == "t":
            assert event.key is None, "a truncate has no key"
            table.clear()
            return
        columns = self._columns_of(event)
        key = None if event.key is None else self._key(event)
        self._follow_key(table, event)
        before = self._image(event, "before", columns)
        after = self._image(event, "after", columns)
        self._check_shape(event, before, after)
        if event["op"] == "d":
            self._delete(table, event, key, before)
        elif event["op"] == "r":
            table.rows.pop(key, None)  # the row may already exist, because a change of it came before the loaded row
            self._put(table, key, self._merged(after, None, event, columns), event)
        elif event["op"] == "u":
            old = self._take(table, key, before)
            self._check_before(event, old, before)
            self._put(table, key, self._merged(after, old, event, columns), event)
        else:
            former = self._arriving(table, event, key)
            self._check_before(event, former, before)
            self._put(table, key, self._merged(after, former, event, columns), event)

    def _check_shape(self, event: Event, before: Row | None, after: Row | None) -> None:
        """Check that a change has the images that its operation requires."""
        op, image, moves = event["op"], event["before_image"], "key_change" in event["flags"]
        assert op in ("c", "u", "d", "r"), f"op {op}"
        assert op != "r" or not (event["xid"] or event["unchanged"] or before), (
            "a loaded row has no xid, no unchanged values and no old row"
        )
        assert (after is None) == (op == "d"), "a delete has no new row, and every other change has one"
        assert (before is None) == (image == "none"), "before_image is none if, and only if, there is no old row"
        assert image in ("key", "full") or (op != "d" and not moves), "deletes and changes of a key have an old row"
        assert op != "c" or moves == (before is not None), "only an insert with key_change has an old row"
        assert not (image == "full" and event["unchanged"]), "a full old row includes the unchanged values"

    def _delete(self, table: Table, event: Event, key: Any, before: Row | None) -> None:  # noqa: ANN401 - any hashable value
        old = self._take(table, key, before)
        self._check_before(event, old, before)
        if "key_change" in event["flags"]:
            assert table.moving is None, "two rows are moving to a new key"
            table.moving = old

    def _arriving(self, table: Table, event: Event, key: Any) -> Row | None:  # noqa: ANN401 - any hashable value
        """Return the row that an insert moves to a new key. Return None if the insert adds a new row."""
        assert key is None or key not in table.rows, "a row with this key already exists"
        if "key_change" not in event["flags"]:
            return None
        assert table.moving is not None, "no row is moving to a new key"
        old, table.moving = table.moving, None
        return old

    def _take(self, table: Table, key: Any, before: Row | None) -> Row:  # noqa: ANN401 - any hashable value
        """Remove and return the row that the event changes. Return an empty row if the row has not been loaded yet."""
        if key is None:
            assert before is not None, "a row without key is found by its old values"
            key = next((key for key, row in table.rows.items() if _agree(row, before)), None)
        if table.is_partial and key not in table.rows:
            return {}
        assert key in table.rows, "no such row"
        del table.places[key]
        return table.rows.pop(key)

    def _put(self, table: Table, key: Any, row: Row, event: Event) -> None:  # noqa: ANN401 - any hashable value
        key = next(self._numbers) if key is None else key
        table.rows[key], table.places[key] = row, event.position

    def row(self, event: Event) -> Row | None:
        """Return the new row, with only the values that the event contains. Return None if the row is deleted."""
        return self._image(event, "after", self._columns_of(event))

    def _merged(self, after: Row | None, old: Row | None, event: Event, columns: Columns) -> Row:
        """Return ``after``, with each value that was not sent replaced by the value in the old row."""
        assert after is not None, "the event has a new row"
        names = {name: column for name, column, _ in columns}
        for name in event["unchanged"]:
            assert after[names[name]] is None, f"{name} is unchanged and has a value"
            after[names[name]] = UNKNOWN if old is None else old.get(names[name], UNKNOWN)
        return after

    def _check_before(self, event: Event, old: Row | None, before: Row | None) -> None:
        """Compare the old row in the event with ``old``, the row that the mirror had before the event."""
        if before is None:
            return
        assert old is not None, "the mirror has no row to compare with the old row"
        if event["before_image"] == "key" and event.key_schema is not None:
            names = {_column_of(entry) for entry in event.key_schema["fields"]}
            before = {name: value for name, value in before.items() if name in names}
        assert _agree(old, before), f"the old row differs from {old}"

    def _follow_key(self, table: Table, event: Event) -> None:
        """Store the rows under new keys if the columns of the table's key have changed."""
        schema = event.key_schema
        names = None if schema is None else tuple(_column_of(entry) for entry in schema["fields"])
        if names == table.key:
            return
        rows, places, table.rows, table.places = table.rows, table.places, {}, {}
        renamed = names is not None and table.key is not None and len(names) == len(table.key)
        for key, row in rows.items():
            if names is not None and all(name in row for name in names):
                now: Any = tuple(row[name] for name in names)
            else:
                now = key if renamed else next(self._numbers)
            table.rows[now], table.places[now] = row, places[key]
        table.key = names

    def _columns_of(self, event: Event) -> Columns:
        assert event.schema_id is not None, "not a tombstone"
        assert event.schema is not None, "not a tombstone"
        if event.schema_id not in self._columns:
            self._columns[event.schema_id] = _row_columns(event.schema)
        return self._columns[event.schema_id]

    def _image(self, event: Event, image: str, columns: Columns) -> Row | None:
        """Return a row of the event as PostgreSQL's texts. Values in ``raw`` are already texts."""
        values, raw = event[image], event["raw"]
        if values is None:
            return None
        row: Row = {}
        for name, column, to_text in columns:
            value = values[name]
            text = raw.get(name if image == "after" else f"before.{name}")
            assert text is None or value is None, f"{name} has a value and is raw"
            row[column] = text if value is None else to_text(value)
        return row

    def _key(self, event: Event) -> tuple[str, ...]:
        """Return the texts of the key, and check that they equal the texts in the row."""
        assert event.key is not None, "the event has a key"
        assert event.key_schema is not None, "a key has a schema"
        image, prefix = ("after", "") if event["after"] is not None else ("before", "before.")
        texts = []
        for entry in event.key_schema["fields"]:
            name, value = entry["name"], event.key[entry["name"]]
            text = event["raw"].get(prefix + name)
            if text is None:
                assert event[image][name] == value or name in event["unchanged"], f"key column {name} of the row"
                text = converter(entry["type"], "")(value)
            texts.append(text)
        return tuple(texts)


def contents(connection: psycopg.Connection, query: str) -> tuple[list[str], Counter[tuple[str | None, ...]]]:
    """Return the columns and rows of a query. Values are the texts of PostgreSQL's output functions."""
    with connection.transaction(force_rollback=True):
        connection.execute(SESSION)
        columns = _columns(connection, query)
        casts = [sql.SQL("{}" + FLOATS.get(kind, "")).format(sql.Identifier(name)) for name, kind in columns]
        select = sql.SQL("SELECT {} FROM ({}) AS t").format(sql.SQL(", ").join(casts), sql.SQL(query))
        result = connection.execute(select).pgresult
        assert result is not None, "a query has a result"
    are_floats = ["float" in kind for _, kind in columns]
    rows = ([result.get_value(number, place) for place in range(len(columns))] for number in range(result.ntuples))
    return [name for name, _ in columns], Counter(
        tuple(_text(value, is_float) for value, is_float in zip(row, are_floats, strict=True)) for row in rows
    )


def differences(table: Table, columns: list[str], rows: Counter[tuple[str | None, ...]]) -> list[str]:
    """Describe the differences between the mirror and PostgreSQL."""
    odd = [row for row in table.rows.values() if row.keys() != set(columns)]
    if odd:
        return [f"columns {list(odd[0])} instead of {columns}"]
    mirrored = Counter(tuple(row[name] for name in columns) for row in table.rows.values())
    return [f"PostgreSQL has, the mirror lacks: {row}" for row in rows - mirrored] + [
        f"the mirror has, PostgreSQL lacks: {row}" for row in mirrored - rows
    ]


def row_fields(envelope: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of the row according to an envelope's schema."""
    (row,) = (field["type"][1] for field in envelope["fields"] if field["name"] == "before")
    fields: list[dict[str, Any]] = row["fields"]
    return fields


def _columns(connection: psycopg.Connection, query: str) -> list[tuple[str, str]]:
    """Return the name and the type of each column."""
    description = connection.execute(sql.SQL("SELECT * FROM ({}) AS t LIMIT 0").format(sql.SQL(query))).description
    assert description is not None, "a query has columns"
    oids = [column.type_code for column in description]
    names = connection.execute("SELECT oid, typname FROM pg_catalog.pg_type WHERE oid = ANY (%s)", [oids]).fetchall()
    kinds: dict[int, str] = dict(names)
    return [(column.name, kinds[column.type_code]) for column in description]


def _text(value: bytes | None, is_float: bool) -> str | None:  # noqa: FBT001 - a property of the column
    if value is None:
        return None
    return canonical_floats(value.decode()) if is_float else value.decode()


def _agree(row: Row, image: Row) -> bool:
    """Return whether ``image`` can be an image of ``row``. Ignore columns that only one of them has."""
    return all(row.get(name, value) in (value, UNKNOWN) for name, value in image.items())


def _distinct(events: Iterable[Event]) -> list[Event]:
    """Return each event once, although a truncate has a copy in each partition."""
    return list({event.position: event for event in events}.values())


def _row_columns(envelope: dict[str, Any]) -> Columns:
    return [
        (entry["name"], _column_of(entry), converter(entry["type"][1], entry["pg.type"]))
        for entry in row_fields(envelope)
    ]


def _column_of(entry: Mapping[str, Any]) -> str:
    """Return the name of a field's column. Take it from the field's property, or else decode the field's name."""
    return entry.get("pg.name") or ESCAPE.sub(lambda match: chr(int(match[1], 16)), entry["name"])
