"""Tests that compare pgsluice_spark.latest with a model of the table, without Kafka."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgsluice_spark import fold, latest
from tests.spark.events import Json, change
from tests.support.versions import long

ROW = "struct<id: bigint, note: string, photo: string, amount: decimal(10,2), later: string>"
CHANGES = (
    f"op string, schema string, table string, before {ROW}, after {ROW}, unchanged array<string>,"
    "raw map<string,string>, epoch int, lsn bigint, seq bigint, ts timestamp, flags array<string>,"
    "fields array<string>, key struct<id: bigint>, topic string, partition int, offset bigint"
)
MARKS = (
    "topic string, schema string, table string, id string, state string, epoch int, lsn bigint, seq bigint,"
    "rows bigint, replaces boolean"
)
COLUMNS = ("id", "note", "photo", "amount", "later")
TOASTED = ("note", "photo", "later")

UNKNOWN, ABSENT = object(), object()


def record(event: Json, key: int | None, fields: Iterable[str] = COLUMNS) -> Json:
    """Return an event as ``read_changes`` returns it."""
    position = {"topic": "t", "partition": 0, "offset": event["lsn"]}
    return event | {"fields": list(fields), "key": None if key is None else {"id": key}} | position


def changes(spark: SparkSession, records: list[Json]) -> DataFrame:
    return spark.createDataFrame(records, CHANGES)


def mark(state: str, lsn: int, seq: int, rows: int = 0, **fields: Any) -> Json:  # noqa: ANN401 - any field of a mark
    """Return a mark with defaults for everything that a test does not specify."""
    found = {"topic": "t", "schema": "public", "table": "orders", "id": "one", "epoch": 1, "replaces": True}
    return found | {"state": state, "lsn": lsn, "seq": seq, "rows": rows} | fields


@dataclass
class Table:
    """A table, the changes that random statements make to it, and the rows that follow from these changes.

    ``rows`` has the rows that a reader of the changes must have. Some of these rows were deleted from the table without
    a change in the stream. ``gone`` has their keys.
    """

    random: random.Random
    name: str = "orders"
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    positions: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    records: list[Json] = field(default_factory=list)
    marks: list[Json] = field(default_factory=list)
    epoch: int = 1
    lsn: int = 100
    seq: int = 0
    columns: tuple[str, ...] = COLUMNS[:-1]

    def run(self, statements: int) -> None:
        for _ in range(statements):
            self.statement()

    def statement(self) -> None:
        if self.random.random() < 0.6:
            self.lsn, self.seq = self.lsn + 2 * self.random.randrange(1, 5), 0  # the second table uses the odd LSNs
        used = sorted(self.rows.keys() - self.gone)
        free = sorted(set(range(20)) - set(used))
        kind = self.random.choices(("insert", "snapshot", "update", "delete", "move"), (3, 0.5, 8, 1, 6))[0]
        if kind == "snapshot":
            self._put("r", self.random.randrange(20), self._values())
        elif kind == "insert" and free:
            # With a row filter, an update may be sent as an insert, and then some values are not sent.
            self._put("c", self.random.choice(free), self._values(), self._some(0.05))
        elif kind == "update" and used:
            key = self.random.choice(used)
            self._put("u", key, self._values(), self._some(0.6), self.rows[key])
        elif kind == "delete" and used:
            self._remove(self.random.choice(used))
        elif kind == "move" and used and free:
            old, new = self.random.choice(used), self.random.choice(free)
            row = self._remove(old, "key_change")
            self._put("c", new, self._values(), self._some(0.8), row, "key_change")

    def load(self, case: str) -> None:
        """Load the table while it changes. ``case`` decides whether a reader of the changes may delete the rows that
        the load did not find in the table."""
        self.gone |= set(self.random.sample(sorted(self.rows), min(4, len(self.rows))))
        there, began = self.rows.keys() - self.gone, len(self.records)
        load: Json = {"id": f"{self.name} {began}", "replaces": case != "does not replace"}
        begin = self._mark("begin", **load)
        if case != "begin is not known":
            self.marks.append(begin)
        for key in self.random.sample(sorted(there), len(there)):
            if key in self.rows and key not in self.gone:
                self._put("r", key, self._values())
            self.run(1)
        # Read all rows again, because changes during the load gave some rows a new key without sending all values.
        for key in sorted(self.rows.keys() - self.gone):
            self._put("r", key, self._values())
        rows = sum(one["op"] == "r" for one in self.records[began:]) + (case == "a row is missing")
        if case != "not ended":
            self.marks.append(self._mark("end", rows, **load))
        if case == "complete":
            for key in self.gone & self.rows.keys():
                del self.rows[key]
            self.gone.clear()

    def _mark(self, state: str, rows: int = 0, **fields: Any) -> Json:  # noqa: ANN401 - any field of a mark
        return mark(state, self.lsn, self._next(), rows, epoch=self.epoch, table=self.name, **fields)

    def truncate(self) -> None:
        self.rows.clear()
        self.gone.clear()
        event = change("t", self.lsn, self._next(), epoch=self.epoch, table=self.name)
        self.records += [record(event, None), record(event, None)]

    def _put(
        self, op: str, key: int, values: Json, unchanged: Iterable[str] = (), old: Json | None = None, *flags: str
    ) -> None:
        old = old or {}
        unchanged = [name for name in unchanged if name in self.columns]
        row = {name: values.get(name) if name in self.columns else ABSENT for name in COLUMNS} | {"id": key}
        for name in unchanged:
            row[name] = UNKNOWN if old.get(name, UNKNOWN) is ABSENT else old.get(name, UNKNOWN)
        sent = {name: value for name, value in row.items() if name in self.columns and name not in unchanged}
        raw = {name: value for name, value in sent.items() if value == "NaN"}
        event = change(op, self.lsn, self._next(), epoch=self.epoch, table=self.name, raw=raw, flags=list(flags))
        event |= {"after": {n: v for n, v in sent.items() if n not in raw}, "unchanged": unchanged}
        self.records.append(record(event, key, self.columns))
        self.gone.discard(key)
        self.rows[key], self.positions[key] = row, (self.epoch, self.lsn, self.seq - 1)

    def _remove(self, key: int, *flags: str) -> Json:
        position = self.lsn, self._next()
        event = change("d", *position, epoch=self.epoch, table=self.name, flags=list(flags), before={"id": key})
        self.records.append(record(event, key, self.columns))
        return self.rows.pop(key)

    def _values(self) -> Json:
        texts = {name: self.random.choice((None, f"{name} {self.random.random()}")) for name in TOASTED}
        return texts | {"amount": self.random.choice((None, "NaN"))}

    def _some(self, share: float) -> list[str]:
        return [name for name in TOASTED if self.random.random() < share]

    def _next(self) -> int:
        self.seq += 1
        return self.seq - 1

    def expected(self) -> dict[tuple[str, int], tuple[Any, ...]]:
        return {
            (self.name, key): (
                {name: None if row[name] in (UNKNOWN, ABSENT, "NaN") else row[name] for name in COLUMNS},
                [name for name in COLUMNS if row[name] is UNKNOWN],
                {name: "NaN" for name in COLUMNS if row[name] == "NaN"},
                self.positions[key],
            )
            for key, row in self.rows.items()
        }


def known(rows: DataFrame) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Return the rows of ``latest`` in the form of ``Table.expected``."""
    found = rows.collect()
    by_key = {
        (row["table"], row["key"]["id"]): (
            row["after"].asDict(),
            row["unchanged"],
            row["raw"],
            (row["epoch"], row["lsn"], row["seq"]),
        )
        for row in found
    }
    assert len(by_key) == len(found)
    return by_key


def delivered(table: Table) -> list[Json]:
    """Return the records of a table, some of them twice."""
    return table.records + table.random.sample(table.records, 50)


@pytest.mark.parametrize("seed", [1, *long(2)])
def test_random_histories(spark: SparkSession, seed: int) -> None:
    table = Table(random.Random(seed))
    other = Table(table.random, "others", lsn=101)  # a table in the same topic
    other.run(60)
    table.run(60)
    table.truncate()
    table.run(60)
    table.columns = COLUMNS  # as after ADD COLUMN
    table.run(20)
    table.epoch, table.lsn = 2, 50  # as after --adopt-slot, when LSNs may be lower
    table.run(20)
    records = delivered(table) + delivered(other)
    table.random.shuffle(records)

    found = known(latest(changes(spark, records)))
    assert found == table.expected() | other.expected()
    assert len(table.rows) > 5
    assert any(unchanged for _, unchanged, _, _ in found.values())


CASES = ("complete", "begin is not known", "a row is missing", "does not replace", "not ended")


@pytest.mark.parametrize(("seed", "last"), [(1, CASES[1:3]), pytest.param(2, CASES[3:], marks=pytest.mark.long)])
def test_random_loads(spark: SparkSession, seed: int, last: tuple[str, str]) -> None:
    """The last load of each table is an incomplete one, because a complete load would hide all earlier changes."""
    tables = [Table(random.Random(seed)), Table(random.Random(seed + 100), "others", lsn=101)]
    for table, last_case in zip(tables, last, strict=True):
        table.run(60)
        for case in table.random.sample(CASES, len(CASES)):
            table.load(case)
            table.run(5)
            if table.random.random() < 0.2:
                table.truncate()
        table.epoch, table.lsn = 2, table.lsn - 48
        table.load("complete")
        table.run(30)
        table.load(last_case)
        assert table.gone
    records = [one for table in tables for one in delivered(table)]
    marks = [one for table in tables for one in table.marks]
    tables[0].random.shuffle(records)
    found = known(latest(changes(spark, records), spark.createDataFrame([*marks, *marks], MARKS)))
    assert found == tables[0].expected() | tables[1].expected()


def test_a_history_without_key_changes(spark: SparkSession) -> None:
    before = record(change("c", 1, after={"id": 1, "note": "n", "photo": "p"}), 1, COLUMNS[:-1])
    update = record(change("u", 2, after={"id": 1, "photo": "q"}, unchanged=["note", "later"]), 1)
    (row,) = latest(changes(spark, [update, before])).collect()
    assert row["after"].asDict() == {"id": 1, "note": "n", "photo": "q", "amount": None, "later": None}
    assert row["unchanged"] == ["later"]
    assert latest(changes(spark, [])).collect() == []


def test_a_move_whose_beginning_is_gone(spark: SparkSession) -> None:
    arrival = change("c", 5, 1, after={"id": 2, "note": "n"}, unchanged=["photo"], flags=["key_change"])
    (row,) = latest(changes(spark, [record(arrival, 2)])).collect()
    assert (row["after"]["photo"], row["unchanged"]) == (None, ["photo"])


@pytest.mark.parametrize("most", [2, 3])
def test_many_keys_are_not_broadcast(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(fold, "BROADCAST_MAX", most)
    keys, rows = spark.range(3), spark.range(10)
    plan = rows.join(fold.broadcast_if_few(keys), "id", "left_semi")._jdf.queryExecution().optimizedPlan().toString()
    assert ("broadcast" in plan) == (most == 3)


def test_a_key_is_needed(spark: SparkSession) -> None:
    inserted = record(change("c", 1, after={"id": 1}), 1)
    with pytest.raises(ValueError, match="have no key column"):
        latest(changes(spark, [inserted]).drop("key"))
    for lacking in (inserted | {"key": None}, inserted | {"key": {"id": None}}):
        with pytest.raises(PySparkException, match="topic t, partition 0, offset 1: the key lacks columns"):
            latest(changes(spark, [lacking])).collect()


def test_a_column_that_was_dropped_and_added_again(spark: SparkSession) -> None:
    """The new column has the same name as the dropped one.

    Only the "stale" mark shows that an unchanged value is not the value of the dropped column.
    """
    told = [
        record(change("c", 1, after={"id": 1, "note": "old", "photo": "p"}), 1),
        record(change("c", 2, after={"id": 2, "note": "old", "photo": "p"}), 2),
        record(change("c", 3, after={"id": 3, "note": "old"}), 3),
        record(change("c", 4, after={"id": 6}, raw={"note": "old"}), 6),
        record(change("u", 8, after={"id": 6}, unchanged=["note"]), 6),
        record(change("u", 11, after={"id": 1, "photo": "q"}, unchanged=["note"]), 1),
        record(change("u", 12, after={"id": 2, "note": "new", "photo": "q"}), 2),
        record(change("u", 13, after={"id": 2, "photo": "r"}, unchanged=["note"]), 2),
        record(change("d", 14, 0, flags=["key_change"]), 3),
        record(change("c", 14, 1, after={"id": 4}, unchanged=["note"], flags=["key_change"]), 4),
        record(change("c", 15, table="others", after={"id": 5, "note": "o"}), 5),
        record(change("u", 16, table="others", after={"id": 5}, unchanged=["note"]), 5),
    ]
    marks = spark.createDataFrame([mark("stale", 5, 0), mark("stale", 10, 0)], MARKS)
    rows = latest(changes(spark, told), marks).collect()
    found = {row["key"]["id"]: (row["after"]["note"], row["unchanged"], row["raw"]) for row in rows}
    unknown: tuple[None, list[str], dict[str, str]] = (None, ["note"], {})
    assert found == {1: unknown, 2: ("new", [], {}), 4: unknown, 5: ("o", [], {}), 6: unknown}


def test_the_end_of_an_empty_table(spark: SparkSession) -> None:
    before = record(change("c", 1, after={"id": 1}), 1)
    marks = [mark("begin", 5, 0), mark("end", 5, 1)]
    assert latest(changes(spark, [before]), spark.createDataFrame(marks, MARKS)).collect() == []
    (row,) = latest(changes(spark, [before]), spark.createDataFrame([], MARKS)).collect()
    assert row["key"]["id"] == 1


def test_tables_with_different_keys(spark: SparkSession) -> None:
    """Tables that share a topic may have different key columns."""
    schema = CHANGES.replace("key struct<id: bigint>", "key struct<id: bigint, code: string>")
    first, second = record(change("c", 1, after={"id": 1}), 1), record(change("c", 2, after={"id": 1}, table="b"), None)
    events = [first | {"key": {"id": 1, "code": None}}, second | {"key": {"id": None, "code": "x"}}]
    rows = latest(spark.createDataFrame(events, schema)).collect()
    assert sorted((row["table"], tuple(row["key"])) for row in rows) == [("b", (None, "x")), ("orders", (1, None))]


def test_a_key_with_a_map(spark: SparkSession) -> None:
    key = "key struct<id: bigint, tags: map<string, string>, sets: array<map<string, string>>>"
    schema = CHANGES.replace("key struct<id: bigint>", key)
    tags = {"a": "1", "b": None}
    keys = [{"id": 1, "tags": some, "sets": [some]} for some in (tags, dict(reversed(tags.items())), {"a": "1"})]
    events = [
        record(change(op, lsn, after={"id": 1, "note": op}), 1) | {"key": one}
        for lsn, (op, one) in enumerate(zip("cuc", keys, strict=True))
    ]
    rows = latest(spark.createDataFrame(events, schema)).collect()
    assert sorted((row["after"]["note"], row["key"]["tags"]) for row in rows) == [("c", {"a": "1"}), ("u", tags)]
