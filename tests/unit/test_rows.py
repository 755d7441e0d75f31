"""Runs of rows: where they end, and that both twins write what the encoder writes."""

import gc
import tracemalloc
from types import ModuleType

import pytest

from pgsluice import rows as in_python
from pgsluice.avro.encoder import KeyEncoder, RowEncoder
from pgsluice.avro.schema import TableFields, key_fields
from pgsluice.avro.types import TypeOptions
from pgsluice.envelope import ChangeEncoder, Stamp
from pgsluice.errors import PoisonError, ProtocolError
from pgsluice.pgoutput.framing import Keepalive
from pgsluice.pgoutput.messages import (
    UNCHANGED,
    Begin,
    BinaryValue,
    Delete,
    Insert,
    RowMessage,
    Truncate,
    TupleData,
    Update,
)
from pgsluice.record import OVERHEAD_BYTES, Pending, Record, Target
from pgsluice.relation import CATALOG, Column, PgType, Relation
from pgsluice.transaction import Transaction
from tests.fuzz.rows import Differ, run, run_runs
from tests.support.pgoutput_encoder import encode, xlog_data
from tests.support.twins import TWINS, needs_compiled, outcome

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


def table(identity: str = "d", oid: int = 7) -> Relation:
    columns = (
        Column(name, PgType(0, CATALOG, kind), typmod, is_key=identity == "f" or (identity == "d" and name == "id"))
        for name, kind, typmod in COLUMNS
    )
    return Relation(oid, "public", "orders", identity, tuple(columns))


def encoder_of(relation: Relation, *, tombstones: bool = False) -> ChangeEncoder:
    options = TypeOptions()
    fields = TableFields(options).assign(relation)
    keyed = relation.replica_identity != "n"
    key = KeyEncoder(relation, key_fields(relation, fields, ("id",), options)) if keyed else None
    target = Target("shop.public.orders", 11, 12 if keyed else None)
    return ChangeEncoder(relation, target, RowEncoder(relation, fields), key, tombstones=tombstones, truncate=True)


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
}
"""What nearly all changes look like."""

ODD = {
    "a value that does not fit": ("d", Insert(None, 7, [b"42", b"NaN", *ROW[2:]])),
    "a date before Christ": ("d", Insert(None, 7, [*ROW[:4], b"0044-03-15 BC", *ROW[5:]])),
    "values in binary format": ("d", Insert(None, 7, [*ROW[:6], BinaryValue(b"\x01"), *ROW[7:]])),
    "an update of the key": ("d", Update(None, 7, [b"41", *([None] * 12)], None, ROW)),
    "an update of the key under replica identity full": ("f", Update(None, 7, None, [b"41", *ROW[1:]], ROW)),
    "an unchanged value that the old row has": ("f", Update(None, 7, None, ROW, [*ROW[:2], UNCHANGED, *ROW[3:]])),
    "a truncate": ("d", Truncate(None, cascade=True, restart_identity=False, relation_oids=(7,))),
}


@pytest.mark.parametrize("tombstones", [False, True])
@pytest.mark.parametrize(("identity", "message"), [*COMMON.values(), *ODD.values()], ids=[*COMMON, *ODD])
def test_a_change_becomes_what_the_encoder_makes_of_it(
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
def test_the_compiled_twin_writes_what_is_common_by_itself(
    monkeypatch: pytest.MonkeyPatch, identity: str, message: RowMessage
) -> None:
    relation = table(identity)
    rows, pending = TWINS[-1].Rows(relation, encoder_of(relation)), Pending(1_000_000)
    monkeypatch.setattr(in_python.Rows, "add", None)
    rows.add(encode(message), stamp(), pending, is_streamed=False)
    assert len(pending.records) == 1


@needs_compiled
def test_the_collector_need_not_look_at_its_records() -> None:
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


def test_a_row_in_a_stream_carries_a_transaction_id(twin: ModuleType) -> None:
    relation = table()
    streamed = outcome(twin, relation, encoder_of(relation), encode(Insert(701, 7, ROW)), TRANSACTION, is_streamed=True)
    assert streamed == outcome(twin, relation, encoder_of(relation), encode(Insert(None, 7, ROW)), TRANSACTION)


def test_what_is_no_row_is_an_error(twin: ModuleType) -> None:
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
    """Tables 7 and 8, ready, and 9, which is left out; the rows of a run."""

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
    def test_a_run_goes_on_to_the_end(self, twin: ModuleType) -> None:
        one = Run(twin)
        assert one.take(insert(), insert(8), insert(9), insert()) == 4
        assert one.stamp.next_seq == len(one.pending.records) == one.pending.events == 3

    def test_it_begins_where_it_is_told_to(self, twin: ModuleType) -> None:
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
    def test_it_ends_before_what_it_does_not_know(self, twin: ModuleType, other: bytes | Keepalive) -> None:
        one = Run(twin)
        assert one.take(insert(), other, insert()) == 1

    def test_it_ends_before_a_version_that_is_not_ready(self, twin: ModuleType) -> None:
        one = Run(twin)
        one.relations[8] = table(oid=8)
        assert one.take(insert(), insert(8)) == 1

    def test_it_ends_when_there_is_no_room(self, twin: ModuleType) -> None:
        one = Run(twin, limit=2 * OVERHEAD_BYTES)
        assert one.take(*[insert()] * 5) == 2
        assert one.pending.full

    def test_what_is_odd_does_not_end_it(self, twin: ModuleType) -> None:
        one = Run(twin)
        odd = insert(row=[b"43", b"NaN", *ROW[2:]])
        assert one.take(insert(), odd, insert(8), odd) == 4
        assert one.stamp.next_seq == 4
        assert one.pending.size == sum(map(size_of, one.pending.records))

    def test_an_error_leaves_what_came_before_it(self, twin: ModuleType) -> None:
        one = Run(twin)
        with pytest.raises(ProtocolError, match="Insert"):
            one.take(insert(), insert()[:-1])
        assert len(one.pending.records) == one.stamp.next_seq == one.pending.events == 1
        assert one.take(insert()) == 1


@needs_compiled
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_twins_agree_about_anything(seed: int) -> None:
    assert sum(run(1500, seed).values()) == 1500
    assert sum(run_runs(300, seed).values()) == 300


def test_they_are_really_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(range(10_000))
    monkeypatch.setattr("tests.fuzz.rows.TWINS", [in_python, in_python])
    monkeypatch.setattr("tests.fuzz.rows.outcome", lambda *_args, **_options: ([], next(answers), 0, 0))
    with pytest.raises(Differ):
        run(1, 1)
