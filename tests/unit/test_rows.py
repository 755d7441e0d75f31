"""Tests the two implementations of ``rows``, in Python and in Cython: both have to write what the encoder writes."""

import gc
import struct
import tracemalloc
from collections.abc import Sequence
from types import ModuleType

import pytest

from pgsluice import rows as in_python
from pgsluice.avro.binary import encode_string
from pgsluice.avro.choices import Choice, ColumnChoice
from pgsluice.avro.encoder import KeyEncoder, RowEncoder
from pgsluice.avro.schema import TableFields, key_fields
from pgsluice.avro.types import TypeOptions
from pgsluice.avro.wire import header
from pgsluice.envelope import ChangeEncoder, InsertOp, Stamp
from pgsluice.errors import PoisonError, ProtocolError
from pgsluice.pgbinary.conversions import TypeDescription, conversions
from pgsluice.pgoutput.framing import Keepalive
from pgsluice.pgoutput.messages import (
    UNCHANGED,
    Begin,
    BinaryValue,
    Commit,
    Delete,
    Insert,
    Origin,
    RowMessage,
    Truncate,
    TupleData,
    Update,
)
from pgsluice.record import OVERHEAD_BYTES, Pending, Record, Target
from pgsluice.relation import CATALOG, Column, PgType, Relation
from pgsluice.transaction import Transaction, WholeTransactions
from tests.fuzz.rows import Differ, run, run_runs, run_whole
from tests.support.pgoutput_encoder import encode, xlog_data
from tests.support.twins import TWINS, needs_compiled, outcome

COMMON_RANGE, FULL_RANGE = TypeOptions(), TypeOptions(time_range="full")
DESCRIBED = [
    TypeDescription(16_400, "public", "citext", "citextsend"),
    TypeDescription(16_401, "public", "ltree", "ltree_send"),
    TypeDescription(16_402, "public", "mood", "enum_send"),
]
TRANSACTION = Transaction(700, 1000, 86_400_000_000)
COLUMNS = (
    ("id", "int8", -1),
    ("amount", "numeric", (10 << 16 | 2) + 4),
    ("note", "text", -1),
    ("placed", "timestamptz", -1),
    ("day", "date", -1),
    ("at", "time", -1),
    ("paid", "bool", -1),
    ("tag", "uuid", -1),
    ("weight", "float8", -1),
    ("ratio", "float4", -1),
    ("picture", "bytea", -1),
    ("letter", "char", -1),
    ("local", "timestamp", -1),
)
ROW: TupleData = [
    *(b"42", b"-12.34", "Grüße".encode(), b"2026-01-02 03:04:05.678901+00", b"2026-01-05", b"23:59:59.5", b"t"),
    *(b"6b3d8e1c-7f1a-4a53-9d5e-0f7c3a1b2c4d", b"-1.5e-07", b"0.1", b"\\x00ff", b"a", b"1969-12-31 23:59:59.999999"),
]
OTHER: TupleData = [b"42", None, b"", *ROW[3:]]
SENT: TupleData = [
    BinaryValue(value)
    for value in (
        struct.pack(">q", 42),
        struct.pack(">HhHH2H", 2, 0, 0x4000, 2, 12, 3400),
        "Grüße".encode(),
        struct.pack(">q", 820_638_245_678_901),
        struct.pack(">i", 9501),
        struct.pack(">q", 86_399_500_000),
        b"\1",
        bytes.fromhex("6b3d8e1c7f1a4a539d5e0f7c3a1b2c4d"),
        struct.pack(">d", -1.5e-07),
        struct.pack(">f", 0.1),
        b"\0\xff",
        b"a",
        struct.pack(">q", -946_684_800_000_001),
    )
]
"""``ROW`` in binary format. ``OTHER_SENT`` is ``OTHER`` in binary format."""
OTHER_SENT: TupleData = [SENT[0], None, BinaryValue(b""), *SENT[3:]]


def table(identity: str = "d", oid: int = 7) -> Relation:
    columns = (
        Column(name, PgType(0, CATALOG, kind), typmod, is_key=identity == "f" or (identity == "d" and name == "id"))
        for name, kind, typmod in COLUMNS
    )
    return Relation(oid, "public", "orders", identity, tuple(columns))


def encoder_of(
    relation: Relation,
    *,
    tombstones: bool = False,
    binary: bool = True,
    keys: Sequence[str] = ("id",),
    options: TypeOptions = COMMON_RANGE,
    insert_op: InsertOp = "c",
) -> ChangeEncoder:
    fields = TableFields(options).assign(relation)
    keyed = relation.replica_identity != "n"
    sent = conversions(relation, DESCRIBED) if binary else None
    key = KeyEncoder(relation, key_fields(relation, fields, keys, options), sent) if keyed else None
    target = Target("shop.public.orders", 11, 12 if keyed else None)
    row = RowEncoder(relation, fields, sent)
    return ChangeEncoder(relation, target, row, key, tombstones=tombstones, truncate=True, insert_op=insert_op)


def size_of(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


def stamp() -> Stamp:
    return Stamp(TRANSACTION, 3, commit_timestamps=True)


@pytest.fixture(params=TWINS, ids=lambda twin: str(twin.__name__))
def twin(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = request.param
    return found


COMMON = {
    "insert": ("d", Insert(None, 7, ROW)),
    "insert with nulls": ("d", Insert(None, 7, OTHER)),
    "insert without a key": ("n", Insert(None, 7, ROW)),
    "update": ("d", Update(None, 7, None, None, ROW)),
    "update with an unchanged value": ("d", Update(None, 7, None, None, [*ROW[:2], UNCHANGED, *ROW[3:]])),
    "update under replica identity full": ("f", Update(None, 7, None, OTHER, ROW)),
    "delete": ("d", Delete(None, 7, [b"42", *([None] * 12)], None)),
    "delete with filler": ("d", Delete(None, 7, [b"42", b"x", UNCHANGED, *([None] * 10)], None)),
    "delete under replica identity full": ("f", Delete(None, 7, None, ROW)),
    "insert in binary format": ("d", Insert(None, 7, SENT)),
    "insert in both formats": ("d", Insert(None, 7, [*ROW[:6], *SENT[6:]])),
    "update in binary format": ("f", Update(None, 7, None, OTHER_SENT, SENT)),
    "delete in binary format": ("d", Delete(None, 7, [SENT[0], *([None] * 12)], None)),
}
"""Changes in the common form, which the compiled twin writes by itself, without the twin in Python."""

INFINITE_DATE = BinaryValue(bytes.fromhex("7fffffff"))
FALLBACK = {
    "a value that does not fit": ("d", Insert(None, 7, [b"42", b"NaN", *ROW[2:]])),
    "a date before Christ": ("d", Insert(None, 7, [*ROW[:4], b"0044-03-15 BC", *ROW[5:]])),
    "a value in binary format that does not fit": ("d", Insert(None, 7, [*SENT[:4], INFINITE_DATE, *SENT[5:]])),
    "bytes that are not a value in binary format": ("d", Insert(None, 7, [*SENT[:4], BinaryValue(b"\x01"), *SENT[5:]])),
    "an update of the key in binary format": ("f", Update(None, 7, None, [BinaryValue(bytes(8)), *ROW[1:]], SENT)),
    "an update of the key": ("d", Update(None, 7, [b"41", *([None] * 12)], None, ROW)),
    "an old row that only a partition calls complete": ("d", Delete(None, 7, None, ROW)),
    "an update whose old row only a partition calls complete": ("d", Update(None, 7, None, OTHER, ROW)),
    "an update of the key under replica identity full": ("f", Update(None, 7, None, [b"41", *ROW[1:]], ROW)),
    "an unchanged value that the old row has": ("f", Update(None, 7, None, ROW, [*ROW[:2], UNCHANGED, *ROW[3:]])),
    "a truncate": ("d", Truncate(None, cascade=True, restart_identity=False, relation_oids=(7,))),
}


@pytest.mark.parametrize("tombstones", [False, True])
@pytest.mark.parametrize(("identity", "message"), [*COMMON.values(), *FALLBACK.values()], ids=[*COMMON, *FALLBACK])
def test_a_change_is_written_as_the_encoder_writes_it(
    twin: ModuleType, identity: str, message: RowMessage, *, tombstones: bool
) -> None:
    relation = table(identity)
    encoder = encoder_of(relation, tombstones=tombstones)
    mine, its, pending = stamp(), stamp(), Pending(1_000_000)
    try:
        expected: list[Record] | str = encoder.encode(message, mine)
    except ProtocolError as error:
        expected = str(error)
    try:
        twin.Rows(relation, encoder).add(encode(message), its, pending, is_streamed=False)
        found: list[Record] | str = pending.records
    except ProtocolError as error:
        found = str(error)
    assert found == expected
    assert its.next_seq == mine.next_seq
    if isinstance(expected, list):
        assert pending.size == sum(map(size_of, expected))
        assert pending.events == sum(record.op is not None for record in expected)
        assert all(type(record) is Record for record in pending.records)


@needs_compiled
@pytest.mark.parametrize(("identity", "message"), COMMON.values(), ids=COMMON)
def test_the_compiled_twin_writes_common_changes_by_itself(
    monkeypatch: pytest.MonkeyPatch, identity: str, message: RowMessage
) -> None:
    relation = table(identity)
    rows, pending = TWINS[-1].Rows(relation, encoder_of(relation)), Pending(1_000_000)
    monkeypatch.setattr(in_python.Rows, "add", None)
    rows.add(encode(message), stamp(), pending, is_streamed=False)
    assert len(pending.records) == 1


READ = {
    "in text format": ("d", Insert(None, 7, ROW)),
    "without a key": ("n", Insert(None, 7, OTHER)),
    "with a value that does not fit": FALLBACK["a value that does not fit"],
}
"""Loaded rows."""


@pytest.mark.parametrize(("identity", "message"), READ.values(), ids=READ)
def test_a_loaded_row_is_not_an_insert(twin: ModuleType, identity: str, message: RowMessage) -> None:
    relation = table(identity)
    encoder = encoder_of(relation, insert_op="r")
    its, pending = stamp(), Pending(1_000_000)
    twin.Rows(relation, encoder).add(encode(message), its, pending, is_streamed=False)
    assert pending.records == encoder.encode(message, stamp())
    assert [record.op for record in pending.records] == ["r"]
    assert (pending.events, its.next_seq) == (1, 1)
    inserted = outcome(twin, relation, encoder_of(relation), encode(message), TRANSACTION)
    read = outcome(twin, relation, encoder, encode(message), TRANSACTION)
    assert read != inserted
    assert [op_is_c(record) for record in read[0] if isinstance(record, Record)] == inserted[0]


@needs_compiled
@pytest.mark.parametrize(("identity", "message"), list(READ.values())[:2], ids=list(READ)[:2])
def test_the_compiled_twin_writes_loaded_rows_by_itself(
    monkeypatch: pytest.MonkeyPatch, identity: str, message: RowMessage
) -> None:
    relation = table(identity)
    rows, pending = TWINS[-1].Rows(relation, encoder_of(relation, insert_op="r")), Pending(1_000_000)
    monkeypatch.setattr(in_python.Rows, "add", None)
    rows.add(encode(message), stamp(), pending, is_streamed=False)
    assert [record.op for record in pending.records] == ["r"]


def op_is_c(record: Record) -> Record:
    """Return a copy of the loaded row's record, but with the op of an insert."""
    head = header(record.target.value_schema_id) + encode_string("r")
    assert record.value is not None
    assert record.value.startswith(head)
    value = header(record.target.value_schema_id) + encode_string("c") + record.value[len(head) :]
    return record._replace(op="c", value=value)


@needs_compiled
def test_the_garbage_collector_does_not_track_the_records() -> None:
    one = Run(TWINS[-1])
    one.take(insert())
    (record,) = one.pending.records
    assert not gc.is_tracked(record)
    assert (record, hash(record)) == (Record(*record), hash(Record(*record)))


@needs_compiled
def test_a_large_row_leaves_no_memory_behind() -> None:
    one = Run(TWINS[-1])
    note = bytes(50_000_000).replace(b"\0", b"x")
    tracemalloc.start()
    one.take(insert(row=[*ROW[:2], note, *ROW[3:]]))
    one.pending.clear()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 10_000_000


def test_both_formats_give_the_same_record(twin: ModuleType) -> None:
    relation = table()
    encoder = encoder_of(relation)
    in_text, in_binary = (
        outcome(twin, relation, encoder, encode(Insert(None, 7, row)), TRANSACTION) for row in (ROW, SENT)
    )
    assert in_binary == in_text


def test_a_value_in_binary_format_that_was_not_asked_for_is_an_error(twin: ModuleType) -> None:
    relation = table()
    rows = twin.Rows(relation, encoder_of(relation, binary=False))
    with pytest.raises(ProtocolError, match=r"column paid came in binary format \(expected text format\)"):
        rows.add(encode(Insert(None, 7, [*ROW[:6], SENT[6], *ROW[7:]])), stamp(), Pending(1), is_streamed=False)


# --- values in binary format. Each table has an id and a column of the tested type

DAY_US = 86_400_000_000
FIRST_DAY, LAST_DAY = -730_119, 2_921_939  # the first day of year 1 and the last day of year 9999, counted from 2000
MIN_8, MAX_8 = -(2**63), 2**63 - 1
TO_2000_US = 10_957 * DAY_US
AS_MILLISECONDS = TypeOptions(
    choices=tuple(ColumnChoice("value", Choice.parse(name)) for name in ("timestamp-millis", "time-millis", "double"))
)
AS_STRING = TypeOptions(choices=(ColumnChoice("value", Choice.parse("string")),))


def packed(code: str, *numbers: float) -> list[bytes]:
    return [struct.pack(f">{code}", number) for number in numbers]


def numeric(weight: int, *groups: int, dscale: int = 2, sign: int = 0) -> bytes:
    return struct.pack(f">HhHH{len(groups)}H", len(groups), weight, sign, dscale, *groups)


def decimal(precision: int, scale: int) -> str:
    return f"numeric({precision},{scale})"


WRITTEN_AT_ONCE = [
    ("bool", COMMON_RANGE, [b"\0", b"\1"]),
    ("int2", COMMON_RANGE, packed("h", 0, -1, 2**15 - 1, -(2**15))),
    ("int4", COMMON_RANGE, packed("i", 0, -1, 2**31 - 1, -(2**31))),
    ("int8", COMMON_RANGE, packed("q", 0, -1, MAX_8, MIN_8)),
    ("oid", COMMON_RANGE, packed("I", 0, 2**31, 2**32 - 1)),
    ("float4", COMMON_RANGE, packed("f", 0, -0.0, 0.1, 3.4028234663852886e38, 1e-45, float("inf"), float("-inf"))),
    ("float4", AS_MILLISECONDS, packed("f", 0, -0.0, 0.1, -3.4028234663852886e38, 1e-45, 1e-40)),
    ("float8", COMMON_RANGE, packed("d", 0, -0.0, 0.1, 1.7976931348623157e308, 5e-324, float("inf"), float("-inf"))),
    *((name, COMMON_RANGE, [b"", "Grüße".encode(), b"x" * 100_000]) for name in ("text", "varchar", "bpchar", "name")),
    ("text", COMMON_RANGE, [b"\xff\xfe", b"a\0b"]),
    ("json", COMMON_RANGE, [b'{"a": "\xc3\xbc"}']),
    ("jsonb", COMMON_RANGE, [b'\1{"a": "\xc3\xbc"}', b"\1"]),
    ("citext", COMMON_RANGE, [b"", b"x" * 300]),
    ("mood", COMMON_RANGE, [b"sad"]),
    ("ltree", COMMON_RANGE, [b"\1top.science"]),
    ("bytea", COMMON_RANGE, [b"", bytes(range(256))]),
    ("uuid", COMMON_RANGE, [bytes(range(16)), b"\xff" * 16]),
    ("date", COMMON_RANGE, packed("i", 0, FIRST_DAY, LAST_DAY)),
    ("date", FULL_RANGE, packed("i", -(2**31) + 1, 2**31 - 2 - 10_957)),
    ("time", COMMON_RANGE, packed("q", 0, DAY_US - 1)),
    ("time", FULL_RANGE, packed("q", DAY_US)),
    ("time", AS_MILLISECONDS, packed("q", DAY_US - 1000)),
    *(
        (name, options, packed("q", *moments))
        for name in ("timestamp", "timestamptz")
        for options, moments in (
            (COMMON_RANGE, (0, -1, FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1)),
            (FULL_RANGE, (MIN_8 + 1, MAX_8 - TO_2000_US - 1)),
            (AS_MILLISECONDS, (0, -1000, -TO_2000_US - 1000)),
        )
    ),
    (
        decimal(10, 2),
        COMMON_RANGE,
        [
            *(numeric(0), numeric(0, sign=0x4000), numeric(-5, dscale=0)),  # different zeros
            *(numeric(0, 1234, 3400), numeric(0, 1234, 3400, sign=0x4000)),
            *(numeric(1, 9999, 9999, 9900), numeric(1, 9999, 9999, 9900, sign=0x4000)),
            *(numeric(1, 1), numeric(-1, 100), numeric(2, 0, 0, 7), numeric(0, 7, 0)),
            *(numeric(0, 7, dscale=0), numeric(0, 7, 5000, dscale=1), numeric(0, 7, 5000, dscale=0x3FFF)),
        ],
    ),
    (decimal(18, 0), COMMON_RANGE, [numeric(4, 99, 9999, 9999, 9999, 9999, dscale=0), numeric(4, 10, dscale=0)]),
    (decimal(18, 18), COMMON_RANGE, [numeric(-1, 9999, 9999, 9999, 9999, 9900, dscale=18)]),
    *(
        (
            name,
            options,
            [
                *(numeric(0), numeric(0, dscale=0), numeric(0, sign=0x4000), numeric(-4, dscale=5)),  # different zeros
                *(numeric(0, 7), numeric(0, 7, sign=0x4000), numeric(2, 7, dscale=0), numeric(1, 120, 34, 5000)),
                *(numeric(-1, 5, dscale=4), numeric(-3, 5, dscale=12), numeric(-32_768, 5, dscale=64)),
                *(numeric(0, 7, 5050), numeric(0, 7, 5000, dscale=7), numeric(0, 0, 7), numeric(2, 0, 0, 0, 7)),
                *(numeric(63, *[9999] * 80, dscale=64), numeric(63, *[9999] * 80, dscale=64, sign=0x4000)),
            ],
        )
        for name, options in (("numeric", COMMON_RANGE), (decimal(10, 2), AS_STRING))
    ),
    (decimal(38, 10), COMMON_RANGE, [numeric(1, 9999, 9999, 9999, 9999, 9900, dscale=10), numeric(0, 1, dscale=0)]),
]
"""Type, options and values. The values are at the limits of the type, or of its Avro type."""

WRITTEN_BY_PYTHON = [
    *((name, options, [value[:-1], value + b"\0"]) for name, options, (value, *_) in WRITTEN_AT_ONCE if value),
    ("bool", COMMON_RANGE, [b"\2"]),
    ("float4", COMMON_RANGE, [b"\x7f\xc0\0\0", b"\x7f\x80\0\1", b"\xff\xff\xff\xff"]),
    ("float4", AS_MILLISECONDS, [b"\x7f\xc0\0\0", b"\x7f\x80\0\1", b"\xff\xff\xff\xff"]),
    ("float8", COMMON_RANGE, [b"\x7f\xf8" + bytes(6), b"\x7f\xf0" + bytes(5) + b"\1", b"\xff" * 8]),
    ("jsonb", COMMON_RANGE, [b"", b"\2{}"]),
    ("citext", COMMON_RANGE, ["Grüße".encode(), b"\xff"]),
    ("ltree", COMMON_RANGE, [b"", b"\0a", "\1ü".encode()]),
    ("char", COMMON_RANGE, [b"a", b"\0", b"\xff", b""]),
    ("uuid", COMMON_RANGE, [b""]),
    *(("date", options, packed("i", -(2**31), 2**31 - 1)) for options in (COMMON_RANGE, FULL_RANGE)),
    ("date", COMMON_RANGE, packed("i", FIRST_DAY - 1, LAST_DAY + 1)),
    ("date", FULL_RANGE, packed("i", 2**31 - 1 - 10_957)),
    ("time", COMMON_RANGE, packed("q", -1, DAY_US, DAY_US + 1)),
    ("time", FULL_RANGE, packed("q", -1, DAY_US + 1, MAX_8)),
    ("time", AS_MILLISECONDS, packed("q", 1)),
    *(
        (name, options, packed("q", MIN_8, MAX_8, *moments))
        for name in ("timestamp", "timestamptz")
        for options, moments in (
            (COMMON_RANGE, (FIRST_DAY * DAY_US - 1, (LAST_DAY + 1) * DAY_US)),
            (FULL_RANGE, (MAX_8 - 1, MAX_8 - TO_2000_US)),
            (AS_MILLISECONDS, (1, -1)),
        )
    ),
    (
        decimal(10, 2),
        COMMON_RANGE,
        [
            *(numeric(0, sign=sign) for sign in (0xC000, 0xD000, 0xF000, 0x8000, 1)),
            *(numeric(2, 1, 0, 0), numeric(1, 9999, 9999, 9999, dscale=4), numeric(8, 1), numeric(-9, 1)),
            *(numeric(0, 7, 5000, dscale=0), numeric(0, 7, 5050, dscale=2), numeric(0, 7, 1, dscale=4)),
            *(numeric(0, 10_000), numeric(0, 65_535, 1), numeric(0, 7, dscale=0x4000)),
            *(numeric(0, 7)[:7], numeric(0, 7)[:9], b""),
            *(struct.pack(">HhHH", 1, 0, 0, 2), struct.pack(">HhHHH", 0xFFFF, 0, 0, 2, 7)),
        ],
    ),
    (
        decimal(38, 10),
        COMMON_RANGE,
        [
            *(
                numeric(6, *[9999] * 9, 9900, dscale=10),
                numeric(4, 100, dscale=10),
                numeric(2, 1, 0, 0, 0, 0, dscale=10),
            ),
            *(numeric(32_767, 1), numeric(-32_768, 1), numeric(32_767, 0)),
        ],
    ),
    (decimal(38, 30), COMMON_RANGE, [numeric(0, dscale=2), numeric(-8, 100, dscale=30)]),
    (
        "numeric",
        COMMON_RANGE,
        [
            *(numeric(0, sign=sign) for sign in (0xC000, 0xD000, 0xF000, 0x8000)),
            *(numeric(64, 1), numeric(32_767, 1), numeric(0, 7, dscale=65), numeric(0, 7, dscale=0x4000)),
            *(numeric(0, 10_000), numeric(0, 7, 10_000, dscale=0), numeric(0, 7)[:9], numeric(0, 7)[:7]),
        ],
    ),
    ("interval", COMMON_RANGE, [bytes(16)]),
]


def sent_table(name: str) -> Relation:
    described = {description.name: description.oid for description in DESCRIBED}
    base, _, modifier = name.partition("(")
    precision, scale = map(int, modifier.rstrip(")").split(",")) if modifier else (0, 0)
    found = PgType(described.get(base, 0), "public" if base in described else CATALOG, base)
    value = Column("value", found, (precision << 16 | scale) + 4 if modifier else -1, is_key=True)
    return Relation(7, "public", "t", "f", (Column("id", PgType(0, CATALOG, "int8"), -1, is_key=True), value))


@pytest.mark.parametrize(("name", "options", "values"), WRITTEN_AT_ONCE)
def test_a_value_in_binary_format_becomes_what_its_text_does(
    twin: ModuleType, name: str, options: TypeOptions, values: list[bytes]
) -> None:
    relation = sent_table(name)
    encoder = encoder_of(relation, keys=("value",), options=options)
    _, to_text = conversions(relation, DESCRIBED)
    for value in values:
        in_text, in_binary = (
            outcome(twin, relation, encoder, encode(Insert(None, 7, [b"1", column])), TRANSACTION)
            for column in (to_text(value), BinaryValue(value))
        )
        assert in_binary == in_text
        assert isinstance(in_binary[0], list)


@needs_compiled
@pytest.mark.parametrize(("name", "options", "values"), WRITTEN_AT_ONCE)
def test_the_compiled_twin_writes_common_values_in_binary_format_by_itself(
    monkeypatch: pytest.MonkeyPatch, name: str, options: TypeOptions, values: list[bytes]
) -> None:
    relation = sent_table(name)
    encoder = encoder_of(relation, keys=("value",), options=options)
    assert encoder.key is not None
    monkeypatch.setattr(in_python.Rows, "add", None)
    monkeypatch.setattr(encoder.row, "binary_writers", [None, None])
    monkeypatch.setattr(encoder.key, "binary_writers", [None])
    for value in values:
        records, *_ = outcome(
            TWINS[-1], relation, encoder, encode(Insert(None, 7, [b"1", BinaryValue(value)])), TRANSACTION
        )
        assert len(records) == 1


@needs_compiled
@pytest.mark.parametrize(("name", "options", "values"), WRITTEN_BY_PYTHON)
@pytest.mark.parametrize("key", ["id", "value"])
def test_unusual_values_in_binary_format_are_left_to_the_twin_in_python(
    name: str, options: TypeOptions, values: list[bytes], key: str
) -> None:
    relation = sent_table(name)
    encoder = encoder_of(relation, keys=(key,), options=options)
    for value in values:
        expected, found = (
            outcome(each, relation, encoder, encode(Insert(None, 7, [b"1", BinaryValue(value)])), TRANSACTION)
            for each in TWINS
        )
        assert found == expected


def test_a_row_in_a_stream_carries_a_transaction_id(twin: ModuleType) -> None:
    relation = table()
    streamed = outcome(twin, relation, encoder_of(relation), encode(Insert(701, 7, ROW)), TRANSACTION, is_streamed=True)
    assert streamed == outcome(twin, relation, encoder_of(relation), encode(Insert(None, 7, ROW)), TRANSACTION)


def test_bytes_that_are_not_a_row_are_an_error(twin: ModuleType) -> None:
    relation = table()
    rows, whole = twin.Rows(relation, encoder_of(relation)), encode(Insert(None, 7, ROW))
    for length in range(1, len(whole)):
        pending = Pending(1_000_000)
        with pytest.raises(ProtocolError, match="Insert"):
            rows.add(whole[:length], stamp(), pending, is_streamed=False)
        assert not pending.records
    with pytest.raises(ProtocolError, match="found the end"):
        rows.add(b"", stamp(), Pending(1_000_000), is_streamed=False)


def test_a_key_that_cannot_be_written_is_an_error(twin: ModuleType) -> None:
    relation = table()
    with pytest.raises(PoisonError, match="key column id is null"):
        twin.Rows(relation, encoder_of(relation)).add(
            encode(Insert(None, 7, [None, *ROW[1:]])), stamp(), Pending(1_000_000), is_streamed=False
        )


def test_a_table_that_is_left_out_has_no_records(twin: ModuleType) -> None:
    pending, its = Pending(1_000_000), stamp()
    twin.Rows(table(), None).add(encode(Insert(None, 7, ROW)), its, pending, is_streamed=False)
    assert (pending.records, its.next_seq) == ([], 0)


class Run:
    """The arguments of ``add_run``, which adds the rows of successive frames (a run). The encoders of tables 7 and 8
    are ready. Table 9 is not published, table 10 is not ready."""

    def __init__(self, twin: ModuleType, limit: int = 1_000_000) -> None:
        self.relations = {oid: table(oid=oid) for oid in (7, 8, 9, 10)}
        self.ready = {
            oid: twin.Rows(self.relations[oid], None if oid == 9 else encoder_of(self.relations[oid]))
            for oid in (7, 8, 9)
        }
        self.stamp, self.pending = stamp(), Pending(limit)
        self._twin = twin

    def take(self, *frames: bytes | Keepalive, at: int = 0) -> int:
        found: int = self._twin.add_run(list(frames), at, self.relations, self.ready, self.stamp, self.pending)
        return found


def insert(oid: int = 7, row: TupleData = ROW) -> bytes:
    return xlog_data(encode(Insert(None, oid, row)))


class TestRuns:
    def test_a_run_goes_on_to_the_last_frame(self, twin: ModuleType) -> None:
        one = Run(twin)
        assert one.take(insert(), insert(8), insert(9), insert()) == 4
        assert one.stamp.next_seq == len(one.pending.records) == one.pending.events == 3

    def test_a_run_begins_at_the_given_frame(self, twin: ModuleType) -> None:
        one = Run(twin)
        assert one.take(insert(), insert(), insert(), at=2) == 3
        assert len(one.pending.records) == 1

    @pytest.mark.parametrize(
        "other",
        [
            Keepalive(1, 2, reply_requested=False),
            xlog_data(encode(Begin(1, 2, 3))),
            xlog_data(encode(Truncate(None, cascade=False, restart_identity=False, relation_oids=(7,)))),
            xlog_data(b""),
            insert(10),
            insert(11),
        ],
        ids=["keepalive", "begin", "truncate", "nothing", "a table that is not ready", "a table that is not known"],
    )
    def test_a_run_ends_before_a_message_that_it_cannot_take(self, twin: ModuleType, other: bytes | Keepalive) -> None:
        one = Run(twin)
        assert one.take(insert(), other, insert()) == 1

    def test_a_run_ends_before_a_version_of_a_table_that_is_not_ready(self, twin: ModuleType) -> None:
        one = Run(twin)
        one.relations[8] = table(oid=8)
        assert one.take(insert(), insert(8)) == 1

    def test_a_run_ends_when_there_is_no_room(self, twin: ModuleType) -> None:
        one = Run(twin, limit=2 * OVERHEAD_BYTES)
        assert one.take(*[insert()] * 5) == 2
        assert one.pending.full

    def test_an_unusual_row_does_not_end_a_run(self, twin: ModuleType) -> None:
        one = Run(twin)
        odd = insert(row=[b"43", b"NaN", *ROW[2:]])
        assert one.take(insert(), odd, insert(8), odd) == 4
        assert one.stamp.next_seq == 4
        assert one.pending.size == sum(map(size_of, one.pending.records))

    def test_an_error_leaves_the_records_before_it(self, twin: ModuleType) -> None:
        one = Run(twin)
        with pytest.raises(ProtocolError, match="Insert"):
            one.take(insert(), insert()[:-1])
        assert len(one.pending.records) == one.stamp.next_seq == one.pending.events == 1
        assert one.take(insert()) == 1


ONE = [xlog_data(encode(one)) for one in (Begin(2000, 5, 700), Insert(None, 7, ROW), Commit(2000, 2040, 5))]


def whole(
    twin: ModuleType, frames: Sequence[bytes | Keepalive], **others: int
) -> tuple[WholeTransactions | None, Pending]:
    """Return the transactions that are processed whole, and their records."""
    relation, pending = table(), Pending(others.pop("limit", 1_000_000))
    chosen = {"from_lsn": 1000, "room": 1_000_000, **others}
    ready = {7: twin.Rows(relation, encoder_of(relation))}
    found = twin.add_transactions(
        list(frames), 0, {7: relation}, ready, pending, epoch=1, commit_timestamps=False, **chosen
    )
    return found, pending


def test_the_twin_in_python_takes_no_transaction_as_a_whole() -> None:
    assert whole(in_python, ONE)[0] is None


@needs_compiled
class TestWholeTransactions:
    def test_a_whole_transaction_is_taken(self) -> None:
        found, pending = whole(TWINS[1], ONE)
        one = Transaction(700, 2000, 5)
        assert found == WholeTransactions(3, 2040, 1, one, one, 2040)
        assert len(pending.records) == pending.events == 1

    def test_all_transactions_are_taken_that_are_complete(self) -> None:
        second = [xlog_data(encode(one)) for one in (Begin(3000, 6, 701), Commit(3000, 3040, 6))]
        found, _ = whole(TWINS[1], [*ONE, *second, *ONE[:2]])
        assert found is not None
        assert (found.at, found.end_lsn, found.count, found.last_end_lsn) == (5, 3040, 1, 2040)

    def test_a_transaction_without_rows_is_not_counted(self) -> None:
        assert whole(TWINS[1], [ONE[0], ONE[2]])[0] == WholeTransactions(2, 2040)

    @pytest.mark.parametrize(
        "frames",
        [
            ONE[:2],
            ONE[1:],
            [Keepalive(1, 2, reply_requested=False), *ONE],
            [ONE[0], Keepalive(1, 2, reply_requested=False), *ONE[1:]],
            [ONE[0], xlog_data(encode(Origin(0, "elsewhere"))), *ONE[1:]],
            [ONE[0], *ONE[1:2] * 65, ONE[2]],
            [ONE[0], xlog_data(encode(Insert(None, 8, ROW))), ONE[2]],
            [ONE[0], ONE[1], xlog_data(encode(Insert(None, 7, [b"42", b"NaN", *ROW[2:]]))), ONE[2]],
            [*ONE[:2], xlog_data(encode(Commit(2001, 2040, 5)))],
            [*ONE[:2], xlog_data(encode(Commit(2000, 2**62, 5)))],
            [*ONE[:2], ONE[2][:-1]],
            [xlog_data(encode(Begin(999, 5, 700))), ONE[1], xlog_data(encode(Commit(999, 2040, 5)))],
            [xlog_data(encode(Begin(2000, 2**62, 700))), *ONE[1:]],
            [ONE[0][:30], *ONE[1:]],
        ],
    )
    def test_other_transactions_are_left_to_the_session_and_add_no_records(
        self, frames: Sequence[bytes | Keepalive]
    ) -> None:
        found, pending = whole(TWINS[1], frames)
        assert (found, pending.records, pending.size, pending.events) == (None, [], 0, 0)

    def test_a_transaction_that_fills_pending_by_itself_is_left_to_the_session(self) -> None:
        assert whole(TWINS[1], ONE, limit=10)[0] is None

    def test_no_further_transaction_is_taken_without_room(self) -> None:
        second = [xlog_data(encode(one)) for one in (Begin(3000, 6, 701), Insert(None, 7, ROW), Commit(3000, 3040, 6))]
        found, _ = whole(TWINS[1], [*ONE, *second], room=10)
        assert found is not None
        assert found.at == 3


@needs_compiled
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_twins_agree_about_anything(seed: int) -> None:
    assert sum(run(1500, seed).values()) == 1500
    assert sum(run_runs(300, seed).values()) == 300
    assert run_whole(100, seed)["transactions taken as a whole"] > 20


def test_a_difference_between_the_twins_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(range(10_000))
    monkeypatch.setattr("tests.fuzz.rows.TWINS", [in_python, in_python])
    monkeypatch.setattr("tests.fuzz.rows.outcome", lambda *_args, **_options: ([], next(answers), 0, 0))
    with pytest.raises(Differ):
        run(1, 1)
