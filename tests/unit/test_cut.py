"""What a cut counts, and the cut record that is written for it."""

from dataclasses import asdict
from io import BytesIO
from typing import Any

import fastavro
import pytest

from pgsluice import cut as module
from pgsluice.avro.schema import cut_schema
from pgsluice.commands import Answer, CommandState
from pgsluice.cut import Cut, cut_records
from pgsluice.loads import FIRST_SEQ, Load, Loaded, LoadMark, LoadPosition, State
from pgsluice.pgoutput.messages import LogicalMessage
from pgsluice.record import Record, Target
from pgsluice.transaction import Transaction, WholeTransactions

ORDERS, ITEMS = Target("shop.public.orders", 11, 12), Target("shop.public.items", 21, None)
IDENTITY = {"pipeline": "shop", "cut": 4, "epoch": 1}
SCHEMA = fastavro.parse_schema(cut_schema("shop"))


def record(target: Target, op: str | None) -> Record:
    return Record(target, op, b"k", None if op is None else b"value")


def mark(state: State, place: int, rows: int, *, replaces: bool = True) -> LoadMark:
    return LoadMark(ORDERS.topic, "public", "orders", "a load", state, 1, 90, FIRST_SEQ + place, rows, replaces)


def round_trip(part: dict[str, Any]) -> Any:  # noqa: ANN401 - what fastavro reads
    out = BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, part)
    return fastavro.schemaless_reader(BytesIO(out.getvalue()), SCHEMA)


def test_transactions_join_a_cut_in_commit_order() -> None:
    cut = Cut()
    first, second = Transaction(1, 100, 7), Transaction(2, 200, 8)
    records = [record(ORDERS, "c"), record(ORDERS, "d")]
    for transaction, end_lsn, its, size, events in ((first, 110, records[:1], 6, 1), (second, 210, records[1:], 7, 2)):
        cut.add_records(its, size, events)
        cut.add(transaction, end_lsn)
    assert (cut.records, cut.size, cut.transactions, cut.events) == (records, 13, 2, 3)
    assert (cut.first, cut.last) == (first, (second, 210))


def test_whole_transactions_join_a_cut_as_if_each_came_by_itself() -> None:
    cut = Cut()
    first, second, third, fourth = (Transaction(number, 100 * number, 7) for number in (1, 2, 3, 4))
    cut.add_whole(WholeTransactions(2, 210, 2, first, second, 210))
    assert (cut.transactions, cut.first, cut.last) == (2, first, (second, 210))
    cut.add_whole(WholeTransactions(9, 430, 2, third, fourth, 410))
    assert (cut.transactions, cut.first, cut.last) == (4, first, (fourth, 410))


def test_a_message_outside_transactions_is_identified_by_lsn_and_crc() -> None:
    cut = Cut()
    assert cut.last_message is None
    cut.add_message(LogicalMessage(None, transactional=False, lsn=90, prefix="1234", content=b"56788"))
    cut.add_message(LogicalMessage(None, transactional=False, lsn=95, prefix="1234", content=b"56789"))
    assert cut.last_message == (95, "cbf43926")  # the check value of CRC-32


def test_loaded_rows_join_a_cut_with_the_progress_of_the_load() -> None:
    cut = Cut()
    assert (cut.loads, cut.load_position, cut.marks, cut.loaded) == (None, None, [], [])
    load, marks = (
        Load("a load", "public", "orders", 7, "a shape", ("id",), ("5",), 5),
        [mark("begin", 0, 0), mark("rows", 6, 5)],
    )
    cut.add_load([load], LoadPosition(90, 7), marks, ())
    assert (cut.loads, cut.load_position, cut.marks, cut.loaded) == ([load], LoadPosition(90, 7), marks, [])
    end, loaded = mark("end", 7, 5), Loaded("a load", "public", "orders", 7, 5, 1)
    cut.add_load([], LoadPosition(90, 8), [end], [loaded])
    assert (cut.loads, cut.load_position, cut.marks, cut.loaded) == ([], LoadPosition(90, 8), [*marks, end], [loaded])


def test_a_cut_is_empty_without_records_and_marks() -> None:
    cut = Cut()
    cut.add(Transaction(1, 100, 7), 110)  # none of its changes are published
    assert cut.is_empty
    cut.add_records([record(ORDERS, "c")], 6, 1)
    assert not cut.is_empty


def test_a_cut_with_marks_of_an_empty_table_is_not_empty() -> None:
    cut = Cut()
    cut.add_load([], LoadPosition(90, 2), [mark("begin", 0, 0), mark("end", 1, 0)], ())
    assert not cut.is_empty


def test_the_effects_of_commands_join_a_cut() -> None:
    cut = Cut()
    cut.add_commands(CommandState("topic", 7), [], [], [])
    assert cut.is_empty  # an invalid command does not need a cut of its own
    cut.opens_commands = True
    assert not cut.is_empty
    cut.opens_commands = False
    cancelled, answer = Loaded("a load", "public", "orders", 7, 5, 1, state="cancelled"), Answer("a command", "done")
    cut.add_commands(CommandState("topic", 8), [answer], [], [cancelled])
    assert (cut.commands, cut.answers, cut.loads, cut.loaded) == (CommandState("topic", 8), [answer], [], [cancelled])
    assert not cut.is_empty


def test_the_cut_record_names_what_was_written_where() -> None:
    cut = Cut(end_lsn=215)
    cut.add(Transaction(1, 100, 0), 110)
    cut.add_records((), 0, 4)
    for op, partition in (("c", 0), ("c", 2), ("d", 2), (None, 2)):
        cut.count(ORDERS, {} if op is None else {op: 1}, {partition: 1})
    cut.count(ITEMS, {"t": 1}, {0: 1, 1: 1})
    offsets = {
        (ITEMS.topic, 1): (0, 2),
        (ORDERS.topic, 2): (5, 9),
        (ORDERS.topic, 0): (1, 3),
        (ITEMS.topic, 0): (0, 2),
    }
    (part,) = cut_records(cut, IDENTITY, offsets, {ORDERS.topic: "an id"}, full=False)
    assert cut.produced() == {
        (ORDERS.topic, 0): 1,
        (ORDERS.topic, 2): 3,
        (ITEMS.topic, 0): 1,
        (ITEMS.topic, 1): 1,
    }
    found = round_trip(part)
    assert found.pop("ts").isoformat() == "2000-01-01T00:00:00+00:00"
    assert found == {
        **IDENTITY,
        "first_lsn": 100,
        "last_lsn": 100,
        "end_lsn": 215,
        "transactions": 1,
        "events": 4,
        "topics": [
            {
                "topic": ITEMS.topic,
                "topic_id": "",
                "schema_ids": [21],
                "offsets": [{"partition": 0, "first": 0, "next": 2}, {"partition": 1, "first": 0, "next": 2}],
                "counts": {"t": 1},
            },
            {
                "topic": ORDERS.topic,
                "topic_id": "an id",
                "schema_ids": [11],
                "offsets": [{"partition": 0, "first": 1, "next": 3}, {"partition": 2, "first": 5, "next": 9}],
                "counts": {"c": 2, "d": 1},
            },
        ],
        "full": False,
        "part": 0,
        "parts": 1,
        "snapshots": [],
    }


def test_the_schema_used_last_is_named_last() -> None:
    cut = Cut()
    for number in (7, 5, 5, 9, 7, None, 7):
        target = Target("t", 7 if number is None else number, None)
        cut.count(target, {} if number is None else {"c": 1}, {0: 1})
    (part,) = cut_records(cut, IDENTITY, {("t", 0): (0, 7)}, {}, full=False)
    assert part["topics"][0]["schema_ids"] == [5, 9, 7]


def test_a_heartbeat_has_only_a_position() -> None:
    (part,) = cut_records(Cut(end_lsn=99), IDENTITY, {}, {}, full=False)
    found = round_trip(part)
    assert (found["first_lsn"], found["last_lsn"], found["end_lsn"], found["ts"]) == (None, None, 99, None)


def test_a_full_cut_lists_partitions_that_it_did_not_touch() -> None:
    (part,) = cut_records(Cut(), IDENTITY, {(ORDERS.topic, 0): (3, 3)}, {ORDERS.topic: "an id"}, full=True)
    assert round_trip(part)["topics"] == [
        {
            "topic": ORDERS.topic,
            "topic_id": "an id",
            "schema_ids": [],
            "offsets": [{"partition": 0, "first": 3, "next": 3}],
            "counts": {},
        }
    ]


def test_a_cut_record_too_large_for_a_message_is_split_between_topics() -> None:
    offsets = {(f"{'t' * 240}{n:04}", partition): (2**40, 2**41) for n in range(3000) for partition in range(8)}
    ids = {topic: "i" * 22 for topic, _ in offsets}
    parts = cut_records(Cut(), IDENTITY, offsets, ids, full=True)
    assert [(part["part"], part["parts"]) for part in parts] == [(n, len(parts)) for n in range(len(parts))]
    assert len(parts) > 1
    assert [topic["topic"] for part in parts for topic in part["topics"]] == sorted({topic for topic, _ in offsets})
    for part in parts:
        out = BytesIO()
        fastavro.schemaless_writer(out, SCHEMA, part)
        assert len(out.getvalue()) <= module.MAX_PART_BYTES


def test_marks_are_only_in_the_first_part_of_a_cut_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PART_BYTES", 1)
    cut, marks = Cut(), [mark("begin", 0, 0), mark("rows", 6, 5), mark("end", 7, 5, replaces=False)]
    cut.add_load([], LoadPosition(90, 8), marks, ())
    parts = cut_records(cut, IDENTITY, {("a", 0): (0, 1), ("b", 0): (0, 1), ("c", 0): (0, 1)}, {}, full=True)
    assert [round_trip(part)["snapshots"] for part in parts] == [[asdict(one) for one in marks], [], []]


def test_the_entry_of_one_topic_is_never_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PART_BYTES", 1)
    offsets = {(topic, partition): (0, 1) for topic in ("a", "b") for partition in range(3)}
    parts = cut_records(Cut(), IDENTITY, offsets, {}, full=True)
    assert [[topic["topic"] for topic in part["topics"]] for part in parts] == [["a"], ["b"]]
