"""The golden messages of contract/: what we encode is exactly their bytes, and fastavro reads from those their JSON.

A change to a golden message is a change of the wire contract.
"""

import json
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from pgsluice.avro.binary import encode_string
from pgsluice.avro.encoder import KeyEncoder, RowEncoder
from pgsluice.avro.schema import TableFields, key_fields
from pgsluice.avro.types import TypeOptions
from pgsluice.avro.wire import header, normalise, schema_id, unframe
from pgsluice.cut import Cut, cut_records
from pgsluice.envelope import ChangeEncoder, MessageEncoder, Record, Stamp, Target
from pgsluice.pgoutput.messages import UNCHANGED, Delete, Insert, LogicalMessage, Truncate, TupleData, Update
from pgsluice.relation import Column, PgType, Relation
from pgsluice.transaction import Change, RowMessage, Transaction

CONTRACT = Path(__file__).parents[2] / "contract"
SCHEMAS = {name: json.loads((CONTRACT / f"{name}.avsc").read_text()) for name in ("envelope", "key", "cut", "message")}
SCHEMAS["prefix"] = "string"
IDS = {name: schema_id(normalise(schema)) for name, schema in SCHEMAS.items()}
READERS = {name: fastavro.parse_schema(schema) for name, schema in SCHEMAS.items()}
GOLDEN: dict[str, Any] = json.loads((CONTRACT / "golden.json").read_text())

TARGET = Target("shop.public.orders", IDS["envelope"], IDS["key"])
TYPES = (
    ("id", 20, "int8", -1),
    ("customer", 25, "text", -1),
    ("amount", 1700, "numeric", (10 << 16 | 2) + 4),
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
TRANSACTION = Transaction(xid=4242, commit_lsn=0x16B374D848, commit_ts=820_000_000_123_456, origin="elsewhere")


def change(*values: bytes | None) -> TupleData:
    """Return ROW with its first values replaced."""
    return [*values, *ROW[len(values) :]]


ONLY_KEY: TupleData = [b"42", *([None] * 7)]
POOR: TupleData = [b"42", None, b"NaN", None, b"infinity", b"0044-03-15 BC", UNCHANGED, b"{{1,2},{3,4}}"]
CASES: dict[str, tuple[str, RowMessage]] = {
    "insert": ("d", Insert(None, 7, ROW)),
    "insert with values that Avro cannot hold, or that were not sent": ("d", Insert(None, 7, POOR)),
    "update": ("d", Update(None, 7, None, None, change(b"42", b"x"))),
    "update under replica identity full": ("f", Update(None, 7, None, ROW, change(b"42", b"x"))),
    "update of the key": ("d", Update(None, 7, ONLY_KEY, None, change(b"43"))),
    "delete": ("d", Delete(None, 7, ONLY_KEY, None)),
    "delete under replica identity full": ("f", Delete(None, 7, None, ROW)),
    "truncate": ("d", Truncate(None, True, True, (7,))),  # noqa: FBT003
}
LOCAL = Transaction(TRANSACTION.xid, TRANSACTION.commit_lsn, TRANSACTION.commit_ts)
MESSAGES: dict[str, tuple[Transaction | None, str, bytes]] = {
    "message": (TRANSACTION, "audit", b"anything \x00\xff"),
    "message of a transaction without origin": (LOCAL, "Prüfung", b""),
    "message outside transactions": (None, "audit", b"{}"),
}


def records(identity: str, message: RowMessage) -> list[Record]:
    """Return what the message becomes, tombstones included."""
    columns = tuple(
        Column(name, PgType(oid, "pg_catalog", kind), typmod, is_key=identity == "f" or name == "id")
        for name, oid, kind, typmod in TYPES
    )
    relation = Relation(7, "public", "orders", identity, columns)
    fields = TableFields(TypeOptions()).assign(relation)
    key = KeyEncoder(relation, key_fields(relation, fields, ("id",), TypeOptions()))
    encoder = ChangeEncoder(relation, TARGET, RowEncoder(relation, fields), key, tombstones=True, truncate=True)
    return encoder.encode(Change(TRANSACTION, relation, message), Stamp(TRANSACTION, 2, commit_timestamps=False))


def message_record(transaction: Transaction | None, prefix: str, content: bytes) -> Record:
    """Return what a message of pg_logical_emit_message becomes."""
    encoder = MessageEncoder(Target("shop.messages", IDS["message"], IDS["prefix"]))
    message = LogicalMessage(None, transaction is not None, 0x16B374D848, prefix, content)
    if transaction is None:
        (record,) = encoder.encode_standalone(message, 2)
    else:
        (record,) = encoder.encode(message, Stamp(transaction, 2, commit_timestamps=False))
    return record


def cut_message() -> tuple[bytes, bytes]:
    """Return key and value of the record of a cut with one insert and one truncate."""
    cut = Cut(end_lsn=0x16B374D900)
    cut.add(TRANSACTION, 0x16B374D880)
    cut.add_records((), 0, 2)
    for case in ("insert", "truncate"):
        for record in records(*CASES[case]):
            cut.count(record, range(2) if record.op == "t" else (1,))
    offsets = {(TARGET.topic, 0): (10, 12), (TARGET.topic, 1): (20, 23)}
    ids = {TARGET.topic: "rJiaMjVhQRqFCcZBLSqF_Q"}
    (part,) = cut_records(cut, {"pipeline": "shop", "cut": 7, "epoch": 2}, offsets, ids, full=False)
    out = BytesIO()
    fastavro.schemaless_writer(out, READERS["cut"], part)
    return header(schema_id('"string"')) + encode_string("shop"), header(IDS["cut"]) + out.getvalue()


def read(name: str, data: bytes | None) -> Any:  # noqa: ANN401 - what fastavro reads
    """Return a framed message as JSON: timestamps and dates in ISO 8601, decimals as strings, bytes as Avro does."""
    if data is None:
        return None
    found, body = unframe(data)
    assert found == IDS[name]
    return json.loads(json.dumps(fastavro.schemaless_reader(BytesIO(body), READERS[name]), default=plain))


def plain(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value.isoformat() if isinstance(value, date | datetime) else str(Decimal(str(value)))


def as_hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


@pytest.mark.parametrize("case", CASES)
def test_our_encoder_writes_the_golden_bytes(case: str) -> None:
    found = [{"key": as_hex(record.key), "value": as_hex(record.value)} for record in records(*CASES[case])]
    assert found == [{part: golden[part]["hex"] for part in ("key", "value")} for golden in GOLDEN[case]]


@pytest.mark.parametrize("case", CASES)
def test_fastavro_reads_the_golden_json(case: str) -> None:
    for golden in GOLDEN[case]:
        for part, schema in (("key", "key"), ("value", "envelope")):
            data = golden[part]["hex"]
            assert read(schema, None if data is None else bytes.fromhex(data)) == golden[part]["json"]


@pytest.mark.parametrize("case", MESSAGES)
def test_a_message(case: str) -> None:
    (golden,) = GOLDEN[case]
    record = message_record(*MESSAGES[case])
    assert [as_hex(record.key), as_hex(record.value)] == [golden["key"]["hex"], golden["value"]["hex"]]
    for part, schema in (("key", "prefix"), ("value", "message")):
        assert read(schema, bytes.fromhex(golden[part]["hex"])) == golden[part]["json"]


def test_the_cut_record() -> None:
    (golden,) = GOLDEN["cut"]
    assert [data.hex() for data in cut_message()] == [golden["key"]["hex"], golden["value"]["hex"]]
    assert read("cut", bytes.fromhex(golden["value"]["hex"])) == golden["value"]["json"]


def test_every_golden_message_has_its_case() -> None:
    assert set(GOLDEN) == {*CASES, *MESSAGES, "cut"}
