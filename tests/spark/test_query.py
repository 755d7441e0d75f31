"""Tests of mirrors of ordinary and incomplete topics, and of mirrors whose target another program has changed."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import NewTopic
from pyspark.errors import StreamingQueryException

from pgsluice_spark import (
    CountMismatch,
    Delta,
    ForeignWrite,
    NoSuchView,
    PipelineError,
    RetentionGap,
    SchemaError,
    TableRefused,
    TopicMissing,
    TopicRecreated,
    consistent_view,
)
from pgsluice_spark.delta import DeltaTable
from pgsluice_spark.targets import Target
from tests.spark.dying import Dying
from tests.spark.events import Json, column, decimal, logical
from tests.spark.handmade import COLUMNS, Handmade
from tests.spark.lakes import USUAL_LAKES, Lake
from tests.spark.topics import create
from tests.support.versions import long

pytestmark = pytest.mark.usefixtures("without_compilation")

LOCAL = logical("long", "local-timestamp-micros")
BEGIN = {"topic": "", "schema": "public", "table": "orders", "epoch": 1, "rows": 0, "replaces": True}


def mirrored(
    made: Handmade, directory: Path, *tables: str, max_events: int = 1000, target: Target | Dying | None = None
) -> None:
    query = made.pipeline.mirror(
        target or Delta(str(directory / "lake")),
        tables=tables or ["public.*"],
        checkpoint=str(directory / "checkpoint"),
        trigger="available now",
        max_events=max_events,
    )
    query.awaitTermination()


def logged(made: Handmade, directory: Path, target: Target) -> None:
    query = made.pipeline.changelog(
        target, tables=["*"], checkpoint=str(directory / "checkpoint"), trigger="available now"
    )
    query.awaitTermination()


def rows(made: Handmade, directory: Path, table: str = "orders", at: int | None = None) -> dict[int, Any]:
    """Return, by key, the note, the count, and the names of the columns whose values are unknown."""
    view = consistent_view(made.pipeline.spark, Delta(str(directory / "lake")), at=at)
    found = view[f"public.{table}"].collect()
    rows = {row["id"]: (row["note"], row["count"], *row["_pgsluice"]["unchanged"]) for row in found}
    assert len(rows) == len(found), "no row occurs twice"
    return rows


def mark(state: str, lsn: int, seq: int, **fields: Any) -> Json:  # noqa: ANN401 - any field of a mark
    return {**BEGIN, "id": "load", "state": state, "lsn": lsn, "seq": seq, **fields}


def refused(made: Handmade, directory: Path, error: type[PipelineError], sentence: str, **options: Any) -> None:  # noqa: ANN401 - options of mirrored()
    with pytest.raises(error, match=sentence):
        mirrored(made, directory, **options)


def test_values_that_were_not_sent(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders")
    event = made.event
    made.cut(
        event("orders", "c", 10, 0, {"id": 1}, after={"note": "a", "count": 1}),
        event("orders", "c", 10, 1, {"id": 2}, after={"note": "b", "count": 1}),
        event("orders", "u", 11, 0, {"id": 3}, after={"count": 1}, unchanged=["note"]),
        event("orders", "c", 12, 0, {"id": 4}, after={"note": "d", "count": 1}),
        event("orders", "c", 13, 0, {"id": 5}, after={"note": "e", "count": 1}),
    )
    made.cut(
        event("orders", "u", 20, 0, {"id": 1}, after={"count": 2}, unchanged=["note"]),
        event("orders", "u", 21, 0, {"id": 1}, after={"count": 3}, unchanged=["note"]),
        event("orders", "u", 22, 0, {"id": 2}, after={"note": None, "count": 2}),
        event("orders", "u", 23, 0, {"id": 2}, after={"count": 3}, unchanged=["note"]),
        event("orders", "u", 24, 0, {"id": 3}, after={"count": 4}, unchanged=["note"]),
        # The row with key 4 gets key 6, then key 7. Another row gets key 4.
        event("orders", "d", 25, 0, {"id": 4}, flags=["key_change"]),
        event("orders", "c", 25, 1, {"id": 6}, after={"count": 5}, unchanged=["note"], flags=["key_change"]),
        event("orders", "d", 26, 0, {"id": 6}, flags=["key_change"]),
        event("orders", "c", 26, 1, {"id": 7}, after={"count": 6}, unchanged=["note"], flags=["key_change"]),
        event("orders", "d", 27, 0, {"id": 5}, flags=["key_change"]),
        event("orders", "c", 27, 1, {"id": 4}, after={"count": 7}, unchanged=["note"], flags=["key_change"]),
    )
    mirrored(made, tmp_path, max_events=5)
    first = {1: ("a", 1), 2: ("b", 1), 3: (None, 1, "note"), 4: ("d", 1), 5: ("e", 1)}
    second = {1: ("a", 3), 2: (None, 3), 3: (None, 4, "note"), 4: ("e", 7), 7: ("d", 6)}
    assert rows(made, tmp_path, at=1) == first
    assert rows(made, tmp_path) == second
    mirrored(made, tmp_path / "at once")
    assert rows(made, tmp_path / "at once") == second


@pytest.mark.long
def test_values_of_a_new_column_that_were_not_sent(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """They are unknown, no matter whether the target already has the column."""
    made = make("orders")
    event = made.event
    made.cut(*(event("orders", "c", 10, n, {"id": n}, after={"note": "a"}) for n in (1, 2, 3)))
    made.register("orders", [*COLUMNS, column("new", "string")], {"id": "int"})
    made.cut(
        event("orders", "u", 20, 0, {"id": 1}, after={"count": 2}, unchanged=["note", "new"]),
        event("orders", "d", 21, 0, {"id": 2}, flags=["key_change"]),
        event("orders", "c", 21, 1, {"id": 4}, after={"count": 2}, unchanged=["note", "new"], flags=["key_change"]),
    )
    made.cut(event("orders", "u", 30, 0, {"id": 3}, after={"count": 2}, unchanged=["note", "new"]))
    for place, most in (("each cut", 1), ("at once", 1000)):
        mirrored(made, tmp_path / place, max_events=most)
        assert rows(made, tmp_path / place) == dict.fromkeys((1, 3, 4), ("a", 2, "new"))


def test_tables_that_share_a_topic(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """A truncate applies only to its own table. The counts in a cut record include all tables of the topic."""
    made = make("orders", "lines", "notes", topic="shared")
    event = made.event
    made.cut(
        *(event(table, "c", 10, n, {"id": 1}, after={"note": table}) for n, table in enumerate(made.topics)),
        event("orders", "t", 11, 0, {"id": 0}),
        event("orders", "c", 12, 0, {"id": 2}, after={"note": "new"}),
    )
    mirrored(made, tmp_path, "public.orders", "public.lines")
    assert rows(made, tmp_path, "orders") == {2: ("new", None)}
    assert rows(made, tmp_path, "lines") == {1: ("lines", None)}
    assert set(consistent_view(made.pipeline.spark, Delta(str(tmp_path / "lake")))) == {"public.orders", "public.lines"}


@pytest.mark.long
def test_a_table_that_is_left_out_for_a_while(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """Its copy lacks the changes of this time, even if a load ended in it, until the table is loaded again."""
    made = make("orders", "lines")
    event = made.event
    made.cut(
        event("orders", "r", 10, -9, {"id": 1}, after={"note": "a"}),
        event("lines", "c", 10, 1, {"id": 1}, after={"note": "a"}),
        snapshots=[mark("begin", 10, -10), mark("end", 10, -8, rows=1)],
    )
    mirrored(made, tmp_path)

    def status() -> str:
        found: str = consistent_view(made.pipeline.spark, Delta(str(tmp_path / "lake"))).status["public.orders"]
        return found

    assert status() == "loaded"
    made.cut(
        event("orders", "u", 20, 0, {"id": 1}, after={"note": "b"}),
        event("lines", "u", 20, 1, {"id": 1}, after={"note": "b"}),
    )
    made.cut(snapshots=[mark("begin", 30, -10, epoch=2), mark("end", 30, -9, epoch=2)], epoch=2, end_lsn=31)
    mirrored(made, tmp_path, "public.lines")
    assert (rows(made, tmp_path), rows(made, tmp_path, "lines")) == ({1: ("a", None)}, {1: ("b", None)})
    assert status() == "gap"
    made.cut(event("orders", "c", 40, 0, {"id": 2}, after={"note": "c"}, epoch=2), epoch=2)
    mirrored(made, tmp_path)
    assert (rows(made, tmp_path), status()) == ({1: ("a", None), 2: ("c", None)}, "gap")
    reads = [event("orders", "r", 50, n - 9, {"id": n}, after={"note": "d"}, epoch=2) for n in (1, 2)]
    marks = [mark("begin", 50, -10, epoch=2), mark("end", 50, -6, rows=2, epoch=2)]
    made.cut(*reads, snapshots=marks, epoch=2)
    mirrored(made, tmp_path)
    assert (rows(made, tmp_path), status()) == ({1: ("d", None), 2: ("d", None)}, "loaded")


def test_a_table_whose_topic_changes(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """Check that the changes in both topics are applied, and in their order, even if one batch has all of them."""
    made = make("orders", "goods")
    event = made.event
    made.cut(event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    made.topics["orders"] = made.topics["goods"]
    made.register("orders", COLUMNS, {"id": "int"})
    made.cut(event("orders", "u", 20, 0, {"id": 1}, after={"note": "b"}))
    mirrored(made, tmp_path)
    made.cut(event("orders", "c", 30, 0, {"id": 3}, after={"note": "c"}))
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {1: ("b", None), 3: ("c", None)}


def test_a_truncate_in_every_partition(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders", partitions=2)
    event = made.event
    made.cut(event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    truncate = event("orders", "t", 20, 0, {"id": 0})
    after = event("orders", "c", 21, 0, {"id": 2}, after={"note": "b"})
    places = [*made.write(truncate, after), *made.write(truncate, partition=1)]
    (entry,) = made.entries(places[:2], [truncate[2], after[2]])
    entry["offsets"].append({"partition": 1, "first": 0, "next": 1})
    made.write_cut([entry], end_lsn=22)
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {2: ("b", None)}


def test_rows_that_are_read_again(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders")
    event = made.event
    made.cut(*(event("orders", "c", 10, n, {"id": n}, after={"note": "a"}) for n in (1, 2, 3)))
    made.cut(event("orders", "r", 20, -9, {"id": 1}, after={"note": "r"}), snapshots=[mark("begin", 20, -10)])
    made.cut(event("orders", "u", 30, 0, {"id": 2}, after={"count": 5}, unchanged=["note"]))
    made.cut(event("orders", "r", 40, -8, {"id": 2}, after={"note": "r", "count": 5}), snapshots=[])
    made.cut(snapshots=[mark("end", 50, -7, rows=2)], end_lsn=50)
    made.write_cut([made.letter("orders", "u")], end_lsn=60)
    lacks_a_row = [mark("begin", 70, -10, id="again"), mark("end", 70, -8, id="again", rows=2)]
    made.cut(event("orders", "r", 70, -9, {"id": 1}, after={"note": "r"}), snapshots=lacks_a_row)
    mirrored(made, tmp_path, max_events=1)
    target = Delta(str(tmp_path / "lake"))
    status = [consistent_view(made.pipeline.spark, target, at=cut).status["public.orders"] for cut in range(1, 8)]
    assert status == ["unloaded", "loading", "loading", "loading", "loaded", "partial", "partial"]
    assert rows(made, tmp_path, at=4) == {1: ("r", None), 2: ("a", 5), 3: ("a", None)}  # cuts 4 and 5 share an entry
    assert rows(made, tmp_path) == {1: ("r", None), 2: ("r", 5)}
    mirrored(made, tmp_path / "at once")
    assert rows(made, tmp_path / "at once") == {1: ("r", None), 2: ("r", 5)}


def test_a_dead_letter_during_a_load(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """Check that only the next load makes the table complete, whether one piece has all cuts or each cut is a piece."""
    made = make("orders")
    event = made.event
    read = event("orders", "r", 20, -9, {"id": 1}, after={"note": "old"})
    made.cut(read, snapshots=[mark("begin", 20, -10)])
    made.write_cut([made.letter("orders", "u", 30)], end_lsn=31)
    made.cut(snapshots=[mark("end", 40, -8, rows=1)], end_lsn=40)
    for place, most in (("each cut", 1), ("at once", 1000)):
        mirrored(made, tmp_path / place, max_events=most)
    read = event("orders", "r", 50, -9, {"id": 1}, after={"note": "new"})
    made.cut(read, snapshots=[mark("begin", 50, -10, id="b"), mark("end", 50, -8, id="b", rows=1)])
    for place, most in (("each cut", 1), ("at once", 1000)):
        target = Delta(str(tmp_path / place / "lake"))
        assert consistent_view(made.pipeline.spark, target).status == {"public.orders": "partial"}
        mirrored(made, tmp_path / place, max_events=most)
        assert consistent_view(made.pipeline.spark, target).status == {"public.orders": "loaded"}
    mirrored(made, tmp_path / "later")
    assert consistent_view(made.pipeline.spark, Delta(str(tmp_path / "later/lake"))).status == {
        "public.orders": "loaded"
    }


def test_a_registry_that_lacks_the_schema_of_dead_letters(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders")
    made.cut(made.event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    made.write_cut([made.letter("orders", "u", 20)], end_lsn=21)
    schemas = made.registry.schemas.pop(f"{made.dead_letters}-value")
    with pytest.raises(SchemaError, match=r"the schema registry has no subject .*\.dead_letters-value"):
        mirrored(made, tmp_path)
    made.registry.schemas[f"{made.dead_letters}-value"] = schemas
    mirrored(made, tmp_path)
    assert consistent_view(made.pipeline.spark, Delta(str(tmp_path / "lake"))).status == {"public.orders": "partial"}


def test_a_registry_that_lacks_the_schemas_of_a_table(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """The table may be one of the chosen tables, so its changes must not be skipped."""
    made = make("orders", "lines")
    made.cut(
        made.event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}),
        made.event("lines", "c", 10, 1, {"id": 2}, after={"note": "b"}),
    )
    known = dict(made.registry.schemas)
    for part in ("key", "value"):
        del made.registry.schemas[f"{made.topics['lines']}-{part}"]
    with pytest.raises(SchemaError, match=r"no subject .*\.public\.lines-value, although cuts 1 to 1 have changes"):
        mirrored(made, tmp_path, "public.*")
    made.registry.schemas.update(known)
    mirrored(made, tmp_path, "public.*")
    assert rows(made, tmp_path, "lines") == {2: ("b", None)}


def test_a_row_that_is_inserted_and_loaded_in_the_same_piece(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders")
    event = made.event
    made.cut(event("orders", "c", 10, 0, {"id": 9}, after={"note": "c"}))
    mirrored(made, tmp_path)
    made.cut(event("orders", "c", 20, 0, {"id": 1}, after={"note": "c", "count": 1}), snapshots=[mark("begin", 20, -9)])
    loaded = [event("orders", "r", 30, seq, {"id": number}, after={"note": "r"}) for seq, number in ((-8, 1), (-7, 3))]
    made.cut(*loaded, snapshots=[mark("end", 30, -6, rows=2)])
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {1: ("r", None), 3: ("r", None)}
    mirrored(made, tmp_path / "at once")
    assert rows(made, tmp_path / "at once") == {1: ("r", None), 3: ("r", None)}


def _text(row: Any) -> str:  # noqa: ANN401 - Spark's rows have no types
    """Return the numeric in the row's column ``code``."""
    if row["code"] is None:
        return str(row["_pgsluice"]["raw"]["code"])
    text = f"{row['code']:f}"
    return text.rstrip("0").rstrip(".")


def test_keys_that_are_numerics(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """A numeric is a string in keys, and a decimal in rows (tables.numeric)."""
    made = make("orders")
    made.register("orders", [column("code", decimal(38, 9)), *COLUMNS[1:]], {"code": "string"})
    near = "9007199254740992", "9007199254740993"  # which are equal as doubles

    def event(op: str, lsn: int, key: str, note: str | None = None, seq: int = 0, **fields: Any) -> Any:  # noqa: ANN401
        code = None if key == "NaN" else Decimal(key).quantize(Decimal("1e-9"))
        raw = {"code": key} if code is None and op != "d" else {}
        return made.event("orders", op, lsn, seq, {"code": key}, after={"code": code, "note": note}, raw=raw, **fields)

    def found() -> dict[str, str]:
        rows = consistent_view(made.pipeline.spark, Delta(str(tmp_path / "lake")))["public.orders"].collect()
        assert len({row["code"] for row in rows}) == len(rows)
        return {_text(row): row["note"] for row in rows}

    made.cut(*(event("c", 10 + n, key, "a") for n, key in enumerate((*near, "NaN", "9", "0.000000001", "1200"))))
    mirrored(made, tmp_path)
    moves: Json = {"flags": ["key_change"]}
    made.cut(
        event("d", 20, near[1]),
        event("u", 21, "NaN", "b"),
        event("d", 22, "9", seq=0, **moves),
        event("c", 22, "10", seq=1, unchanged=["note"], **moves),
        event("d", 23, "0.000000001", seq=0, **moves),
        event("c", 23, "0.0000000010", "c", seq=1, **moves),
        event("u", 24, "1200", "d"),
    )
    mirrored(made, tmp_path)
    assert found() == {near[0]: "a", "NaN": "b", "10": "a", "0.000000001": "c", "1200": "d"}
    made.cut(*(event("d", 30, key, seq=n) for n, key in enumerate(("NaN", "10", "0.0000000010", "1200"))))
    mirrored(made, tmp_path)
    assert found() == {near[0]: "a"}


class Keys(NamedTuple):
    """The Avro types of a column in keys and in rows, and two values of the column."""

    of_key: str
    of_row: str | Json
    first: str | int
    second: str | int


NUMERIC = Keys("string", decimal(38, 9), "9", "10")
"""Keys whose order as texts differs from their order as numbers."""
TEXT = Keys("string", "string", "it's", "\\n\u00e4")
BIGINT = Keys("long", "long", -(2**63), 2**63 - 1)


@pytest.mark.parametrize("kind", USUAL_LAKES)
@pytest.mark.parametrize("keys", [NUMERIC, TEXT, BIGINT], ids=["numeric", "text", "bigint"])
def test_keys_of_any_type(make: Callable[..., Handmade], tmp_path: Path, keys: Keys, kind: type[Lake]) -> None:
    made = make("orders")
    target = kind(made.pipeline.spark, tmp_path / "lake").target
    made.register("orders", [column("code", keys.of_row), *COLUMNS[1:]], {"code": keys.of_key})

    def event(op: str, lsn: int, key: str | int, note: str) -> tuple[str, Json, Json]:
        row = {"code": Decimal(key) if keys is NUMERIC else key, "note": note}
        return made.event("orders", op, lsn, 0, {"code": key}, after=row)

    made.cut(event("c", 10, keys.first, "a"), event("c", 11, keys.second, "a"))
    mirrored(made, tmp_path, target=target)
    made.cut(event("u", 20, keys.first, "b"), event("d", 21, keys.second, ""))
    mirrored(made, tmp_path, target=target)
    (row,) = consistent_view(made.pipeline.spark, target)["public.orders"].collect()
    assert (row["code"], row["note"]) == (Decimal(9) if keys is NUMERIC else keys.first, "b")


def test_a_first_load_reads_no_rows_that_it_has_loaded(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """The time for a piece of a batch must not grow with the number of rows that were loaded before."""
    made = make("orders")

    def load(*keys: int, **fields: Any) -> None:  # noqa: ANN401 - as in Handmade
        made.cut(*(made.event("orders", "r", 20, key - 9, {"id": key}, after={"note": "r"}) for key in keys), **fields)
        mirrored(made, tmp_path)

    load(1, 2, snapshots=[mark("begin", 20, -9)])
    files = list((tmp_path / "lake" / "public.orders").glob("*.parquet"))
    hidden = [(file.rename(tmp_path / file.name), file) for file in files]
    load(3, 4)
    load(5, snapshots=[mark("end", 20, -3, rows=5)])
    for place, file in hidden:
        place.rename(file)
    assert rows(made, tmp_path) == dict.fromkeys(range(1, 6), ("r", None))
    assert consistent_view(made.pipeline.spark, Delta(str(tmp_path / "lake"))).status["public.orders"] == "loaded"


def test_changes_that_change_nothing(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """Apply a load that removes no row, and a batch that deletes a row which it has inserted."""
    made = make("orders")
    event = made.event
    made.cut(event("orders", "r", 20, -9, {"id": 1}, after={"note": "r"}), snapshots=[mark("begin", 20, -10)])
    mirrored(made, tmp_path)
    made.cut(snapshots=[mark("end", 30, -8, rows=1)], end_lsn=30)
    mirrored(made, tmp_path)
    made.cut(event("orders", "c", 40, 0, {"id": 2}), event("orders", "d", 40, 1, {"id": 2}))
    mirrored(made, tmp_path)
    view = consistent_view(made.pipeline.spark, Delta(str(tmp_path / "lake")))
    assert (view.cut, view.unfinished) == (3, [])
    assert rows(made, tmp_path) == {1: ("r", None)}


@pytest.mark.parametrize("kind", USUAL_LAKES)
def test_infinite_keys(make: Callable[..., Handmade], tmp_path: Path, kind: type[Lake]) -> None:
    """An infinite value is null in a row. In a key, it is the lowest or highest value of its type.

    A time before year 1 has the same value in the row and in the key.
    """
    made = make("orders")
    spark = made.pipeline.spark
    target = kind(spark, tmp_path / "lake").target
    ends = {"day": 2**31 - 1, "at": -(2**63)}, {"day": -(2**31), "at": 2**63 - 1}
    ancient = {"day": -720_000, "at": -63_000_000_000_000_000}
    types: dict[str, str | Json] = {"day": logical("int", "date"), "at": logical("long", "timestamp-micros")}
    made.register("orders", [*(column(name, kind) for name, kind in types.items()), *COLUMNS[1:]], types)
    raw = {"day": "infinity", "at": "-infinity"}
    null = dict.fromkeys(types)

    def event(op: str, lsn: int, key: Json, **fields: Any) -> tuple[str, Json, Json]:  # noqa: ANN401 - as in Handmade
        told: dict[str, Any] = {"raw": {} if key is ancient else raw, **fields}
        table, _, event = made.event("orders", op, lsn, 0, key, **told)
        return table, key, event | ({} if key is ancient or op == "d" else {"after": event["after"] | null})

    made.cut(*(event("c", 10 + n, key, after={"note": "a"}) for n, key in enumerate((*ends, ancient))))
    mirrored(made, tmp_path, target=target)
    made.cut(
        event("u", 20, ends[0], after={"count": 2}, unchanged=["note"]),
        event("d", 21, ends[1], raw={}),
        event("u", 22, ancient, after={"count": 3}, unchanged=["note"]),
    )
    mirrored(made, tmp_path, target=target)
    rows = consistent_view(spark, target)["public.orders"]
    found = rows.selectExpr("unix_date(day)", "note", "count", "_pgsluice.raw").orderBy("count").collect()
    assert [tuple(row) for row in found] == [(2**31 - 1, "a", 2, raw), (-720_000, "a", 3, {})]


@pytest.mark.parametrize("kind", USUAL_LAKES)
def test_added_and_widened_columns(make: Callable[..., Handmade], tmp_path: Path, kind: type[Lake]) -> None:
    made = make("orders")
    spark = made.pipeline.spark
    target, log = kind(spark, tmp_path / "lake").target, kind(spark, tmp_path / "log").target
    made.cut(made.event("orders", "c", 10, 0, {"id": 1}, after={"note": "a", "count": 1}))
    mirrored(made, tmp_path, target=target)
    logged(made, tmp_path / "of the log", log)
    columns = [*COLUMNS[:2], column("count", "long"), column("price", "double"), column("at", LOCAL)]
    made.register("orders", columns, {"id": "int"})
    after = {"count": 2**40, "price": 0.5, "at": datetime(2024, 2, 29)}  # noqa: DTZ001 - a local time
    made.cut(made.event("orders", "u", 20, 0, {"id": 1}, after=after, unchanged=["note"]))
    mirrored(made, tmp_path, target=target)
    logged(made, tmp_path / "of the log", log)
    (row,) = consistent_view(spark, target)["public.orders"].collect()
    assert (row["note"], row["count"], row["price"], row["at"]) == ("a", 2**40, 0.5, after["at"])
    changes = log.table(spark, "public.orders").read()
    assert [row["after"]["count"] for row in changes.orderBy("lsn").collect()] == [1, 2**40]


def test_repeated_cuts(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """In at-least-once mode, records may belong to no cut, and a cut may have more changes when it is repeated."""
    made = make("orders")
    event = made.event
    first = event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"})
    second = event("orders", "c", 11, 0, {"id": 2}, after={"note": "b"})
    moves = (
        event("orders", "d", 12, 0, {"id": 1}, flags=["key_change"]),
        event("orders", "c", 12, 1, {"id": 3}, after={"count": 1}, unchanged=["note"], flags=["key_change"]),
        event("orders", "d", 12, 2, {"id": 3}, flags=["key_change"]),
        event("orders", "c", 12, 3, {"id": 4}, after={"count": 1}, unchanged=["note"], flags=["key_change"]),
    )
    made.cut(first)
    made.cut(second, *moves)
    mirrored(made, tmp_path)
    made.write(event("orders", "c", 13, 0, {"id": 9}, after={"note": "of a crash"}))
    third = event("orders", "c", 13, 0, {"id": 9}, after={"note": "c"})
    made.cut(second, *moves, third, third, number=2, counts={"c": 4, "d": 2})
    mirrored(made, tmp_path)
    expected = {2: ("b", None), 4: ("a", 1), 9: ("c", None)}
    assert rows(made, tmp_path) == expected
    mirrored(made, tmp_path / "at once")
    assert rows(made, tmp_path / "at once") == expected


@pytest.mark.long
@pytest.mark.parametrize("before", [1000, 1])
def test_rows_that_are_read_again_in_a_repeated_cut(make: Callable[..., Handmade], tmp_path: Path, before: int) -> None:
    """In at-least-once mode, the rows of the last cut are read again after a crash, at another position."""
    made = make("orders")
    event = made.event
    made.cut(event("orders", "c", 10, 0, {"id": 7}, after={"note": "obsolete"}))
    made.cut(
        event("orders", "r", 20, -9, {"id": 3}, after={"note": "r"}),
        snapshots=[mark("begin", 20, -10), mark("rows", 20, -8, rows=1)],
    )
    first = [event("orders", "r", 30, seq, {"id": number}, after={"note": "r"}) for seq, number in ((-9, 1), (-8, 2))]
    made.cut(*first, snapshots=[mark("rows", 30, -7, rows=3)])
    mirrored(made, tmp_path, max_events=before)
    again = [event("orders", "r", 40, seq, {"id": number}, after={"note": "s"}) for seq, number in ((-9, 1), (-8, 2))]
    made.cut(
        *again,
        event("orders", "c", 41, 0, {"id": 5}, after={"note": "c"}),
        snapshots=[mark("rows", 40, -7, rows=3)],
        number=3,
    )
    made.cut(snapshots=[mark("end", 50, -6, rows=3)], end_lsn=50)
    mirrored(made, tmp_path)
    expected = {1: ("s", None), 2: ("s", None), 3: ("r", None), 5: ("c", None)}
    assert rows(made, tmp_path) == expected
    assert consistent_view(made.pipeline.spark, Delta(str(tmp_path / "lake"))).unfinished == []
    mirrored(made, tmp_path / "at once")
    assert rows(made, tmp_path / "at once") == expected


@pytest.mark.long
def test_rows_that_a_repeated_cut_lacks(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """A cut that is repeated can be shorter than before, and its rows are then in the next cut."""
    made = make("orders", "lines")
    event = made.event
    first = event("orders", "r", 20, -9, {"id": 1}, after={"note": "r"})
    made.cut(first, snapshots=[mark("begin", 20, -10), mark("rows", 20, -8, rows=1)])
    made.cut(event("orders", "r", 30, -9, {"id": 2}, after={"note": "r"}), snapshots=[mark("rows", 30, -8, rows=2)])
    mirrored(made, tmp_path)
    made.cut(event("lines", "c", 31, 0, {"id": 1}), number=2)
    read = event("orders", "r", 40, -9, {"id": 2}, after={"note": "s"})
    made.cut(read, snapshots=[mark("rows", 40, -8, rows=2), mark("end", 40, -7, rows=2)])
    mirrored(made, tmp_path, max_events=1)
    assert rows(made, tmp_path) == {1: ("r", None), 2: ("s", None)}
    assert consistent_view(made.pipeline.spark, Delta(str(tmp_path / "lake"))).status["public.orders"] == "loaded"


@pytest.mark.long
def test_a_repeated_truncate(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders")
    event = made.event
    made.cut(event("orders", "c", 10, 0, {"id": 7}, after={"note": "x"}))
    first = event("orders", "t", 20, 0, {"id": 0}), event("orders", "c", 21, 0, {"id": 1}, after={"note": "a"})
    made.cut(*first)
    mirrored(made, tmp_path)
    made.cut(*first, event("orders", "c", 30, 0, {"id": 2}, after={"note": "b"}), number=2)
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {1: ("a", None), 2: ("b", None)}
    made.cut(event("orders", "t", 40, 0, {"id": 0}))
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {}


@pytest.mark.long
def test_a_control_table_that_lags_behind(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """The driver dies after it has committed a table, and before it commits the control table.

    The query's checkpoint is lost, too.
    """
    made = make("orders")
    event = made.event
    made.cut(event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    mirrored(made, tmp_path)
    made.cut(
        event("orders", "d", 20, 0, {"id": 1}, flags=["key_change"]),
        event("orders", "c", 20, 1, {"id": 2}, after={"count": 1}, unchanged=["note"], flags=["key_change"]),
    )
    dying = Dying(Delta(str(tmp_path / "lake")), "_pgsluice_cuts", made=False)
    with pytest.raises(StreamingQueryException, match="Killed"):
        mirrored(made, tmp_path, target=dying)
    shutil.rmtree(tmp_path / "checkpoint")
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {2: ("a", 1)}


def test_a_cut_record_in_parts(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders", "lines")
    events = [made.event(table, "c", 10, n, {"id": 1}, after={"note": table}) for n, table in enumerate(made.topics)]
    entries = made.entries(made.write(*events), [event for _, _, event in events])
    made.write_cut(entries, parts=2, end_lsn=11)
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {1: ("orders", None)}
    assert rows(made, tmp_path, "lines") == {1: ("lines", None)}
    cuts = made.pipeline.cuts(streaming=False)
    assert [(row["cut"], row["part"], row["offset"]) for row in cuts.collect()] == [(1, 0, 0), (1, 1, 1)]
    assert made.pipeline.cuts().isStreaming
    changes = made.pipeline.changes("public.orders", streaming=False)
    assert [row["after"]["note"] for row in changes.collect()] == ["orders"]
    assert made.pipeline.changes("public.orders").isStreaming


def test_a_wrong_prefix(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders")
    made.pipeline = replace(made.pipeline, prefix="nobody")
    refused(made, tmp_path, TopicMissing, r"topic nobody\.transactions does not exist.*Check the prefix")
    with pytest.raises(SchemaError, match=r"no subject nobody\.transactions-value"):
        made.pipeline.cuts(streaming=False)


def test_a_pattern_that_is_not_in_a_list(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """Without the check, each character of the text would be a pattern, and the query would apply nothing."""
    made = make("orders")
    for start in (made.pipeline.mirror, made.pipeline.changelog):
        with pytest.raises(TypeError, match=r"tables must be a list .* \['public\.\*'\]"):
            start(Delta(str(tmp_path)), tables="public.*", checkpoint=str(tmp_path / "checkpoint"))


@pytest.mark.parametrize("trigger", ["ten seconds", ""])
def test_a_wrong_trigger(make: Callable[..., Handmade], tmp_path: Path, trigger: str) -> None:
    made = make("orders")
    with pytest.raises(ValueError, match=f"trigger '{trigger}' is neither an interval such as '10 seconds'"):
        made.pipeline.mirror(
            Delta(str(tmp_path)), tables=["*"], checkpoint=str(tmp_path / "checkpoint"), trigger=trigger
        )


def test_topics_that_lack_records(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders", "lines")
    event = made.event
    made.cut(event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    mirrored(made, tmp_path)
    made.cut(
        event("lines", "c", 20, 0, {"id": 1}),
        event("orders", "c", 20, 1, {"id": 2}),
        event("orders", "u", 21, 0, {"id": 1}),
        counts={"c": 2},
    )
    refused(made, tmp_path, CountMismatch, r"lines: the cut records declare 2 c in cuts 2 to 2, and the topic has 1 c")
    assert rows(made, tmp_path) == {1: ("a", None)}
    made.recreate(made.transactions)
    made.cut()
    refused(made, tmp_path, TopicRecreated, r"was filled from another topic .*transactions .id ")
    with pytest.raises(NoSuchView, match=r"has no state of the database as of 1 or before"):
        consistent_view(made.pipeline.spark, Delta(str(tmp_path / "nothing")), at=1)


def test_a_cut_record_that_is_missing(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders")
    made.cut(made.event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    made.cut(made.event("orders", "c", 30, 0, {"id": 3}, after={"note": "c"}), number=3)
    refused(made, tmp_path, RetentionGap, r"transactions: cut 3 follows cut 1\. The cut records between them are gone")


def test_cut_records_that_were_deleted_before_they_were_read(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """Spark itself fails, because the topic no longer has the offset in the checkpoint. The error must be clear."""
    made = make("orders")
    made.cut(made.event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    mirrored(made, tmp_path)
    for number in (2, 3):
        made.cut(made.event("orders", "c", 10 * number, 0, {"id": number}, after={"note": "b"}))
    made.delete_records(made.transactions, 2)
    refused(made, tmp_path, RetentionGap, r"transactions: cut 3 follows cut 1\. The cut records between them are gone")


@pytest.mark.long
def test_a_target_that_is_restored_from_a_backup(
    make: Callable[..., Handmade], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is newer than the target. The cuts between them are read again, if the topic still has them."""
    made = make("orders")
    for number in (1, 2, 3, 4):
        made.cut(made.event("orders", "c", 10 * number, 0, {"id": number}, after={"note": "a"}))
        if number == 1:
            mirrored(made, tmp_path)
            shutil.copytree(tmp_path / "lake", tmp_path / "backup")
    mirrored(made, tmp_path)

    def restore() -> None:
        shutil.rmtree(tmp_path / "lake")
        shutil.copytree(tmp_path / "backup", tmp_path / "lake")

    restore()
    made.cut(made.event("orders", "c", 50, 0, {"id": 5}, after={"note": "a"}))
    monkeypatch.setattr("pgsluice_spark.query.RECORDS_MAX", 2)
    mirrored(made, tmp_path)
    assert sorted(rows(made, tmp_path)) == [1, 2, 3, 4, 5]
    restore()
    made.delete_records(made.transactions, 2)
    made.cut()
    refused(made, tmp_path, RetentionGap, r"transactions: cut 3 follows cut 1\. The cut records between them are gone")


@pytest.mark.long
def test_a_repeated_cut_that_a_backup_lacks(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """In at-least-once mode, the checkpoint may be newer than the target although no number is missing."""
    made = make("orders")
    first = made.event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"})
    made.cut(first)
    mirrored(made, tmp_path)
    shutil.copytree(tmp_path / "lake", tmp_path / "backup")
    made.cut(first, made.event("orders", "c", 20, 0, {"id": 2}, after={"note": "b"}), number=1)
    mirrored(made, tmp_path)
    shutil.rmtree(tmp_path / "lake")
    shutil.copytree(tmp_path / "backup", tmp_path / "lake")
    made.cut(made.event("orders", "c", 30, 0, {"id": 3}, after={"note": "c"}))
    mirrored(made, tmp_path)
    assert sorted(rows(made, tmp_path)) == [1, 2, 3]


def test_a_target_has_one_kind_of_query(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders")
    made.cut(made.event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    mirrored(made, tmp_path)
    made.cut(made.event("orders", "u", 20, 0, {"id": 1}, after={"note": "b"}))
    with pytest.raises(PipelineError, match=r"was filled by `mirror`, and `changelog` would damage its tables"):
        logged(made, tmp_path, Delta(str(tmp_path / "lake")))
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {1: ("b", None)}


@pytest.mark.parametrize("is_recreated", [*long(False), True])  # noqa: FBT003 - a parameter
def test_records_that_are_lost(make: Callable[..., Handmade], tmp_path: Path, is_recreated: bool) -> None:  # noqa: FBT001 - a parameter
    """The query must stop, and continue only after a new load of the table."""
    made = make("orders", "lines")
    event = made.event
    made.cut(event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    mirrored(made, tmp_path)
    made.cut(event("orders", "c", 20, 0, {"id": 2}), event("lines", "c", 20, 1, {"id": 1}, after={"note": "b"}))
    made.cut(event("orders", "u", 30, 0, {"id": 1}, after={"note": "c"}))
    error: type[PipelineError]
    if is_recreated:
        made.recreate(made.topics["orders"])
        error, sentence = TopicRecreated, r"orders was deleted and created again after cut 3"
    else:
        made.delete_records(made.topics["orders"], 2)
        error, sentence = RetentionGap, r"orders: retention has deleted .* declare 1 c, 1 u, and the topic has 1 u .off"
    refused(made, tmp_path, error, rf"{sentence}.*`pgsluice snapshot start public\.orders`")
    made.cut(event("orders", "u", 40, 0, {"id": 4}, after={"count": 1}, unchanged=["note"]))
    made.cut(
        event("orders", "r", 50, -9, {"id": 4}, after={"note": "r", "count": 1}), snapshots=[mark("begin", 50, -10)]
    )
    made.cut(snapshots=[mark("end", 60, -7, rows=1)], end_lsn=60)
    mirrored(made, tmp_path, max_events=2)
    target = Delta(str(tmp_path / "lake"))
    assert consistent_view(made.pipeline.spark, target, at=4).status["public.orders"] == "unloaded"
    assert consistent_view(made.pipeline.spark, target).status["public.orders"] == "loaded"
    assert rows(made, tmp_path) == {4: ("r", 1)}
    assert rows(made, tmp_path, "lines") == {1: ("b", None)}


@pytest.mark.long
def test_a_dropped_table_in_a_topic_that_lost_records(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """No load of the dropped table can follow. So the load of the other table is enough."""
    made = make("orders", "former", topic="shared")
    event = made.event
    made.cut(
        event("former", "r", 10, -9, {"id": 1}),
        event("orders", "c", 10, 1, {"id": 1}, after={"note": "a"}),
        snapshots=[mark("begin", 10, -10, table="former"), mark("end", 10, -8, rows=1, table="former")],
    )
    mirrored(made, tmp_path)
    made.cut(event("orders", "c", 20, 0, {"id": 2}))
    made.delete_records(made.topics["orders"], 3)
    refused(
        made, tmp_path, RetentionGap, r"`pgsluice snapshot start public\.former public\.orders`.*Leave out tables that"
    )
    read = event("orders", "r", 30, -9, {"id": 3}, after={"note": "r"})
    made.cut(read, snapshots=[mark("begin", 30, -10), mark("end", 30, -8, rows=1)])
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {3: ("r", None)}
    found = consistent_view(made.pipeline.spark, Delta(str(tmp_path / "lake")))
    assert found.status == {"public.orders": "loaded", "public.former": "gap"}


def test_a_topic_that_was_deleted(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """The query needs only the topics of the chosen tables. If it lacks one, it continues only after a load."""
    made = make("orders", "lines")
    event = made.event
    made.cut(event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}), event("lines", "c", 10, 1, {"id": 1}))
    made.delete(made.topics["lines"])
    mirrored(made, tmp_path / "orders", "public.orders")
    assert rows(made, tmp_path / "orders") == {1: ("a", None)}
    sentence = r"public\.lines was deleted after cut 1, .*`pgsluice snapshot start public\.lines`"
    refused(made, tmp_path, TopicMissing, sentence)
    create(made.kafka, NewTopic(made.topics["lines"], 1))
    begin, end = mark("begin", 20, -9, table="lines"), mark("end", 20, -7, table="lines", rows=1)
    made.cut(event("lines", "r", 20, -8, {"id": 1}, after={"note": "b"}), snapshots=[begin, end])
    mirrored(made, tmp_path)
    assert (rows(made, tmp_path), rows(made, tmp_path, "lines")) == ({1: ("a", None)}, {1: ("b", None)})


@pytest.mark.parametrize("is_deleted", [True, *long(False)])  # noqa: FBT003 - a parameter
@pytest.mark.long
def test_a_table_whose_former_topic_lost_records(
    make: Callable[..., Handmade],
    tmp_path: Path,
    is_deleted: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Nobody can tell what the former topic had. So the table continues with a load, even if only one cut has both."""
    made = make("orders", "goods")
    event, former = made.event, made.topics["orders"]
    made.cut(event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    made.topics = {"lines": former, "orders": made.topics["goods"]}
    for table in made.topics:
        made.register(table, COLUMNS, {"id": "int"})
    made.cut(event("lines", "c", 20, 0, {"id": 1}), event("orders", "c", 20, 1, {"id": 2}, after={"note": "b"}))
    error: type[PipelineError]
    if is_deleted:
        made.delete(former)
        error, sentence = TopicMissing, "was deleted after cut 1, "
    else:
        made.delete_records(former, 2)
        error, sentence = RetentionGap, "retention has deleted changes in cuts 1 to 1 "
    refused(made, tmp_path, error, rf"{sentence}.*start public\.lines public\.orders`")
    del made.topics["lines"]
    read = event("orders", "r", 30, -9, {"id": 3}, after={"note": "r"})
    made.cut(read, snapshots=[mark("begin", 30, -10), mark("end", 30, -8, rows=1)])
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {3: ("r", None)}
    view = consistent_view(made.pipeline.spark, Delta(str(tmp_path / "lake")))
    assert (view.status["public.orders"], view.status["public.lines"]) == ("loaded", "unloaded")


@pytest.mark.long
def test_a_topic_that_was_created_again_with_fewer_partitions(make: Callable[..., Handmade], tmp_path: Path) -> None:
    made = make("orders", partitions=2)
    event = made.event
    places = made.write(change := event("orders", "c", 10, 0, {"id": 1}), partition=1)
    (entry,) = made.entries(places, [change[2]])
    made.write_cut([{**entry, "offsets": [{"partition": 1, "first": 0, "next": 1}]}], end_lsn=11)
    made.recreate(made.topics["orders"])
    refused(made, tmp_path, TopicRecreated, r"orders was deleted and created again after cut 1")
    read = event("orders", "r", 20, -8, {"id": 2}, after={"note": "b"})
    made.cut(read, snapshots=[mark("begin", 20, -9), mark("end", 20, -7, rows=1)])
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {2: ("b", None)}


def test_a_table_that_was_removed_is_not_created_again(make: Callable[..., Handmade], tmp_path: Path) -> None:
    """A table that was created again would have only the rows of the next batch, and would count as loaded."""
    made = make("orders")
    made.cut(made.event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    mirrored(made, tmp_path)
    shutil.rmtree(tmp_path / "lake" / "public.orders")
    made.cut(made.event("orders", "c", 20, 0, {"id": 2}, after={"note": "b"}))
    refused(made, tmp_path, ForeignWrite, r"public\.orders: the table, or its last commits, were removed")


@pytest.mark.long
def test_a_foreign_write_during_a_batch(
    make: Callable[..., Handmade], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let another program write to the table before a batch is merged.

    RESTORE undoes the commit of the other program and the commit of the batch, so the batch is applied again.
    """
    made = make("orders")
    spark = made.pipeline.spark
    made.cut(made.event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    mirrored(made, tmp_path)
    made.cut(made.event("orders", "c", 20, 0, {"id": 2}, after={"note": "b"}))
    table = DeltaTable(spark, str(tmp_path / "lake" / "public.orders"))
    merge = DeltaTable.merge

    def merge_after_a_delete(target: DeltaTable, *arguments: Any) -> int:  # noqa: ANN401 - as the original
        spark.sql(f"DELETE FROM {table.sql}")
        return merge(target, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "merge", merge_after_a_delete)
        refused(made, tmp_path, ForeignWrite, r"version 1 is a DELETE.*RESTORE TABLE delta.*VERSION AS OF 0")
    spark.sql(f"RESTORE TABLE {table.sql} TO VERSION AS OF 0")
    mirrored(made, tmp_path)
    assert rows(made, tmp_path) == {1: ("a", None), 2: ("b", None)}


@pytest.mark.parametrize("kind", USUAL_LAKES)
def test_what_a_mirror_cannot_follow(make: Callable[..., Handmade], tmp_path: Path, kind: type[Lake]) -> None:
    made = make("orders")
    spark = made.pipeline.spark
    lake = kind(spark, tmp_path / "lake")
    table = lake.target.table(spark, "public.orders")
    made.cut(made.event("orders", "c", 10, 0, {"id": 1}, after={"note": "a"}))
    mirrored(made, tmp_path, target=lake.target)
    spark.sql(f"DELETE FROM {table.sql}")
    made.cut(made.event("orders", "c", 20, 0, {"id": 2}))
    with pytest.raises(ForeignWrite, match=kind.foreign):
        mirrored(made, tmp_path, target=lake.target)
    lake.undo(spark, "public.orders")
    mirrored(made, tmp_path, target=lake.target)
    assert {row["id"]: row["note"] for row in table.read().collect()} == {1: "a", 2: None}
    made.register("orders", COLUMNS, {"note": "string"})
    made.cut(made.event("orders", "u", 30, 0, {"note": "a"}, after={"id": 1}))
    with pytest.raises(TableRefused, match=r"public\.orders no longer has the key \(id\)"):
        mirrored(made, tmp_path, target=lake.target)


@pytest.mark.parametrize(("is_new", "most"), [(False, 1), (True, 1000)])
def test_a_table_whose_key_changes(make: Callable[..., Handmade], tmp_path: Path, most: int, *, is_new: bool) -> None:
    """The copy begins again with the next load, in a target with rows under the former key and in a new target."""
    made = make("orders")
    event = made.event
    made.cut(*(event("orders", "c", 10, n, {"id": n}, after={"note": "same"}) for n in (1, 2)))
    mirrored(made, tmp_path)
    made.register("orders", COLUMNS, {"note": "string"})
    made.cut(event("orders", "u", 20, 0, {"note": "same"}, after={"id": 1}))
    refused(made, tmp_path, TableRefused, r"the copy will begin again with that load")
    place = tmp_path / "new" if is_new else tmp_path
    made.cut(
        event("orders", "u", 30, 0, {"note": "other"}, after={"id": 1}),
        event("orders", "r", 31, -8, {"note": "a"}, after={"id": 8}),
        snapshots=[mark("begin", 31, -9), mark("rows", 31, -7, rows=1)],
    )
    made.cut(event("orders", "r", 40, -9, {"note": "same"}, after={"id": 9}), snapshots=[mark("end", 40, -8, rows=2)])
    mirrored(made, place, max_events=most)
    assert rows(made, place) == {8: ("a", None), 9: ("same", None)}
    assert consistent_view(made.pipeline.spark, Delta(str(place / "lake"))).status == {"public.orders": "loaded"}


@pytest.mark.parametrize("is_new", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_table_that_gets_a_key(make: Callable[..., Handmade], tmp_path: Path, *, is_new: bool) -> None:
    made = make("orders")
    event = made.event
    made.register("orders", COLUMNS, None)
    made.cut(event("orders", "c", 10, 0, {}, after={"id": 1, "note": "a"}))
    mirrored(made, tmp_path)
    made.cut(event("orders", "d", 20, 0, {}))
    refused(made, tmp_path, TableRefused, "orders has no key.*the copy will begin again with that load")
    made.register("orders", COLUMNS, {"id": "int"})
    read = event("orders", "r", 30, -8, {"id": 2}, after={"note": "b"})
    made.cut(read, snapshots=[mark("begin", 30, -9), mark("end", 30, -7, rows=1)])
    place = tmp_path / "new" if is_new else tmp_path
    mirrored(made, place)
    assert rows(made, place) == {2: ("b", None)}
    assert consistent_view(made.pipeline.spark, Delta(str(place / "lake"))).status == {"public.orders": "loaded"}
