"""Which key, topic and schemas the rows of a table get. Both ends are scripted."""

import pytest

from pgsluice.avro.choices import Choice
from pgsluice.avro.schema import message_schema
from pgsluice.avro.sent.types import TypeDescription
from pgsluice.avro.types import TypeOptions
from pgsluice.envelope import Stamp
from pgsluice.errors import ConfigError
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.messages import BinaryValue
from pgsluice.pipeline.encoders import Encoders
from pgsluice.record import Pending
from pgsluice.relation import Column, PgType, Relation
from pgsluice.tables import TableRule, Tables
from pgsluice.transaction import Transaction
from tests.support.ends import FakeRegistry, FakeSink, FakeSource, World
from tests.support.pgoutput_encoder import encode

INT4 = PgType(23, "pg_catalog", "int4")


def table(identity: str, *keys: str, columns: tuple[str, ...] = ("a", "b", "c")) -> Relation:
    flagged = columns if identity == "f" else keys
    return Relation(7, "public", "t", identity, tuple(Column(name, INT4, -1, name in flagged) for name in columns))


def encoders(world: World, keys: tuple[str, ...] | None = None) -> Encoders:
    tables = Tables("shop", exclude=["public.out"], rules=[TableRule("public.t", keys=keys)])
    return Encoders(FakeSource(world), FakeSink(world), FakeRegistry(world), tables, TypeOptions())


async def key_of(
    relation: Relation, world: World | None = None, keys: tuple[str, ...] | None = None
) -> list[str] | None:
    """Return the fields of the key that the table gets."""
    world = world or World()
    await encoders(world, keys).of(relation)
    schemas = world.schemas.get("shop.public.t-key")
    return [field["name"] for field in schemas[-1]["fields"]] if schemas else None


@pytest.mark.parametrize("identity", ["d", "i"])
async def test_the_key_is_the_replica_identity(identity: str) -> None:
    assert await key_of(table(identity, "c", "a")) == ["a", "c"]


@pytest.mark.parametrize("identity", ["f", "n", "d"])
async def test_where_the_identity_does_not_tell_it_is_the_primary_key_of_the_catalog(identity: str) -> None:
    assert await key_of(table(identity), World(primary_keys={7: ("b",)})) == ["b"]


@pytest.mark.parametrize("identity", ["f", "n", "d"])
async def test_a_table_without_any_has_no_key(identity: str) -> None:
    assert await key_of(table(identity)) is None


async def test_keys_of_a_rule_come_first() -> None:
    assert await key_of(table("f"), World(primary_keys={7: ("b",)}), keys=("c",)) == ["c"]


async def test_keys_must_be_among_the_old_values_that_are_sent() -> None:
    with pytest.raises(ConfigError, match="REPLICA IDENTITY FULL"):
        await key_of(table("d", "a"), keys=("b",))


async def test_when_the_catalog_has_moved_on_the_key_registered_last_holds() -> None:
    world = World(primary_keys={7: ("b",)})
    await key_of(table("f"), world)
    world.primary_keys[7] = ("renamed",)
    assert await key_of(table("f"), world) == ["b"]


async def test_when_that_does_not_help_either_it_says_so() -> None:
    with pytest.raises(ConfigError, match=r"primary key of table public\.t \(renamed\) is not among its published"):
        await key_of(table("f"), World(primary_keys={7: ("renamed",)}))


async def test_a_table_that_is_left_out_registers_nothing() -> None:
    world = World()
    relation = Relation(8, "public", "out", "d", table("d", "a").columns)
    found = await encoders(world).of(relation)
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
async def test_only_types_that_come_in_binary_format_and_are_not_built_in_are_asked_about(
    *, binary: bool, relation: Relation, asked: list[list[int]]
) -> None:
    world = World(types={16_400: TypeDescription(16_400, "public", "mood", "enum_send")})
    types = TypeOptions(binary=binary)
    made = Encoders(FakeSource(world), FakeSink(world), FakeRegistry(world), Tables("shop"), types)
    await made.of(relation)
    assert world.described == asked


async def test_binary_values_of_types_that_were_asked_about_are_read() -> None:
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
    """Return the type of each field of the row registered last."""
    (before,) = (field for field in world.schemas["shop.public.t-value"][-1]["fields"] if field["name"] == "before")
    return {field["name"]: field["type"][1] for field in before["type"][1]["fields"]}


@pytest.mark.parametrize("binary", [False, True])
async def test_arrays_are_asked_about_in_any_format(*, binary: bool) -> None:
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


async def test_messages_have_a_topic_and_schemas_from_the_first_one_on() -> None:
    world = World()
    made = encoders(world)
    assert world.topics == set()
    encoder = await made.of_messages()
    assert await made.of_messages() is encoder
    assert world.topics == {"shop.messages"}
    assert world.schemas == {"shop.messages-value": [message_schema("shop")], "shop.messages-key": ["string"]}
