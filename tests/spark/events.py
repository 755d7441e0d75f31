"""Schemas of the wire contract, and events that fastavro encodes."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro

from pgsluice_spark.schema import SchemaVersion

Json = dict[str, Any]

CONTRACT = Path(__file__).parents[2] / "contract"

COMMITTED = datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=UTC)


def decimal(precision: int, scale: int) -> Json:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def logical(kind: str, logical_type: str) -> Json:
    return {"type": kind, "logicalType": logical_type}


def column(name: str, schema: str | Json, **properties: str) -> Json:
    return {"name": name, "type": ["null", schema], "default": None, **properties}


def envelope_schema(columns: list[Json]) -> Json:
    """Return the contract's envelope schema for rows with these columns."""
    envelope: Json = json.loads((CONTRACT / "envelope.avsc").read_text())
    before = next(field for field in envelope["fields"] if field["name"] == "before")
    before["type"][1]["fields"] = columns
    return envelope


def key_schema(columns: dict[str, str | Json]) -> Json:
    """Return the contract's key schema with these columns."""
    key: Json = json.loads((CONTRACT / "key.avsc").read_text())
    return {**key, "fields": [{"name": name, "type": kind} for name, kind in columns.items()]}


def change(op: str, lsn: int, seq: int = 0, **fields: Any) -> Json:  # noqa: ANN401 - any field of an event
    """Return an event with defaults for everything that a test does not specify."""
    event: Json = {
        "op": op,
        "schema": "public",
        "table": "orders",
        "before": None,
        "before_image": "none",
        "after": None,
        "unchanged": [],
        "raw": {},
        "epoch": 1,
        "lsn": lsn,
        "seq": seq,
        "xid": 700,
        "ts": COMMITTED,
        "origin": None,
        "flags": [],
    }
    return {**event, **fields}


def encode(schema: Json, datum: Json) -> bytes:
    """Return the Avro body of ``datum``."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), datum)
    return body.getvalue()


def frame(identifier: int, schema: Json, datum: Json) -> bytes:
    """Return ``datum`` in Confluent's wire format."""
    return b"\x00" + identifier.to_bytes(4, "big") + encode(schema, datum)


def versions(subject: str, schemas: dict[int, Json]) -> list[SchemaVersion]:
    """Return the versions of a subject as a registry returns them. ``schemas`` has the schemas by id, oldest first."""
    return [
        SchemaVersion(subject, number, identifier, json.dumps(schema))
        for number, (identifier, schema) in enumerate(schemas.items(), start=1)
    ]
