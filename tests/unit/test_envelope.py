"""The records of each kind of change. fastavro reads them back."""

from dataclasses import replace
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pytest

from pgsluice.avro.binary import encode_string
from pgsluice.avro.encoder import KeyEncoder, RowEncoder
from pgsluice.avro.schema import TableFields, envelope_schema, key_fields, key_schema, message_schema
from pgsluice.avro.types import TypeOptions
from pgsluice.avro.wire import header, unframe
from pgsluice.dead_letter import DeadLetter, Reason, SourceChange, encode
from pgsluice.envelope import EXPECTED_MAX, ChangeEncoder, DeadLetters, MessageEncoder, Stamp
from pgsluice.errors import PoisonError, ProtocolError
from pgsluice.loads import FIRST_SEQ
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
from pgsluice.relation import Column, PgType, Relation
from pgsluice.transaction import Transaction

TRANSACTION = Transaction(700, 1000, 86_400_000_000)
TARGET = Target("shop.public.orders", 11, 12)
DEAD = Target("shop.dead_letters", 21, 22)
TS = "2000-01-02T00:00:00+00:00"

INT4, TEXT, NUMERIC = (PgType(oid, "pg_catalog", name) for oid, name in ((23, "int4"), (25, "text"), (1700, "numeric")))
MONEY = (10 << 16 | 2) + 4
"""The typmod of numeric(10,2)."""


def table(identity: str = "d") -> Relation:
    """Return the description of orders(id int primary key, amount numeric(10,2), note text)."""
    full = identity == "f"
    return Relation(
        7,
        "public",
        "orders",
        identity,
        (
            Column("id", INT4, -1, full or identity == "d"),
            Column("amount", NUMERIC, MONEY, full),
            Column("note", TEXT, -1, full),
        ),
    )


class Table:
    """An encoder, and the schemas of its records."""

    def __init__(self, identity: str = "d", *, keys: tuple[str, ...] = ("id",), **options: Any) -> None:  # noqa: ANN401 - the encoder's options
        relation = table(identity)
        fields = TableFields(TypeOptions()).assign(relation)
        of_key = key_fields(relation, fields, keys, TypeOptions())
        self.schema = fastavro.parse_schema(envelope_schema("shop.public.orders", fields))
        self.key_schema = fastavro.parse_schema(key_schema("shop.public.orders", of_key))
        self.relation = relation
        self.encoder = ChangeEncoder(
            relation,
            TARGET if keys else Target(TARGET.topic, 11, None),
            RowEncoder(relation, fields),
            KeyEncoder(relation, of_key) if keys else None,
            **{"tombstones": False, "truncate": True, **options},
        )

    def records(self, message: RowMessage, stamp: Stamp | None = None) -> list[Record]:
        stamp = stamp or Stamp(TRANSACTION, 3, commit_timestamps=False)
        return self.encoder.encode(message, stamp)

    def read(self, record: Record) -> tuple[Any, Any]:
        """Return the key and the value as fastavro reads them."""
        return self._read(record.key, 12, self.key_schema), self._read(record.value, 11, self.schema)

    def _read(self, data: bytes | None, schema_id: int, schema: Any) -> Any:  # noqa: ANN401 - fastavro's types
        if data is None:
            return None
        found, body = unframe(data)
        assert found == schema_id
        stream = BytesIO(body)
        value = fastavro.schemaless_reader(stream, schema)
        assert stream.tell() == len(body)
        return value

    def only(self, message: RowMessage) -> tuple[Any, Any]:
        (record,) = self.records(message)
        return self.read(record)


def row(number: str, amount: str | None = "1.50", note: str | None = "n") -> TupleData:
    return [value if value is None else value.encode() for value in (number, amount, note)]


def as_row(number: int, amount: str | None = "1.50", note: str | None = "n") -> dict[str, Any]:
    return {"id": number, "amount": None if amount is None else Decimal(amount), "note": note}


def test_an_insert_has_the_new_row_as_after() -> None:
    key, value = Table().only(Insert(None, 7, row("1")))
    assert key == {"id": 1}
    assert value.pop("ts").isoformat() == TS
    assert value == {
        "op": "c",
        "schema": "public",
        "table": "orders",
        "before": None,
        "before_image": "none",
        "after": as_row(1),
        "unchanged": [],
        "raw": {},
        "epoch": 3,
        "lsn": 1000,
        "seq": 0,
        "xid": 700,
        "origin": None,
        "flags": [],
    }


def test_an_insert_lists_values_that_were_not_sent_or_do_not_fit() -> None:
    _, value = Table().only(Insert(None, 7, [b"1", b"NaN", UNCHANGED]))
    assert value["after"] == as_row(1, None, None)
    assert value["unchanged"] == ["note"]
    assert value["raw"] == {"amount": "NaN"}


class TestRowsThatWereRead:
    """Loaded rows. They existed before they were read, so they are not inserts of a transaction."""

    def test_the_op_of_loaded_rows_is_r(self) -> None:
        found = Table(insert_op="r")
        (record,) = found.records(Insert(None, 7, row("1")))
        key, value = found.read(record)
        assert (record.op, value["op"]) == ("r", "r")
        assert key == {"id": 1}
        assert (value["before"], value["before_image"], value["after"]) == (None, "none", as_row(1))

    def test_only_the_op_of_loaded_rows_differs_from_inserts(self) -> None:
        message = Insert(None, 7, [b"1", b"NaN", UNCHANGED])
        inserted, read = (Table(insert_op=op).only(message) for op in ("c", "r"))
        assert (inserted[1].pop("op"), read[1].pop("op")) == ("c", "r")
        assert read == inserted

    def test_loaded_rows_are_numbered_from_a_given_seq(self) -> None:
        found, stamp = Table(insert_op="r"), Stamp(TRANSACTION, 3, commit_timestamps=False)
        stamp.next_seq = FIRST_SEQ
        seqs = [found.read(found.records(Insert(None, 7, row("1")), stamp)[0])[1]["seq"] for _ in range(2)]
        assert seqs == [FIRST_SEQ, FIRST_SEQ + 1]


def test_an_update_without_an_old_row_has_no_before() -> None:
    key, value = Table().only(Update(None, 7, None, None, [b"1", b"2.00", UNCHANGED]))
    assert key == {"id": 1}
    assert (value["op"], value["before"], value["before_image"]) == ("u", None, "none")
    assert (value["after"], value["unchanged"]) == (as_row(1, "2.00", None), ["note"])


def test_an_update_with_the_whole_old_row_fills_what_is_unchanged_from_it() -> None:
    key, value = Table("f").only(Update(None, 7, None, row("1", "NaN", "long"), [b"1", b"Infinity", UNCHANGED]))
    assert key == {"id": 1}
    assert (value["op"], value["before_image"]) == ("u", "full")
    assert value["before"] == as_row(1, None, "long")
    assert (value["after"], value["unchanged"]) == (as_row(1, None, "long"), [])
    assert value["raw"] == {"before.amount": "NaN", "amount": "Infinity"}


def test_an_update_uses_an_old_key_that_did_not_change() -> None:
    """Take the key from the old row if the new row lacks it. A TOAST value in a key comes only with the old row."""
    key, value = Table().only(Update(None, 7, [b"1", None, None], None, [UNCHANGED, b"2.00", b"n"]))
    assert key == {"id": 1}
    assert (value["op"], value["before_image"], value["before"]) == ("u", "key", as_row(1, None, None))
    assert (value["after"], value["unchanged"]) == (as_row(1, "2.00"), [])


def test_an_update_of_the_key_is_a_delete_and_an_insert() -> None:
    found = Table()
    records = found.records(Update(None, 7, [b"1", b"", b""], None, [b"2", b"2.00", UNCHANGED]))
    (old_key, gone), (new_key, come) = map(found.read, records)
    assert (old_key, new_key) == ({"id": 1}, {"id": 2})
    assert (gone["op"], gone["before"], gone["before_image"]) == ("d", as_row(1, None, None), "key")
    assert gone["after"] is None
    assert (come["op"], come["before"], come["before_image"]) == ("c", as_row(1, None, None), "key")
    assert (come["after"], come["unchanged"], gone["unchanged"]) == (as_row(2, "2.00", None), ["note"], [])
    assert [gone["flags"], come["flags"]] == [["key_change"], ["key_change"]]
    assert [gone["seq"], come["seq"]] == [0, 1]


@pytest.mark.parametrize(
    ("message", "is_incomplete"),
    [
        (Insert(None, 7, [b"2", b"2.00", UNCHANGED]), True),  # an update whose old row did not pass the row filter
        (Update(None, 7, [b"1", b"", b""], None, [b"2", b"2.00", UNCHANGED]), True),
        (Update(None, 7, [b"2", b"", b""], None, [b"2", b"2.00", UNCHANGED]), True),  # a key with fewer columns
        (Insert(None, 7, row("2")), False),
        (Update(None, 7, [b"1", b"", b""], None, row("2")), False),
        (Update(None, 7, None, None, [b"2", b"2.00", UNCHANGED]), False),
        (Delete(None, 7, [b"1", b"", b""], None), False),
    ],
)
def test_a_row_that_lacks_values_under_a_new_key_is_reported(message: RowMessage, *, is_incomplete: bool) -> None:
    found, told = Table(), list[tuple[Relation, TupleData]]()
    found.encoder.on_incomplete = lambda relation, new: told.append((relation, new))
    found.records(message)
    assert told == ([(found.relation, [b"2", b"2.00", UNCHANGED])] if is_incomplete else [])


def test_both_records_of_a_changed_key_have_the_whole_old_row() -> None:
    found = Table("f")
    records = found.records(Update(None, 7, None, row("1", "NaN"), [b"2", b"2.00", UNCHANGED]))
    (_, gone), (_, come) = map(found.read, records)
    for value in (gone, come):
        assert (value["before"], value["before_image"]) == (as_row(1, None), "full")
        assert value["raw"] == {"before.amount": "NaN"}
    assert (come["after"], come["unchanged"]) == (as_row(2, "2.00"), [])


def test_an_old_row_of_a_partition_that_is_marked_as_complete_is_a_key() -> None:
    """Treat the old row as a key.

    The server marks the old row as complete because of the root's replica identity, but the partition's replica
    identity decides which columns the row has.
    """
    found = Table("d")
    old: TupleData = [b"1", None, None]
    _, gone = found.only(Delete(None, 7, None, old))
    assert (gone["before"], gone["before_image"]) == (as_row(1, None, None), "key")
    moved, come = map(found.read, found.records(Update(None, 7, None, old, [b"2", b"2.00", UNCHANGED])))
    for _, value in (moved, come):
        assert (value["before"], value["before_image"]) == (as_row(1, None, None), "key")
    assert (come[1]["after"], come[1]["unchanged"]) == (as_row(2, "2.00", None), ["note"])


@pytest.mark.parametrize(("identity", "image"), [("d", "key"), ("f", "full")])
def test_a_delete_has_the_old_row_or_its_key(identity: str, image: str) -> None:
    message = Delete(None, 7, None, row("1")) if identity == "f" else Delete(None, 7, row("1"), None)
    key, value = Table(identity).only(message)
    assert key == {"id": 1}
    assert (value["op"], value["before_image"], value["after"], value["flags"]) == ("d", image, None, [])
    assert value["before"] == (as_row(1) if identity == "f" else as_row(1, None, None))


def test_tombstones_follow_deletes_and_are_not_events() -> None:
    found = Table(tombstones=True)
    deleted = found.records(Delete(None, 7, row("1"), None))
    moved = found.records(Update(None, 7, row("1"), None, row("2")))
    assert [record.op for record in deleted] == ["d", None]
    assert [record.op for record in moved] == ["d", None, "c"]
    assert deleted[1] == Record(TARGET, None, deleted[0].key, None)


def test_without_a_key_there_are_no_tombstones() -> None:
    assert len(Table("f", keys=(), tombstones=True).records(Delete(None, 7, None, row("1")))) == 1


def test_records_of_a_table_without_a_key_have_no_key() -> None:
    found = Table("f", keys=())
    for message in (Insert(None, 7, row("1")), Update(None, 7, None, row("1"), row("2"))):
        key, value = found.only(message)
        assert key is None
        assert value["after"] == as_row(2 if isinstance(message, Update) else 1)


@pytest.mark.parametrize(
    ("cascade", "restart", "flags"),
    [(False, False, []), (True, False, ["cascade"]), (True, True, ["cascade", "restart_identity"])],
)
def test_a_truncate_has_only_flags(cascade: bool, restart: bool, flags: list[str]) -> None:  # noqa: FBT001
    key, value = Table().only(Truncate(None, cascade, restart, (7,)))
    assert key is None
    assert (value["op"], value["before"], value["after"], value["flags"]) == ("t", None, None, flags)


def test_truncates_can_be_left_out_and_use_up_no_seq() -> None:
    stamp = Stamp(TRANSACTION, 1, commit_timestamps=False)
    assert Table(truncate=False).records(Truncate(None, False, False, (7,)), stamp) == []  # noqa: FBT003
    assert stamp.next_seq == 0


def test_the_records_of_a_transaction_are_numbered() -> None:
    found, stamp = Table(), Stamp(TRANSACTION, 1, commit_timestamps=False)
    records = [record for _ in range(3) for record in found.records(Insert(None, 7, row("1")), stamp)]
    assert [found.read(record)[1]["seq"] for record in records] == [0, 1, 2]


def test_the_envelope_has_the_origin_of_a_replicated_transaction() -> None:
    stamp = Stamp(Transaction(1, 2, 3, "ünît"), 1, commit_timestamps=False)
    found = Table()
    assert found.read(found.records(Insert(None, 7, row("1")), stamp)[0])[1]["origin"] == "ünît"


@pytest.mark.parametrize(("commit_timestamps", "expected"), [(False, 0), (True, 946_771_200_000)])
def test_the_records_timestamp_is_that_of_the_commit_on_request(commit_timestamps: bool, expected: int) -> None:  # noqa: FBT001
    stamp = Stamp(TRANSACTION, 1, commit_timestamps=commit_timestamps)
    assert Table().records(Insert(None, 7, row("1")), stamp)[0].timestamp_ms == expected


class TestAKeyThatAvroCannotHold:
    """A table whose key is the amount. The Avro type of the key cannot hold NaN."""

    def letters(self, message: RowMessage, **options: Any) -> list[tuple[str | None, Any, int]]:  # noqa: ANN401 - the encoder's options
        """Return the op, the reason (None for an ordinary record) and the seq of the message's records."""
        said: list[DeadLetter] = []
        table = Table("f", keys=("amount",), dead_letters=DeadLetters(DEAD, said.append), **options)
        stamp = Stamp(TRANSACTION, 3, commit_timestamps=False)
        found: list[tuple[str | None, Any, int]] = []
        for record in table.records(message, stamp):
            if record.target is DEAD:
                letter = said.pop(0)
                assert record.key == header(22) + encode_string(TARGET.topic)
                assert record.value == header(21) + encode(letter)
                found.append((letter.origin.op, letter.reason, letter.origin.seq))
            else:
                found.append((record.op, None, table.read(record)[1]["seq"] if record.value else -1))
        assert stamp.next_seq == max(seq for _, _, seq in found) + 1
        return found

    def test_such_a_key_stops_the_process_without_dead_letters(self) -> None:
        with pytest.raises(PoisonError) as caught:
            Table("f", keys=("amount",)).records(Insert(None, 7, row("1", "NaN")))
        assert str(caught.value).startswith(
            "A change of table public.orders (key: amount; epoch 3, LSN 0/3E8, seq 0) cannot be written: key column "
            "amount has a value outside its Avro type"
        )
        assert "NaN" not in str(caught.value)
        with pytest.raises(PoisonError, match="key column amount is null"):
            Table("f", keys=("amount",)).records(Update(None, 7, None, row("1", None), row("1")))

    def test_a_dead_letter_has_the_place_of_the_change(self) -> None:
        unfit = Reason.KEY_NOT_REPRESENTABLE
        assert self.letters(Insert(None, 7, row("1", "NaN"))) == [("c", unfit, 0)]
        assert self.letters(Insert(None, 7, row("1", "NaN")), insert_op="r") == [("r", unfit, 0)]
        assert self.letters(Update(None, 7, None, None, row("1", "NaN"))) == [("u", unfit, 0)]
        assert self.letters(Delete(None, 7, None, row("1", "NaN")), tombstones=True) == [("d", unfit, 0)]

    def test_a_change_of_the_key_is_two_records(self) -> None:
        unfit = Reason.KEY_NOT_REPRESENTABLE
        nan, fit = row("1", "NaN"), row("1")
        assert self.letters(Update(None, 7, None, nan, fit)) == [("d", unfit, 0), ("c", None, 1)]
        assert self.letters(Update(None, 7, None, fit, nan)) == [("d", None, 0), ("c", unfit, 1)]
        assert self.letters(Update(None, 7, None, nan, nan)) == [("u", unfit, 0)]


class TestRefusedRecords:
    def letter(self, seq: int, lsn: int = TRANSACTION.commit_lsn) -> DeadLetter:
        origin = SourceChange("public", "orders", "c", 3, lsn, seq, 700, 0)
        return DeadLetter(origin, TARGET.topic, Reason.RECORD_TOO_LARGE, "larger than the limit")

    def test_refused_records_are_replaced_when_they_come_again(self) -> None:
        dead_letters = DeadLetters(DEAD, lambda _: None)
        table = Table("f", tombstones=True, dead_letters=dead_letters)
        stamp = Stamp(TRANSACTION, 3, commit_timestamps=False)
        assert dead_letters.expect([self.letter(1), self.letter(2)])
        messages: list[RowMessage] = [
            Insert(None, 7, row("1")),
            Insert(None, 7, row("2")),
            Update(None, 7, None, row("2"), row("3")),
            Delete(None, 7, None, row("3")),
        ]
        found = [(record.target is DEAD, record.op) for message in messages for record in table.records(message, stamp)]
        assert found == [
            (False, "c"),
            (True, "dead_letter"),
            (True, "dead_letter"),  # for the delete, whose tombstone is left out as well
            (False, "c"),
            (False, "d"),
            (False, None),
        ]

    def test_other_records_are_not_replaced(self) -> None:
        dead_letters = DeadLetters(DEAD, lambda _: None)
        dead_letters.expect([self.letter(0, lsn=5), replace(self.letter(0), topic="another")])
        (record,) = Table(dead_letters=dead_letters).records(Insert(None, 7, row("1")))
        assert record.target is TARGET

    def test_a_repeated_refusal_is_noticed(self) -> None:
        dead_letters = DeadLetters(DEAD, lambda _: None)
        assert dead_letters.expect([self.letter(1)])
        assert dead_letters.expect([self.letter(1), self.letter(2)])
        assert not dead_letters.expect([self.letter(1), self.letter(2)])

    def test_too_many_dead_letters_are_refused(self) -> None:
        dead_letters = DeadLetters(DEAD, lambda _: None)
        key = bytes(EXPECTED_MAX // 4)
        assert dead_letters.expect([replace(self.letter(seq), key=key) for seq in range(3)])
        assert not dead_letters.expect([replace(self.letter(3), key=key)])

    def test_delivered_dead_letters_are_forgotten(self) -> None:
        dead_letters = DeadLetters(DEAD, lambda _: None)
        dead_letters.expect([self.letter(1), self.letter(1, lsn=2000)])
        dead_letters.forget(1500)
        assert not dead_letters.expected(TRANSACTION.commit_lsn)
        assert dead_letters.expected(2000)


def test_an_old_row_with_values_that_were_not_sent_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="lacks values"):
        Table("f").records(Delete(None, 7, None, [b"1", UNCHANGED, b"n"]))


class TestMessages:
    """Messages of pg_logical_emit_message."""

    ENCODER = MessageEncoder(Target("shop.messages", 21, 22))
    SCHEMA = fastavro.parse_schema(message_schema("shop"))

    def read(self, records: list[Record]) -> tuple[str, dict[str, Any]]:
        """Return the key and the value of the only record."""
        (record,) = records
        assert (record.target.topic, record.op) == ("shop.messages", "m")
        found = []
        for data, identifier, schema in ((record.key, 22, "string"), (record.value, 21, self.SCHEMA)):
            assert data is not None
            schema_id, body = unframe(data)
            assert schema_id == identifier
            stream = BytesIO(body)
            found.append(fastavro.schemaless_reader(stream, schema))
            assert stream.tell() == len(body)
        return found[0], found[1]

    @pytest.mark.parametrize("origin", [None, "elsewhere"])
    @pytest.mark.parametrize("content", [b"", b"\x00\xff", b"x" * 200])
    def test_a_message_of_a_transaction_has_its_position(self, origin: str | None, content: bytes) -> None:
        transaction = Transaction(700, 1000, 86_400_000_000, origin)
        stamp = Stamp(transaction, 3, commit_timestamps=False)
        message = LogicalMessage(None, transactional=True, lsn=900, prefix="Prüfung", content=content)
        key, value = self.read(self.ENCODER.encode(message, stamp))
        assert key == "Prüfung"
        assert value.pop("ts").isoformat() == TS
        assert value == {
            "prefix": "Prüfung",
            "content": content,
            "transactional": True,
            "epoch": 3,
            "lsn": 1000,
            "seq": 0,
            "xid": 700,
            "origin": origin,
        }

    def test_rows_and_messages_of_a_transaction_share_their_numbers(self) -> None:
        stamp = Stamp(TRANSACTION, 3, commit_timestamps=True)
        message = LogicalMessage(None, transactional=True, lsn=900, prefix="p", content=b"")
        orders = Table()
        rows = [orders.records(Insert(None, 7, row("1")), stamp)]
        ours = [self.ENCODER.encode(message, stamp)]
        rows.append(orders.records(Insert(None, 7, row("2")), stamp))
        ours.append(self.ENCODER.encode(message, stamp))
        assert [orders.read(record)[1]["seq"] for (record,) in rows] == [0, 2]
        assert [self.read(found)[1]["seq"] for found in ours] == [1, 3]
        assert {record.timestamp_ms for (record,) in rows + ours} == {stamp.timestamp_ms}

    def test_a_message_outside_transactions_sorts_before_a_commit_at_its_lsn(self) -> None:
        message = LogicalMessage(None, transactional=False, lsn=900, prefix="p", content=b"x")
        key, value = self.read(self.ENCODER.encode_standalone(message, 3))
        assert key == "p"
        assert value == {
            "prefix": "p",
            "content": b"x",
            "transactional": False,
            "epoch": 3,
            "lsn": 900,
            "seq": -1,
            "xid": None,
            "ts": None,
            "origin": None,
        }
