"""Processes arbitrary records of service topics in all the ways in which pgsluice processes them.

The property tests and the fuzzer use this module. Each function returns a description of the result. The code under
test may raise only PgsluiceError and ValueError. If it raises ValueError, pgsluice adds the topic and the offset to the
message.
"""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from pgsluice.avro.key_history import KeyHistory
from pgsluice.avro.records import record_reader
from pgsluice.avro.schema import FieldHistory, TableFields, cut_schema, envelope_schema, key_schema
from pgsluice.avro.types import TypeOptions
from pgsluice.avro.wire import header, normalise, schema_id
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import TABLES_MAX, Answer, Command, read_answer, read_command
from pgsluice.cut import Recorded
from pgsluice.dead_letter import origin_of
from pgsluice.errors import HistoryError, PgsluiceError
from pgsluice.history import Facts, Identity, ServerIdentity, resume
from pgsluice.kafka.account import Account, LastCuts, TopicState, changes
from pgsluice.lsn import format_lsn
from pgsluice.registry.canonical import canonical
from pgsluice.registry.difference import difference
from pgsluice.registry.schema_record import Registered, parse
from pgsluice.registry.store import SchemaStore
from pgsluice.relation import CATALOG, Column, PgType, Relation
from pgsluice.tables import TablePattern

RELATION: Final = Relation(
    16_384,
    "public",
    "orders",
    "d",
    (
        Column("id", PgType(23, CATALOG, "int4"), -1, is_key=True),
        Column("price", PgType(1700, CATALOG, "numeric"), (10 << 16 | 2) + 4, is_key=False),
        Column("tags", PgType(1009, CATALOG, "_text"), -1, is_key=False),
        Column("moods", PgType(16_401, "public", "_mood"), -1, is_key=False),
    ),
)
OPTIONS: Final = TypeOptions(elements={16_401: None})
FIELDS: Final = TableFields(OPTIONS).assign(RELATION)
ENVELOPE: Final = envelope_schema("shop.public.orders", FIELDS)
KEY: Final = key_schema("shop.public.orders", FIELDS[:1])
CUT: Final = cut_schema("shop")
CUT_TEXT: Final = normalise(CUT)
CUT_ID: Final = schema_id(CUT_TEXT)
DESCRIPTION: Final[dict[str, Any]] = {
    "oid": 16_384,
    "schema": "public",
    "table": "orders",
    "replica_identity": "d",
    "key": ["id"],
    "columns": [{"name": "id", "type": "int4", "type_oid": 23, "typmod": -1}],
}
CHECKPOINT: Final = Checkpoint("shop", "slot", "7", timeline=1, epoch=2, cut=9, end_lsn=1000, last_end_lsn=900)
COMMAND: Final = Command("5f3a", "start", 1_700_000_000_000, ("public.orders", "public.*"), "id > 7")
ANSWER: Final = Answer("5f3a", "loaded", "", ("public.orders",), 1000)
RECORD: Final = Registered("shop.public.orders-value", 1, 77, normalise(ENVELOPE), DESCRIPTION)

_SERVER = ServerIdentity("7", 1, 5000)
_IDENTITY = Identity("shop", "slot", "selection", is_atomic=True, adopt=False)


def take_checkpoint(value: bytes) -> str:
    """Read the record as a checkpoint, and use it in the same way as a session that starts."""
    try:
        found = Checkpoint.from_json(value, "Record 5 of topic shop.checkpoint")
    except HistoryError as error:
        assert str(error).startswith("Record 5 of topic shop.checkpoint is not one")  # noqa: PT017 - the error is optional
        str(error).encode()
        return "refused checkpoint"
    assert Checkpoint.from_json(found.to_json()) == found
    format_lsn(found.end_lsn)
    facts = Facts([found], Recorded(2, 9, 1000, positions={9: (2, 1000)}), 1000, _SERVER, (), is_standby=False)
    for identity in (_IDENTITY, replace(_IDENTITY, adopt=True)):
        try:
            begun = resume(facts, identity).checkpoint
        except PgsluiceError as error:
            str(error).encode()
        else:
            assert Checkpoint.from_json(begun.to_json()) == begun
    return "accepted checkpoint"


def take_schema(value: bytes | None) -> str:
    """Read the record as a schema, and use it in the same way as the registry and the encoders."""
    store = SchemaStore()
    try:
        found = parse(value)
        store.add(found, "shop.schemas")
    except ValueError as error:
        str(error).encode()
        return "refused schema"
    assert parse(found.value()) == found
    _propose(store, found)
    schema = json.loads(found.schema)
    assigned = TableFields(OPTIONS, FieldHistory([schema])).assign(RELATION)
    normalise(envelope_schema("shop.public.orders", assigned)).encode()
    KeyHistory([schema]).last_among(set())
    difference(found.postgres, DESCRIPTION).encode()
    try:
        canonical(schema)
    except ValueError:
        return "accepted schema that is not Avro"
    return "accepted schema"


def _propose(store: SchemaStore, found: Registered) -> None:
    """Register another schema in the subject, and check that it can be read back."""
    proposed, _ = store.propose(found.subject, {"type": "string", "doc": "another"}, None)
    assert parse(proposed.value()) == proposed
    store.add(proposed, "shop.schemas")
    assert {one.id for one in store.versions(found.subject)} == {found.id, proposed.id}


def take_cut(value: bytes, schema: str = CUT_TEXT) -> str:
    """Read the record as a cut record that was written with ``schema``, and compare its offsets with the topics."""
    read = record_reader(CUT, lambda identifier: schema if identifier == CUT_ID else None)
    last = LastCuts()
    try:
        last.add(read(value))
    except ValueError as error:
        str(error).encode()
        return "refused cut"
    topics = {topic: TopicState("other", 3) for topic in last.account.topics}
    changes(last.account, Account(topics, dict.fromkeys(last.account.ends, 0)))
    return "accepted cut"


def take_cut_of(schema: str, body: bytes) -> str:
    """Read ``body`` as a cut record that was written with ``schema``, which may be any schema."""
    return take_cut(header(CUT_ID) + body, schema)


def take_command(value: bytes | None) -> str:
    """Read the record as a command, like the pipeline, and as an answer, like the command line."""
    answer = read_answer(value)
    if answer is not None:
        answer.detail.encode()
    try:
        found = read_command(value)
    except ValueError as error:
        str(error).encode()
        return "refused command"
    if found is None:
        return "answer"
    assert read_command(found.to_json()) == found
    for text in found.tables[:TABLES_MAX]:
        with suppress(ValueError):
            TablePattern.parse(text).matches("public", "orders")
    Answer(found.id, "refused", found.where).to_json()
    return "accepted command"


def take_message(value: bytes) -> str:
    """Find the change in a record that Kafka has refused."""
    found = origin_of(value, ENVELOPE, KEY)
    return "no change" if found is None else "accepted change"
