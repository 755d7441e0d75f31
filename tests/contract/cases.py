"""The cases of the wire contract, each with the golden messages that the daemon's encoders write for it.

``python -m tests.contract`` writes these messages to the files of ``contract/``. The unit tests compare the messages
with the files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import fastavro

from pgsluice.avro.binary import encode_string
from pgsluice.avro.encoder import KeyEncoder, RowEncoder
from pgsluice.avro.schema import (
    TableFields,
    cut_schema,
    dead_letter_schema,
    envelope_schema,
    key_fields,
    key_schema,
    message_schema,
    namespace,
)
from pgsluice.avro.wire import Schema, header, normalise, schema_id
from pgsluice.cut import Cut, cut_records
from pgsluice.dead_letter import DeadLetter, Reason, SourceChange
from pgsluice.envelope import ChangeEncoder, DeadLetters, InsertOp, MessageEncoder, Stamp
from pgsluice.loads import FIRST_SEQ, LoadMark, LoadPosition, State
from pgsluice.pgoutput.messages import (
    UNCHANGED,
    Delete,
    Insert,
    LogicalMessage,
    RowMessage,
    Truncate,
    TupleData,
    Update,
)
from pgsluice.record import Record, Target
from pgsluice.relation import CATALOG, Column, PgType, Relation
from pgsluice.transaction import Transaction
from tests.contract.types import KEY_TYPES, OPTIONS, TYPES, SampleTable, numeric

PREFIX = "shop"


@dataclass(frozen=True)
class Part:
    """The key or the value of a record: the name of its schema, and its bytes in Confluent's wire format."""

    schema: str
    data: bytes


@dataclass(frozen=True)
class Message:
    """A Kafka record. If ``key`` is None, its key is null. If ``value`` is None, it is a tombstone."""

    key: Part | None
    value: Part | None


# --- the example table

COLUMNS = (
    ("id", 20, "int8", -1),
    ("customer", 25, "text", -1),
    ("amount", 1700, "numeric", numeric(10, 2)),
    ("paid", 16, "bool", -1),
    ("created", 1184, "timestamptz", -1),
    ("delivery", 1082, "date", -1),
    ("order lines", 3802, "jsonb", -1),
    ("tags", 1009, "_text", -1),
)
ROW: TupleData = [
    b"42",
    "Grüße".encode(),
    b"12.34",
    b"t",
    b"2026-01-02 03:04:05.678901+00",
    b"2026-01-05",
    b'{"a": 1}',
    b'{red,NULL,"a b"}',
]
ONLY_KEY: TupleData = [b"42", *([None] * 7)]
POOR: TupleData = [b"42", None, b"NaN", None, b"infinity", b"0044-03-15 BC", UNCHANGED, b"{{1,2},{3,4}}"]
POOR_BEFORE: TupleData = [b"42", None, b"Infinity", None, b"-infinity", b"infinity", b"1", b"[0:0]={x}"]


def orders(identity: str) -> Relation:
    """Return the example table with this replica identity."""
    columns = (
        Column(name, PgType(oid, CATALOG, kind), typmod, is_key=identity == "f" or (identity == "d" and name == "id"))
        for name, oid, kind, typmod in COLUMNS
    )
    return Relation(7, "public", "orders", identity, tuple(columns))


def row(*values: Any) -> TupleData:  # noqa: ANN401 - bytes, None or UNCHANGED
    """Return ROW with its first values replaced."""
    return [*values, *ROW[len(values) :]]


def with_unchanged(*values: bytes) -> TupleData:
    """Return ROW with its first values replaced. Its TOASTed value is marked as not sent."""
    return [UNCHANGED if value == b'{"a": 1}' else value for value in row(*values)]


# --- schemas


def _envelope(relation: Relation, fields: Any) -> Schema:  # noqa: ANN401 - whatever envelope_schema takes
    return envelope_schema(namespace(PREFIX, relation.namespace, relation.name), fields)


def _key(relation: Relation, fields: Any) -> Schema:  # noqa: ANN401 - whatever key_schema takes
    return key_schema(namespace(PREFIX, relation.namespace, relation.name), fields)


def _orders_schemas() -> tuple[Schema, Schema]:
    relation = orders("d")
    fields = TableFields(OPTIONS).assign(relation)
    return _envelope(relation, fields), _key(relation, key_fields(relation, fields, ("id",), OPTIONS))


SCHEMAS: dict[str, Schema] = {
    "envelope": _orders_schemas()[0],
    "key": _orders_schemas()[1],
    "message": message_schema(PREFIX),
    "cut": cut_schema(PREFIX),
    "dead_letter": dead_letter_schema(PREFIX),
    "types": _envelope(TYPES.relation, TYPES.fields()),
    "keys": _envelope(KEY_TYPES.relation, KEY_TYPES.fields()),
    "keys_key": _key(KEY_TYPES.relation, KEY_TYPES.key_fields()),
    "string": "string",
}
"""The schemas by the name of their file. ``string`` has no file, because it is the schema of keys that are only a
string, such as the name of the pipeline."""

IDS = {name: schema_id(normalise(schema)) for name, schema in SCHEMAS.items()}

TRANSACTION = Transaction(xid=4242, commit_lsn=0x16B374D848, commit_ts=820_000_000_123_456, origin="elsewhere")
LOCAL = Transaction(TRANSACTION.xid, TRANSACTION.commit_lsn, TRANSACTION.commit_ts)
LOAD_LSN = TRANSACTION.commit_lsn
"""The LSN of the loaded rows. Their negative ``seq`` puts them before the events of the transaction with this LSN."""


# --- changes

CHANGES: Mapping[str, tuple[str, RowMessage]] = {
    "insert": ("d", Insert(None, 7, ROW)),
    "insert with values that Avro cannot hold, or that were not sent": ("d", Insert(None, 7, POOR)),
    "insert without key": ("n", Insert(None, 7, ROW)),
    "update": ("d", Update(None, 7, None, None, row(b"42", b"x"))),
    "update with an unchanged value": ("d", Update(None, 7, None, None, with_unchanged(b"42", b"x"))),
    "update with the old key": ("d", Update(None, 7, ONLY_KEY, None, row(b"42", b"x"))),
    "update under replica identity full": ("f", Update(None, 7, None, ROW, row(b"42", b"x"))),
    "update under replica identity full with an unchanged value": (
        "f",
        Update(None, 7, None, ROW, with_unchanged(b"42", b"x")),
    ),
    "update with values that Avro cannot hold, before and after": ("f", Update(None, 7, None, POOR_BEFORE, POOR)),
    "update of the key": ("d", Update(None, 7, ONLY_KEY, None, row(b"43"))),
    "update of the key with an unchanged value": ("d", Update(None, 7, ONLY_KEY, None, with_unchanged(b"43"))),
    "update of the key under replica identity full": ("f", Update(None, 7, None, POOR_BEFORE, row(b"43"))),
    "delete": ("d", Delete(None, 7, ONLY_KEY, None)),
    "delete under replica identity full": ("f", Delete(None, 7, None, ROW)),
    "delete of values that Avro cannot hold": ("f", Delete(None, 7, None, POOR_BEFORE)),
    "truncate": ("d", Truncate(None, False, False, (7,))),  # noqa: FBT003 - the message's fields
    "truncate with cascade": ("d", Truncate(None, True, True, (7,))),  # noqa: FBT003 - the message's fields
}


def change_records(identity: str, message: RowMessage) -> list[Record]:
    """Return the records of a change of the example table, including tombstones."""
    return _encoder(identity, "c").encode(message, Stamp(TRANSACTION, 2, commit_timestamps=False))


def read_records(message: Insert) -> list[Record]:
    """Return the record of a loaded row."""
    stamp = Stamp(Transaction(0, LOAD_LSN, TRANSACTION.commit_ts), 2, commit_timestamps=False)
    stamp.next_seq = FIRST_SEQ + 1
    return _encoder("d", "r").encode(message, stamp)


def _encoder(identity: str, insert_op: InsertOp) -> ChangeEncoder:
    relation = orders(identity)
    fields = TableFields(OPTIONS).assign(relation)
    key = None if identity == "n" else KeyEncoder(relation, key_fields(relation, fields, ("id",), OPTIONS))
    target = Target("shop.public.orders", IDS["envelope"], None if key is None else IDS["key"])
    row_encoder = RowEncoder(relation, fields)
    return ChangeEncoder(relation, target, row_encoder, key, tombstones=True, truncate=True, insert_op=insert_op)


def type_records(table: SampleTable, message: RowMessage) -> list[Record]:
    """Return the records of one change of ``table``, which is TYPES or KEY_TYPES."""
    relation, fields = table.relation, table.fields()
    key = KeyEncoder(relation, table.key_fields()) if table.keyed else None
    target = Target(f"shop.public.{table.name}", IDS[table.name], IDS["keys_key"] if table.keyed else None)
    encoder = ChangeEncoder(relation, target, RowEncoder(relation, fields), key, tombstones=False, truncate=True)
    return encoder.encode(message, Stamp(LOCAL, 1, commit_timestamps=False))


def _insert(values: TupleData) -> RowMessage:
    return Insert(None, 7, values)


READ: Mapping[str, Insert] = {"row that was read": Insert(None, 7, ROW)}

TYPE_CASES: Mapping[str, tuple[SampleTable, RowMessage]] = {
    "types": (TYPES, _insert(TYPES.row(0))),
    "types, lower ends": (TYPES, _insert(TYPES.row(1))),
    "types, upper ends": (TYPES, _insert(TYPES.row(2))),
    "types, null": (TYPES, _insert([None] * len(TYPES.samples))),
    "types, values that Avro cannot hold": (TYPES, _insert(TYPES.misfits())),
    "keys": (KEY_TYPES, _insert(KEY_TYPES.row(0))),
    "keys, lower ends": (KEY_TYPES, Delete(None, 7, KEY_TYPES.row(1), None)),
    "keys, upper ends": (KEY_TYPES, Delete(None, 7, KEY_TYPES.row(2), None)),
}

# --- messages, dead letters, cuts

MESSAGES: Mapping[str, tuple[Transaction | None, str, bytes]] = {
    "message": (TRANSACTION, "audit", b"anything \x00\xff"),
    "message of a transaction without origin": (LOCAL, "Prüfung", b""),
    "message outside transactions": (None, "audit", b"{}"),
}


def message_record(transaction: Transaction | None, prefix: str, content: bytes) -> Record:
    """Return the record of a message of pg_logical_emit_message."""
    encoder = MessageEncoder(Target("shop.messages", IDS["message"], IDS["string"]))
    message = LogicalMessage(None, transaction is not None, 0x16B374D848, prefix, content)
    if transaction is None:
        (record,) = encoder.encode_standalone(message, 2)
    else:
        (record,) = encoder.encode(message, Stamp(transaction, 2, commit_timestamps=False))
    return record


ORIGIN = SourceChange("public", "orders", "u", 2, TRANSACTION.commit_lsn, 5, TRANSACTION.xid, 1_766_684_800_123_456)
DEAD_LETTERS: Mapping[str, DeadLetter] = {
    "dead letter of a record that is too large": DeadLetter(
        *(ORIGIN, "shop.public.orders", Reason.RECORD_TOO_LARGE, "larger than the topic takes"),
        *(b"\0\0\0\0\1\x54", 2_000_000, 1_048_588),
    ),
    "dead letter of a key that Avro cannot hold": DeadLetter(
        ORIGIN, "shop.public.orders", Reason.KEY_NOT_REPRESENTABLE, "key column amount has a value outside its type"
    ),
    "dead letter of a record that was refused": DeadLetter(
        ORIGIN, "shop.public.orders", Reason.REFUSED, "INVALID_RECORD", b"\0\0\0\0\1\x54", 100
    ),
}


def dead_letter_record(letter: DeadLetter) -> Record:
    """Return the record of a dead letter."""
    target = Target("shop.dead_letters", IDS["dead_letter"], IDS["string"])
    return DeadLetters(target, lambda _: None).record(letter, 0)


TOPIC_IDS = {"shop.public.orders": "rJiaMjVhQRqFCcZBLSqF_Q", "shop.public.customers": "WJ2V0XhaQX2mCs4bHf1uPg"}
PLACES = {("shop.public.orders", 0): (10, 12), ("shop.public.orders", 1): (20, 23)}
OTHER_PLACE = {("shop.public.customers", 0): (7, 7)}


def _worked() -> Cut:
    """Return a cut with one insert and one truncate."""
    cut = Cut(end_lsn=0x16B374D900)
    cut.add(TRANSACTION, 0x16B374D880)
    cut.add_records((), 0, 2)
    for case in ("insert", "truncate"):
        for record in change_records(*CHANGES[case]):
            cut.count(record.target, {str(record.op): 1}, dict.fromkeys(range(2) if record.op == "t" else (1,), 1))
    return cut


def _loading() -> Cut:
    """Return a cut with one loaded row, which is the table's only row."""
    cut = Cut(end_lsn=LOAD_LSN)
    cut.add_records((), 0, 1)
    for record in read_records(READ["row that was read"]):
        cut.count(record.target, {str(record.op): 1}, {1: 1})
    cut.add_load((), LoadPosition(LOAD_LSN, 4), [_mark("begin", 0, 0), _mark("rows", 2, 1), _mark("end", 3, 1)], ())
    return cut


def _altered() -> Cut:
    """Return a cut with a mark that says that an ALTER TABLE has changed the rows of a table."""
    cut = Cut(end_lsn=LOAD_LSN)
    cut.add_load((), LoadPosition(LOAD_LSN, 5), [replace(_mark("stale", 4, 1), replaces=False)], ())
    return cut


def _mark(state: State, place: int, rows: int) -> LoadMark:
    return LoadMark(
        *("shop.public.orders", "public", "orders", "6f1e3c0a5b7d4e2f9a8b7c6d5e4f3a2b", state),
        *(2, LOAD_LSN, FIRST_SEQ + place, rows),
        replaces=True,
    )


def cut_parts() -> dict[str, list[dict[str, Any]]]:
    """Return the cut records of each case, before they are encoded."""
    identity = {"pipeline": PREFIX, "cut": 7, "epoch": 2}
    (full,) = cut_records(_worked(), identity, {**PLACES, **OTHER_PLACE}, TOPIC_IDS, full=True)
    # The daemon splits only cut records that are larger than half a megabyte. Split a small cut record here instead.
    halves = [{**full, "parts": 2, "part": part, "topics": [topic]} for part, topic in enumerate(full["topics"])]
    return {
        "cut": cut_records(_worked(), identity, PLACES, TOPIC_IDS, full=False),
        "cut without changes": cut_records(Cut(end_lsn=0x16B374DA00), identity, {}, TOPIC_IDS, full=False),
        "cut that lists all partitions": [full],
        "cut in parts": halves,
        "cut with rows that were read": cut_records(
            _loading(), identity, {("shop.public.orders", 1): (23, 24)}, TOPIC_IDS, full=False
        ),
        "cut with rows that are stale": cut_records(_altered(), identity, {}, {}, full=False),
    }


def _cut_message(record: dict[str, Any]) -> Message:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMAS["cut"]), record)
    value = header(IDS["cut"]) + out.getvalue()
    return Message(Part("string", header(IDS["string"]) + encode_string(PREFIX)), Part("cut", value))


# --- all cases


def messages() -> dict[str, list[Message]]:
    """Return the messages of every case, in the order in which they are written to Kafka."""
    names = {identifier: name for name, identifier in IDS.items()}

    def of(records: Iterable[Record]) -> list[Message]:
        return [Message(part(record.key), part(record.value)) for record in records]

    def part(data: bytes | None) -> Part | None:
        return None if data is None else Part(names[int.from_bytes(data[1:5], "big")], data)

    return {
        **{name: of(change_records(*change)) for name, change in CHANGES.items()},
        **{name: of(read_records(row)) for name, row in READ.items()},
        **{name: of([message_record(*message)]) for name, message in MESSAGES.items()},
        **{name: of([dead_letter_record(letter)]) for name, letter in DEAD_LETTERS.items()},
        **{name: [_cut_message(part) for part in parts] for name, parts in cut_parts().items()},
        **{name: of(type_records(*case)) for name, case in TYPE_CASES.items()},
    }
