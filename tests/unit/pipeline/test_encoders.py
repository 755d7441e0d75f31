"""The key, the topic and the schemas of a table's rows. Source and sink are scripted."""

from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any

import fastavro
import pytest

from pgsluice.avro.choices import Choice
from pgsluice.avro.schema import message_schema
from pgsluice.avro.types import TypeOptions
from pgsluice.avro.wire import Schema, unframe
from pgsluice.envelope import Stamp
from pgsluice.errors import ConfigError, IncompatibleSchema, PoisonError
from pgsluice.identity import Partitions
from pgsluice.layout import ColumnLayout, Layout
from pgsluice.metrics import Metrics
from pgsluice.pgbinary.conversions import TypeDescription
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.messages import BinaryValue, TupleData
from pgsluice.pipeline.encoders import ENCODER_BYTES, ENCODER_COLUMN_BYTES, TYPE_PART_BYTES, Encoders, Rows
from pgsluice.pipeline.quarantine import Quarantine, RefusedRows
from pgsluice.record import Pending
from pgsluice.relation import Column, PgType, Relation, size_of
from pgsluice.tables import TableRule, Tables
from pgsluice.transaction import Change, Transaction
from tests.support.ends import FakeRegistry, FakeSink, FakeSource, World
from tests.support.pgoutput_encoder import encode

INT4 = PgType(23, "pg_catalog", "int4")


class Described(FakeRegistry):
    """A registry that keeps the description that was registered with the last schema."""

    described: Mapping[str, Any]

    async def register(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None = None) -> int:
        assert postgres is not None
        self.described = postgres
        return await super().register(subject, schema, postgres)


def table(identity: str, *keys: str, columns: tuple[str, ...] = ("a", "b", "c")) -> Relation:
    flagged = columns if identity == "f" else keys
    return Relation(7, "public", "t", identity, tuple(Column(name, INT4, -1, name in flagged) for name in columns))


def encoders(world: World, keys: tuple[str, ...] | None = None) -> Encoders:
    tables = Tables("shop", exclude=["public.out"], rules=[TableRule("public.t", keys=keys)])
    return Encoders(FakeSource(world), FakeSink(world), FakeRegistry(world), tables, TypeOptions())


async def key_of(
    relation: Relation, world: World | None = None, keys: tuple[str, ...] | None = None
) -> list[str] | None:
    """Return the names of the fields in the table's key, or None if it has no key."""
    world = world or World()
    await encoders(world, keys).of(relation)
    schemas = world.schemas.get("shop.public.t-key")
    return [field["name"] for field in schemas[-1]["fields"]] if schemas else None


@pytest.mark.parametrize("identity", ["d", "i"])
async def test_the_key_is_the_replica_identity(identity: str) -> None:
    assert await key_of(table(identity, "c", "a")) == ["a", "c"]


@pytest.mark.parametrize("identity", ["f", "n", "d"])
async def test_with_another_identity_the_key_is_the_primary_key_in_the_catalog(identity: str) -> None:
    assert await key_of(table(identity), World(primary_keys={7: ("b",)})) == ["b"]


@pytest.mark.parametrize("identity", ["f", "n", "d"])
async def test_a_table_without_identity_and_primary_key_has_no_key(identity: str) -> None:
    assert await key_of(table(identity)) is None


ROOT = replace(table("f"), partition_keys=(frozenset("c"),))


async def test_a_partition_root_has_the_identity_of_its_partitions() -> None:
    world = World(primary_keys={7: ("b",)}, partitions={7: Partitions({8: frozenset("c")}, unique=(frozenset("c"),))})
    assert await key_of(ROOT, world) == ["c"]
    rows = await encoders(world).of(ROOT)
    assert isinstance(rows, Rows)
    assert rows.relation is ROOT
    assert rows.encoder is not None
    assert not rows.encoder.is_full


async def test_a_table_that_is_not_a_root_has_its_own_identity() -> None:
    world = World(primary_keys={7: ("b",)})
    assert await key_of(ROOT, world) == ["b"]
    rows = await encoders(world).of(ROOT)
    assert isinstance(rows, Rows)
    assert rows.encoder is not None
    assert rows.encoder.is_full


async def test_a_partition_root_whose_partitions_differ_is_refused() -> None:
    root = replace(ROOT, partition_keys=(frozenset("c"), frozenset("a")))
    with pytest.raises(ConfigError, match="Give the table and all partitions the same replica identity"):
        await key_of(root, World(partitions={7: Partitions({})}))


async def test_a_key_that_is_unique_only_within_each_partition_is_refused() -> None:
    world = World(partitions={7: Partitions({8: frozenset("c")}, unique=())})
    with pytest.raises(ConfigError, match="or these do not identify a row of the table"):
        await key_of(ROOT, world)
    inserts = World(partitions={7: Partitions({8: frozenset("c")}, unique=(), sends_old_rows=False)})
    assert await key_of(ROOT, inserts) is None


async def test_the_catalog_shows_the_identity_of_partitions_that_were_described_with_other_columns() -> None:
    root = replace(ROOT, partition_keys=(None,))
    world = World(partitions={7: Partitions({8: frozenset("c"), 9: frozenset("a")}, unique=(frozenset("c"),))})
    made = encoders(world)
    made.keys.partitions = {7: {8: None}}
    await made.of(root)
    assert [field["name"] for field in world.schemas["shop.public.t-key"][-1]["fields"]] == ["c"]


async def test_loaded_rows_have_the_present_identity_of_partitions() -> None:
    world = World(partitions={7: Partitions({8: frozenset("c"), 9: frozenset()}, unique=(frozenset("c"),))})
    rows = await encoders(world).of_loaded(table("f"), is_root=True)
    assert rows.encoder is not None
    assert rows.encoder.key is not None
    assert rows.encoder.key.columns == ("c",)


async def test_a_key_of_which_a_column_is_not_published_is_refused() -> None:
    world = World(identities={7: frozenset({"a", "g"})})
    with pytest.raises(ConfigError, match=r"key of table public\.t \(a, g\) is not among its published columns"):
        await key_of(table("d", "a"), world)


async def test_a_column_that_was_added_to_the_key_later_is_ignored() -> None:
    later = table("d", "a", "g", columns=("a", "b", "c", "g"))
    world = World(identities={7: frozenset({"a", "g"})}, published=[later])
    assert await key_of(table("d", "a"), world) == ["a"]


async def test_a_primary_key_that_has_changed_is_noticed_when_the_table_is_described_again() -> None:
    world = World(primary_keys={7: ("b",)})
    made = encoders(world)
    first = await made.of(table("f"))
    assert isinstance(first, Rows)
    second = await made.of(table("f"))
    assert isinstance(second, Rows)
    assert second is not first
    assert second.encoder is first.encoder
    world.primary_keys[7] = ("c",)
    third = await made.of(table("f"))
    assert isinstance(third, Rows)
    assert third.encoder is not None
    assert third.encoder.key is not None
    assert third.encoder.key.columns == ("c",)


async def test_an_identity_of_partitions_that_has_changed_is_noticed_when_the_root_is_described_again() -> None:
    """The partitions' different identities are the same, but one of them is not known from the protocol."""
    root = replace(ROOT, partition_keys=(None,))
    world = World(primary_keys={7: ("b",)}, partitions={7: Partitions({8: frozenset()}, unique=(frozenset("c"),))})
    made = encoders(world)
    made.keys.partitions = {7: {8: None}}
    first = await made.of(root)
    world.partitions[7] = Partitions({8: frozenset("c")}, unique=(frozenset("c"),))
    second = await made.of(replace(root))
    for rows, is_full in ((first, True), (second, False)):
        assert isinstance(rows, Rows)
        assert rows.encoder is not None
        assert rows.encoder.is_full is is_full


@pytest.mark.parametrize("truncate", [True, False])
async def test_without_a_former_key_a_row_from_before_the_primary_key_has_none(*, truncate: bool) -> None:
    """If truncates are left out, the topic may be compacted, and then Kafka accepts no null keys."""
    world, rule = World(primary_keys={7: ("c",)}), TableRule("public.t", truncate=truncate)
    tables = Tables("shop", rules=[rule])
    made = Encoders(FakeSource(world), FakeSink(world), FakeRegistry(world), tables, TypeOptions())
    rows = await made.of(table("f"))
    assert isinstance(rows, Rows)
    assert rows.encoder is not None
    stamp = Stamp(Transaction(700, 1000, 0), 1, commit_timestamps=False)
    row = messages.Insert(None, 7, [b"1", b"2", None])
    if truncate:
        assert [record.key for record in rows.encoder.encode(row, stamp)] == [None]
    else:
        with pytest.raises(PoisonError, match="key column c is null"):
            rows.encoder.encode(row, stamp)


async def test_a_row_from_before_the_primary_key_has_the_former_key() -> None:
    world = World(primary_keys={7: ("b",)})
    await encoders(world).of(table("f"))
    world.primary_keys[7] = ("c",)
    rows = await encoders(world).of(table("f"))
    assert isinstance(rows, Rows)
    assert rows.encoder is not None
    stamp = Stamp(Transaction(700, 1000, 0), 1, commit_timestamps=False)
    (record,) = rows.encoder.encode(messages.Insert(None, 7, [b"1", b"2", None]), stamp)
    (present,) = rows.encoder.encode(messages.Insert(None, 7, [b"1", b"2", b"3"]), stamp)
    former = world.schemas["shop.public.t-key"]
    assert record.key is not None
    assert present.key is not None
    assert (record.key[5:], present.key[5:]) == (b"\x04", b"\x06")
    assert record.key[:5] != present.key[:5]
    assert [[field["name"] for field in schema["fields"]] for schema in former] == [["b"], ["c"]]


async def test_keys_of_a_rule_come_first() -> None:
    assert await key_of(table("f"), World(primary_keys={7: ("b",)}), keys=("c",)) == ["c"]


async def test_keys_must_be_among_the_old_values_that_are_sent() -> None:
    with pytest.raises(ConfigError, match="REPLICA IDENTITY FULL"):
        await key_of(table("d", "a"), keys=("b",))


async def test_columns_have_their_numbers_if_the_catalog_knows_them() -> None:
    world = World(layouts={7: Layout((ColumnLayout(3, "a", 23, -1, 700), ColumnLayout(5, "b", 25, -1, 700)), 5, "")})
    registry = Described(world)
    made = Encoders(FakeSource(world), FakeSink(world), registry, Tables("shop"), TypeOptions())
    await made.of(table("d", "a", columns=("a", "b")))
    a, b = registry.described["columns"]
    assert a == {"name": "a", "type": "int4", "type_oid": 23, "typmod": -1, "attnum": 3}
    assert b == {"name": "b", "type": "int4", "type_oid": 23, "typmod": -1}, "the catalog has another type for column b"


async def test_an_encoder_that_is_forgotten_is_made_again() -> None:
    world, relation = World(), table("d", "a")
    made = encoders(world)
    first = await made.of(relation)
    assert await made.of(relation) is first
    made.forget(7)
    made.forget(8)
    assert await made.of(relation) is not first


async def test_if_the_catalog_has_changed_the_last_registered_key_is_used() -> None:
    world = World(primary_keys={7: ("b",)})
    await key_of(table("f"), world)
    world.primary_keys[7] = ("renamed",)
    assert await key_of(table("f"), world) == ["b"]


async def test_schemas_of_other_programs_are_not_used_as_keys() -> None:
    world = World(primary_keys={7: ("b",)})
    await key_of(table("f"), world)
    world.schemas["shop.public.t-key"] += [
        {"namespace": "shop.public.t", "fields": [5]},
        {"namespace": "shop.public.t"},
        "string",
    ]
    world.primary_keys[7] = ("renamed",)
    await encoders(world).of(table("f"))
    assert len(world.schemas["shop.public.t-key"]) == 4, "the key was registered before"


async def test_without_any_usable_key_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"The key of table public\.t \(renamed\) is not among its published"):
        await key_of(table("f"), World(primary_keys={7: ("renamed",)}))


async def test_a_table_that_is_left_out_registers_nothing() -> None:
    world = World()
    relation = Relation(8, "public", "out", "d", table("d", "a").columns)
    found = await encoders(world).of(relation)
    assert isinstance(found, Rows)
    assert found.encoder is None
    assert (world.schemas, world.topics) == ({}, set())


async def test_an_encoder_is_made_once_per_version() -> None:
    world = World()
    made = encoders(world)
    first, second = table("d", "a"), table("d", "a", columns=("a", "b"))
    rows = await made.of(first)
    assert await made.of(first) is made.ready[7] is rows
    assert (await made.of(second)).relation is second
    assert made.ready[7].relation is second
    assert len(world.schemas["shop.public.t-value"]) == 2


async def test_every_encoder_of_a_watched_table_reports_incomplete_rows() -> None:
    def tell(_relation: Relation, _new: TupleData) -> None:
        raise AssertionError("nothing is encoded")

    made = encoders(World())
    before = await made.of(table("d", "a"))
    made.watch(7, tell)
    after = await made.of(table("d", "a", columns=("a", "b")))
    assert told_by(before) is told_by(after) is tell
    made.watch(7, None)
    assert told_by(after) is told_by(await made.of(table("d", "a"))) is None


def told_by(rows: Rows | RefusedRows) -> object:
    assert isinstance(rows, Rows)
    assert rows.encoder is not None
    return rows.encoder.on_incomplete


async def test_encoders_of_dropped_tables_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop the oldest encoders. If a dropped encoder is needed, it is made again."""
    monkeypatch.setattr("pgsluice.pipeline.encoders.READY_MAX", 3)
    made = encoders(World())
    tables = [replace(table("d", "a"), oid=oid, name=f"t{oid}") for oid in range(5)]
    for one in tables[:3]:
        await made.of(one)
    await made.of(replace(tables[0], replica_identity="i"))
    for one in tables[3:]:
        await made.of(one)
    assert [*made.ready] == [0, 3, 4]
    assert (await made.of(tables[1])).relation is tables[1]
    assert [*made.ready] == [3, 4, 1]


async def test_encoders_of_wide_tables_are_kept_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit also counts the encoders of excluded and quarantined tables, because they hold descriptions, too."""
    world = World()
    rules = [TableRule("public.refused", keys=("none",))]
    tables = Tables("shop", exclude=["public.out"], rules=rules)
    quarantine = Quarantine(Metrics())
    made = Encoders(
        FakeSource(world), FakeSink(world), FakeRegistry(world), tables, TypeOptions(), quarantine=quarantine
    )
    wide = table("d", *(names := tuple(f"c{number}" for number in range(100))), columns=names)
    each = size_of(wide) + ENCODER_BYTES + ENCODER_COLUMN_BYTES * len(names)
    monkeypatch.setattr("pgsluice.pipeline.encoders.READY_BYTES_MAX", 2 * each + ENCODER_BYTES)
    for oid, name in enumerate(("out", "refused", "a", "b")):
        await made.of(replace(wide, oid=oid, name=name))
    assert [*made.ready] == [2, 3]
    assert made._refused == {}
    await made.of(replace(wide, oid=2, name="again"))
    assert [*made.ready] == [3, 2]
    monkeypatch.setattr("pgsluice.pipeline.encoders.READY_BYTES_MAX", 1)
    last = replace(wide, oid=4, name="c")
    rows = await made.of(last)
    assert made.ready == {4: rows}
    assert made.known(last) is rows


async def test_encoders_of_types_with_many_parts_are_kept_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    composite = TypeDescription(16_400, "public", "mood", "record_send", (23,) * 1600)
    world = World(types={16_400: composite})
    types = TypeOptions(binary=True)
    made = Encoders(FakeSource(world), FakeSink(world), FakeRegistry(world), Tables("shop"), types)
    monkeypatch.setattr("pgsluice.pipeline.encoders.READY_BYTES_MAX", 1600 * TYPE_PART_BYTES)
    for oid in range(3):
        await made.of(replace(MOODY, oid=oid, name=f"t{oid}"))
    assert [*made.ready] == [2]


async def test_field_names_are_remembered_across_sessions() -> None:
    world = World()
    await encoders(world).of(table("d", "a"))
    text = Relation(7, "public", "t", "d", (Column("a", PgType(25, "pg_catalog", "text"), -1, is_key=True),))
    await encoders(world).of(text)
    value = world.schemas["shop.public.t-value"][-1]
    row = next(field for field in value["fields"] if field["name"] == "before")["type"][1]
    assert [field["name"] for field in row["fields"]] == ["a__2"]


async def test_tables_that_share_a_topic_have_histories_of_their_own() -> None:
    world = World()
    tables = Tables("shop", topic="{prefix}.all")
    made = Encoders(FakeSource(world), FakeSink(world), FakeRegistry(world), tables, TypeOptions())
    text = PgType(25, "pg_catalog", "text")
    await made.of(table("d", "a"))
    await made.of(Relation(8, "public", "u", "d", (Column("a", text, -1, is_key=True),)))
    spaces = [schema["namespace"] for schema in world.schemas["shop.all-value"]]
    assert spaces == ["shop.public.t", "shop.public.u"]
    assert world.topics == {"shop.all"}


MOOD = PgType(16_400, "public", "mood")
MOODY = Relation(7, "public", "t", "n", (Column("a", INT4, -1, is_key=False), Column("b", MOOD, -1, is_key=False)))


@pytest.mark.parametrize(
    ("binary", "relation", "asked"), [(False, MOODY, []), (True, table("d", "a"), []), (True, MOODY, [[16_400]])]
)
async def test_only_binary_types_that_are_not_built_in_are_queried(
    *, binary: bool, relation: Relation, asked: list[list[int]]
) -> None:
    world = World(types={16_400: TypeDescription(16_400, "public", "mood", "enum_send")})
    types = TypeOptions(binary=binary)
    made = Encoders(FakeSource(world), FakeSink(world), FakeRegistry(world), Tables("shop"), types)
    await made.of(relation)
    assert world.described == asked


async def test_binary_values_of_queried_types_are_read() -> None:
    world = World(types={16_400: TypeDescription(16_400, "public", "mood", "enum_send")})
    types = TypeOptions(binary=True)
    made = Encoders(FakeSource(world), FakeSink(world), FakeRegistry(world), Tables("shop"), types)
    rows = await made.of(MOODY)
    row: messages.TupleData = [BinaryValue(bytes(4)), BinaryValue(b"sad")]
    transaction = Transaction(1, 0, 7)
    pending = Pending(1000)
    message = encode(messages.Insert(None, 7, row))
    rows.add(message, Stamp(transaction, 1, commit_timestamps=False), pending, is_streamed=False)
    (record,) = pending.records
    assert record.value is not None
    assert b"sad" in record.value


def row_types(world: World) -> dict[str, object]:
    """Return the type of each field of the row that was registered last."""
    (before,) = (field for field in world.schemas["shop.public.t-value"][-1]["fields"] if field["name"] == "before")
    return {field["name"]: field["type"][1] for field in before["type"][1]["fields"]}


@pytest.mark.parametrize("binary", [False, True])
async def test_arrays_are_queried_in_both_formats(*, binary: bool) -> None:
    moods = PgType(16_401, "public", "_mood")
    described = (
        TypeDescription(16_400, "public", "mood", "enum_send"),
        TypeDescription(16_401, "public", "_mood", "array_send", (16_400,)),
    )
    world = World(types={found.oid: found for found in described})
    made = Encoders(FakeSource(world), FakeSink(world), FakeRegistry(world), Tables("shop"), TypeOptions(binary=binary))
    await made.of(Relation(7, "public", "t", "n", (Column("moods", moods, -1, is_key=False),)))
    assert world.described == [[16_401]]
    assert row_types(world) == {"moods": {"type": "array", "items": ["null", "string"]}}


async def test_columns_have_the_types_chosen_for_them() -> None:
    world = World()
    rule = TableRule("public.t", types={"a": Choice("long"), "*": Choice("string")})
    made = Encoders(
        FakeSource(world), FakeSink(world), FakeRegistry(world), Tables("shop", rules=[rule]), TypeOptions()
    )
    await made.of(table("d", "a", "b"))
    assert row_types(world) == {"a": "long", "b": "string", "c": "string"}
    (key,) = world.schemas["shop.public.t-key"]
    assert [field["type"] for field in key["fields"]] == ["long", "string"]


async def test_a_column_that_cannot_have_the_type_chosen_for_it_stops() -> None:
    world = World()
    rule = TableRule("public.t", types={"b": Choice("uuid")})
    made = Encoders(
        FakeSource(world), FakeSink(world), FakeRegistry(world), Tables("shop", rules=[rule]), TypeOptions()
    )
    with pytest.raises(ConfigError, match=r"table public\.t: column b of type int4 cannot be uuid"):
        await made.of(table("d", "a"))
    assert world.schemas == {}


class TestATableThatCannotBePublished:
    """A table in quarantine. Its changes become dead letters, and other tables are not affected."""

    RULE = TableRule("public.t", types={"b": Choice("uuid")})
    TRANSACTION = Transaction(700, 100, 5)

    def encoders(self, world: World, *rules: TableRule) -> Encoders:
        tables, self.metrics = Tables("shop", rules=rules), Metrics()
        self.quarantine = Quarantine(self.metrics)
        ends = FakeSource(world), FakeSink(world), FakeRegistry(world)
        return Encoders(*ends, tables, TypeOptions(), quarantine=self.quarantine)

    def counted(self) -> float | None:
        return self.metrics.registry.get_sample_value("pgsluice_quarantined_tables")

    def letters(self, rows: Rows | RefusedRows, world: World, *changes: messages.Message) -> list[dict[str, Any]]:
        """Return the dead letters for these changes."""
        stamp, pending = Stamp(self.TRANSACTION, 2, commit_timestamps=True), Pending(1 << 20)
        for change in changes:
            rows.add(encode(change), stamp, pending, is_streamed=False)
        schema = fastavro.parse_schema(world.schemas["shop.dead_letters-value"][-1])
        values = [record.value or b"" for record in pending.records]
        return [fastavro.schemaless_reader(BytesIO(unframe(value)[1]), schema, None) for value in values]

    async def test_a_dead_letter_stands_for_each_change(self) -> None:
        world = World()
        rows = await self.encoders(world, self.RULE).of(table("d", "a"))
        changes: list[messages.Message] = [
            messages.Insert(None, 7, [b"1", b"2", b"3"]),
            messages.Delete(None, 7, None, [b"1", b"2", b"3"]),
            messages.Truncate(None, cascade=False, restart_identity=False, relation_oids=(7,)),
        ]
        found = self.letters(rows, world, *changes)
        assert [(one["op"], one["seq"]) for one in found] == [("c", 0), ("d", 1), ("t", 2)]
        assert {(one["schema"], one["table"], one["reason"], one["topic"]) for one in found} == {
            ("public", "t", "table_refused", "shop.public.t")
        }
        assert (found[0]["epoch"], found[0]["lsn"], found[0]["xid"]) == (2, 100, 700)
        assert "column b of type int4 cannot be uuid" in found[0]["detail"]
        assert world.topics == {"shop.dead_letters"}

    async def test_the_table_is_logged_counted_and_listed(self) -> None:
        made = self.encoders(World(), self.RULE)
        await made.of(table("d", "a"))
        assert self.counted() == 1
        ((entry),) = self.quarantine.tables
        assert (entry["table"], "cannot be uuid" in entry["reason"]) == ("public.t", True)

    async def test_other_tables_are_published(self) -> None:
        made = self.encoders(World(), self.RULE)
        await made.of(table("d", "a"))
        rows = await made.of(replace(table("d", "a"), oid=8, name="u"))
        assert [*made.ready.values()] == [rows]

    async def test_a_table_that_fits_again_is_released(self) -> None:
        world = World()
        made = self.encoders(world, self.RULE)
        await made.of(table("d", "a"))
        fits = table("d", "a", columns=("a", "c"))
        assert isinstance(await made.of(fits), Rows)
        assert (made.known(fits), self.quarantine.tables, self.counted()) == (made.ready[7], [], 0)
        assert isinstance(await made.of(table("d", "a")), RefusedRows)
        assert 7 not in made.ready, "if it were ready, a run would encode the rows as rows of the former version"

    async def test_a_table_whose_schema_is_too_large_is_quarantined(self) -> None:
        world = World(faults={"register": [PoisonError("Too large.")]})
        rows = await self.encoders(world).of(table("d", "a"))
        (found,) = self.letters(rows, world, messages.Insert(None, 7, [b"1", b"2", b"3"]))
        assert found["detail"] == "Too large."

    async def test_a_table_that_has_had_too_many_columns_is_quarantined(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pgsluice.pipeline.encoders.FORMER_COLUMNS_MAX", 3)
        made = self.encoders(World())
        for number, kind in enumerate((Rows, Rows, Rows, RefusedRows)):
            assert isinstance(await made.of(table("d", "a", columns=("a", f"b{number}"))), kind)
        assert "has had more than 3 columns" in self.quarantine.tables[0]["reason"]

    async def test_a_refusal_of_the_registry_is_handled_by_another_setting(self) -> None:
        world = World(faults={"register": [IncompatibleSchema("Not like this.")]})
        with pytest.raises(IncompatibleSchema):
            await self.encoders(world).of(table("d", "a"))

    async def test_a_table_whose_topic_has_the_rows_of_another_table_is_quarantined(self) -> None:
        world = World()
        made = self.encoders(world, TableRule("sales.*", topic="{prefix}.public.{table}"))
        await made.of(table("d", "a"))
        other = replace(table("d", "a"), oid=8, namespace="sales")
        assert isinstance(await made.of(other), RefusedRows)
        assert "which has the rows of another table" in self.quarantine.tables[0]["reason"]

    async def test_changes_of_a_table_in_quarantine_count_as_delivered(self) -> None:
        made = self.encoders(World(), TableRule("public.t", topic="{prefix}.transactions"))
        change = Change(self.TRANSACTION, table("d", "a"), encode(messages.Insert(None, 7, [b"1", b"2", b"3"])))
        assert made.delivers(change)

    async def test_the_status_names_up_to_a_hundred_tables(self) -> None:
        quarantine = Quarantine(Metrics())
        for number in range(110):
            quarantine.add(replace(table("d"), name=f"t{number}"), "a reason")
        assert [one["table"] for one in quarantine.tables] == [f"public.t{number}" for number in range(10, 110)]


async def test_messages_have_a_topic_and_schemas_from_the_first_one_on() -> None:
    world = World()
    made = encoders(world)
    assert world.topics == set()
    encoder = await made.of_messages()
    assert await made.of_messages() is encoder
    assert world.topics == {"shop.messages"}
    assert world.schemas == {"shop.messages-value": [message_schema("shop")], "shop.messages-key": ["string"]}


class TestWhetherAChangeIsDelivered:
    TRANSACTION = Transaction(700, 100, 5)
    INSERT = encode(messages.Insert(None, 7, [b"1"]))
    TRUNCATE = encode(messages.Truncate(None, cascade=False, restart_identity=False, relation_oids=(7,)))

    def delivers(self, found: Encoders, relation: Relation, message: bytes) -> bool:
        return found.delivers(Change(self.TRANSACTION, relation, message))

    def test_a_change_of_a_published_table_is_delivered(self) -> None:
        assert self.delivers(encoders(World()), table("d"), self.INSERT)
        assert self.delivers(encoders(World()), table("d"), self.TRUNCATE)

    def test_a_change_of_an_excluded_table_is_not_delivered(self) -> None:
        found, out = encoders(World()), replace(table("d"), name="out")
        assert [self.delivers(found, out, self.INSERT) for _ in range(2)] == [False, False]
        renamed = replace(out, name="in")
        assert self.delivers(found, renamed, self.INSERT), "it is another version of the table"

    def test_a_truncate_is_not_delivered_if_truncates_are_skipped(self) -> None:
        tables = Tables("shop", truncate=False)
        found = Encoders(FakeSource(World()), FakeSink(World()), FakeRegistry(World()), tables, TypeOptions())
        assert not self.delivers(found, table("d"), self.TRUNCATE)
        assert self.delivers(found, table("d"), self.INSERT)


def described(name: str, oid: int, identity: str = "d", *, keyed: bool = True) -> messages.Relation:
    columns = (messages.RelationColumn(keyed, "a", INT4.oid, -1),)
    return messages.Relation(None, oid, "public", name, identity, columns)


async def test_topics_of_new_tables_are_prepared_if_their_key_is_certain() -> None:
    world = World()
    found = encoders(world)
    others = [
        described("i", 8, "i"),
        described("out", 9),
        described("f", 10, "f"),
        described("bare", 11, keyed=False),
        described("known", 7),
        described("d", 12),
    ]
    await found.of(table("d", "a"), ())
    assert world.prepared == []
    await found.of(replace(table("d", "a"), name="another", oid=13), others)
    assert world.prepared == [["shop.public.i", "shop.public.d"]]


@pytest.mark.parametrize(("keys", "prepared"), [(("a",), [["shop.public.t"]]), ((), [])])
async def test_keys_in_a_rule_make_the_identity_irrelevant(keys: tuple[str, ...], prepared: list[list[str]]) -> None:
    world = World()
    await encoders(world, keys).of(replace(table("d", "a"), name="another", oid=13), [described("t", 7, "f")])
    assert world.prepared == prepared
