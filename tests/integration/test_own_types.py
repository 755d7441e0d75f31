"""Tests user-defined types that are dropped or altered before their rows are read, or whose names have a dot."""

from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.support.kafka import read_committed
from tests.support.weather import Pipeline, Start

ROW = "'{sad,NULL}', '{(1,1),(0,0);(2,2),(1,1)}', '{\"(1,x)\"}'"
MOODS, CORNERS, ODD = "{sad,NULL}", "{(1,1),(0,0);(2,2),(1,1)}", '{"(1,x)"}'


def changes(pipeline: Pipeline, table: str) -> list[dict[str, Any]]:
    """Return the change events of a table."""
    pipeline.wait_until_confirmed()
    topic = f"{pipeline.daemon.name}.public.{table}"
    context = SerializationContext(topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": pipeline.daemon.url, "timeout": 10}) as registry:
        deserialize = AvroDeserializer(registry)
        return [deserialize(record.value(), context) for record in read_committed(pipeline.kafka, topic)]


def test_arrays_whose_types_were_dropped_keep_their_fields(start: Start) -> None:
    """The delimiter of a dropped array type is unknown. Arrays of boxes use a semicolon, and all others use a comma."""
    pipeline = start()
    with pipeline.database.connect() as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE \"my.hstore\" AS (a int, b text)")
        connection.execute("CREATE DOMAIN corner AS box")
        for table in ("known", "fresh"):
            columns = 'id int PRIMARY KEY, moods mood[], corners corner[], odd "my.hstore"[]'
            connection.execute(f"CREATE TABLE {table} ({columns})")
        connection.execute(f"INSERT INTO known VALUES (1, {ROW})")
        pipeline.wait_until_confirmed()
        pipeline.daemon.stop()
        connection.execute(f"INSERT INTO known VALUES (2, {ROW})")
        connection.execute(f"INSERT INTO fresh VALUES (3, {ROW})")
        connection.execute('DROP TYPE mood CASCADE; DROP DOMAIN corner CASCADE; DROP TYPE "my.hstore" CASCADE')
        connection.execute("INSERT INTO known VALUES (4)")
        pipeline.daemon.start()
    one, two, four = changes(pipeline, "known")
    (three,) = changes(pipeline, "fresh")
    corners = ["(1,1),(0,0)", "(2,2),(1,1)"]
    assert one["after"] == {"id": 1, "moods": ["sad", None], "corners": corners, "odd": ["(1,x)"]}
    assert two["after"] == {"id": 2, "moods": None, "corners": None, "odd": None}
    assert two["raw"] == {"moods": MOODS, "corners": CORNERS, "odd": ODD}
    assert three["after"] == {"id": 3, "moods": MOODS, "corners": CORNERS, "odd": ODD}
    assert four["after"] == {"id": 4}


def test_a_composite_may_gain_an_attribute_of_a_new_type(start: Start) -> None:
    """In binary format, values of the composite refer to a type that was unknown when the table was described."""
    pipeline = start({"postgres": {"binary": True}})
    with pipeline.database.connect() as connection:
        connection.execute("CREATE TYPE pair AS (a int, b text); CREATE TABLE pairs (id int PRIMARY KEY, v pair)")
        connection.execute("INSERT INTO pairs VALUES (1, (1, 'x'))")
        pipeline.wait_until_confirmed()
        connection.execute("CREATE TYPE mood AS ENUM ('sad'); ALTER TYPE pair ADD ATTRIBUTE m mood CASCADE")
        connection.execute("INSERT INTO pairs VALUES (2, (2, 'y', 'sad'))")
        connection.execute("BEGIN; INSERT INTO pairs VALUES (3, NULL), (4, (4, 'z', 'sad')); COMMIT")
    found = changes(pipeline, "pairs")
    assert [one["after"]["v"] for one in found] == ["(1,x)", "(2,y,sad)", None, "(4,z,sad)"]
    assert "the composite had no attribute of type" in pipeline.daemon.log_text()
