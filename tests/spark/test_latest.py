"""pgsluice_spark.latest against a model of the table, without Kafka."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgsluice_spark import latest
from tests.spark.events import Json, change

ROW = "struct<id: bigint, note: string, photo: string, amount: decimal(10,2), later: string>"
CHANGES = (
    f"op string, before {ROW}, after {ROW}, unchanged array<string>, raw map<string,string>, epoch int, lsn bigint,"
    "seq bigint, ts timestamp, flags array<string>, fields array<string>, key struct<id: bigint>, topic string,"
    "partition int, offset bigint"
)
COLUMNS = ("id", "note", "photo", "amount", "later")
TOASTED = ("note", "photo", "later")

UNKNOWN, ABSENT = object(), object()


def record(event: Json, key: int | None, fields: Iterable[str] = COLUMNS) -> Json:
    """Return an event as ``read_changes`` gives it."""
    position = {"topic": "t", "partition": 0, "offset": event["lsn"]}
    return event | {"fields": list(fields), "key": None if key is None else {"id": key}} | position


def changes(spark: SparkSession, records: list[Json]) -> DataFrame:
    return spark.createDataFrame(records, CHANGES)


@dataclass
class Table:
    """A table, the changes that random statements make to it, and what can be known of it from these."""

    random: random.Random
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    positions: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    records: list[Json] = field(default_factory=list)
    epoch: int = 1
    lsn: int = 100
    seq: int = 0
    columns: tuple[str, ...] = COLUMNS[:-1]

    def run(self, statements: int) -> None:
        for _ in range(statements):
            self.statement()

    def statement(self) -> None:
        if self.random.random() < 0.6:
            self.lsn, self.seq = self.lsn + self.random.randrange(1, 9), 0
        used, free = list(self.rows), sorted(set(range(20)) - set(self.rows))
        kind = self.random.choices(("insert", "snapshot", "update", "delete", "move"), (3, 0.5, 8, 1, 6))[0]
        if kind == "snapshot":
            self._put("r", self.random.randrange(20), self._values())
        elif kind == "insert" and free:
            # a row filter makes inserts of updates: some values are not sent
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

    def truncate(self) -> None:
        self.rows.clear()
        event = change("t", self.lsn, self._next(), epoch=self.epoch)
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
        event = change(op, self.lsn, self._next(), epoch=self.epoch, raw=raw, flags=list(flags))
        event |= {"after": {n: v for n, v in sent.items() if n not in raw}, "unchanged": unchanged}
        self.records.append(record(event, key, self.columns))
        self.rows[key], self.positions[key] = row, (self.epoch, self.lsn, self.seq - 1)

    def _remove(self, key: int, *flags: str) -> Json:
        event = change("d", self.lsn, self._next(), epoch=self.epoch, flags=list(flags), before={"id": key})
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

    def expected(self) -> dict[int, tuple[Any, ...]]:
        return {
            key: (
                {name: None if row[name] in (UNKNOWN, ABSENT, "NaN") else row[name] for name in COLUMNS},
                [name for name in COLUMNS if row[name] is UNKNOWN],
                {name: "NaN" for name in COLUMNS if row[name] == "NaN"},
                self.positions[key],
            )
            for key, row in self.rows.items()
        }


@pytest.mark.parametrize("seed", [1, 2])
def test_random_histories(spark: SparkSession, seed: int) -> None:
    table = Table(random.Random(seed))
    table.run(60)
    table.truncate()
    table.run(60)
    table.columns = COLUMNS  # ADD COLUMN later
    table.run(20)
    table.epoch, table.lsn = 2, 50  # another history, whose LSNs may be lower
    table.run(20)
    records = table.records + table.random.sample(table.records, 50)  # some delivered twice
    table.random.shuffle(records)

    rows = latest(changes(spark, records)).collect()
    found = {
        row["key"]["id"]: (
            row["after"].asDict(),
            row["unchanged"],
            row["raw"],
            (row["epoch"], row["lsn"], row["seq"]),
        )
        for row in rows
    }
    assert found == table.expected()
    assert len(rows) == len(found) > 5
    assert any(unchanged for _, unchanged, _, _ in found.values())


def test_without_moves_nothing_runs_twice(spark: SparkSession) -> None:
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


def test_a_key_is_needed(spark: SparkSession) -> None:
    inserted = record(change("c", 1, after={"id": 1}), 1)
    with pytest.raises(ValueError, match="have no key column"):
        latest(changes(spark, [inserted]).drop("key"))
    for lacking in (inserted | {"key": None}, inserted | {"key": {"id": None}}):
        with pytest.raises(PySparkException, match="topic t, partition 0, offset 1: the key lacks columns"):
            latest(changes(spark, [lacking])).collect()
