"""Reads the golden messages of contract/ with other projects' code: Confluent's deserializer and Avro's Java library.

The unit tests read them with fastavro, and tests/spark with Spark's from_avro.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from prometheus_client import CollectorRegistry

from pgsluice.app.http.health import Health
from pgsluice.app.http.server import HttpServer
from pgsluice.registry.store import SchemaStore
from tests.contract.values import json_of, plain
from tests.support.java_avro import Task, ask

CONTRACT = Path(__file__).parents[2] / "contract"
GOLDEN: dict[str, Any] = json.loads((CONTRACT / "golden.json").read_text())
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in CONTRACT.glob("*.avsc")} | {"string": "string"}
PARTS = [
    (f"{kind} of {case}", kind, part)
    for case, messages in GOLDEN.items()
    for message in messages
    for kind, part in message.items()
    if part["hex"] is not None
]
INFINITE = ("key of keys, lower ends", "key of keys, upper ends")


@pytest.fixture
async def registry() -> AsyncIterator[str]:
    """Serve the schemas of contract/ as the daemon would, each in a subject of keys and in a subject of values."""
    store = SchemaStore()
    for name, schema in SCHEMAS.items():
        for kind in ("key", "value"):
            store.add(store.propose(f"{name}-{kind}", schema, None)[0])
    store.complete = True
    server = HttpServer("127.0.0.1:0", Health(dict, lambda: None, lambda _: None), CollectorRegistry(), store)
    await server.start()
    yield f"http://127.0.0.1:{server.port}"
    await server.stop()


def deserialized(url: str) -> list[Any]:
    """Return the value that Confluent's deserializer reads from each part of a message, or the error that it raises."""
    found: list[Any] = []
    with SchemaRegistryClient({"url": url}) as client:
        deserialize = AvroDeserializer(client)
        for _, kind, part in PARTS:
            where = SerializationContext(part["schema"], MessageField.KEY if kind == "key" else MessageField.VALUE)
            try:
                found.append(plain(deserialize(bytes.fromhex(part["hex"]), where)))
            except (OverflowError, ValueError) as error:
                found.append(error)
    return found


async def test_confluent_s_deserializer_reads_the_golden_json(registry: str) -> None:
    found = await asyncio.to_thread(deserialized, registry)
    for (name, _, part), value in zip(PARTS, found, strict=True):
        if name in INFINITE:  # the deserializer cannot represent these dates, as docs/events.md says
            assert isinstance(value, OverflowError | ValueError), name
        else:
            assert value == part["json"], name


def test_java_reads_the_golden_json() -> None:
    schemas = [SCHEMAS[part["schema"]] for _, _, part in PARTS]
    answers = ask(
        Task(schema, schema, bytes.fromhex(part["hex"])[5:])
        for schema, (_, _, part) in zip(schemas, PARTS, strict=True)
    )
    for schema, (name, _, part), answer in zip(schemas, PARTS, answers, strict=True):
        assert answer.error is None, name
        assert json_of(schema, answer.value) == part["json"], name
