"""Tests that the checker of storms (see ``storm``) reports each kind of problem, and none in a correct history.

A history is a list of cuts with their records. Each test damages a small history in one way. The cut records match the
damaged content, as if a faulty daemon had written them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby
from types import MappingProxyType
from typing import Any, TypeAlias

import pytest

from pgsluice.commands import Answer
from pgsluice.loads import FIRST_SEQ
from tests.faults.checker import Checker, Checkpoint, Contents, Tally, check_positions
from tests.faults.commander import check_answers
from tests.faults.script import Options
from tests.faults.witness import Change, Committed, Truth
from tests.faults.workload import ORIGIN, TOTAL, WORKER_NUMBERS
from tests.support.marks import position_of
from tests.support.reader import Cut, Event
from tests.support.replay import Replay, Table

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "ledger": ("id", "changes", "ticket", "follows", "origin"),
    "debit": ("id", "balance"),
    "credit": ("id", "balance"),
    "note": ("id", "place", "origin"),
    "aside": ("id", "lsn", "origin"),
    "goods": ("id", "n"),
    "loose": ("a", "b"),
}
STRINGS = ("origin", "lsn")

History: TypeAlias = list[list[Event]]
"""For each cut, its records without offsets."""

Marks: TypeAlias = Mapping[int, Sequence[dict[str, Any]]]
"""The marks of each cut, by the number of the cut."""

Spoil: TypeAlias = Callable[[History], object]

MESSAGES = Options(messages=True)

SLOT_LSN = 460
"""The slot's position when it is adopted, in histories with two epochs."""


def row(table: str, op: str, lsn: int, seq: int, *values: object, origin: str | None = None) -> Event:
    """Return a record of the topic of a table."""
    columns = COLUMNS[table]
    fields = [
        {"name": name, "type": ["null", kind := "string" if name in STRINGS else "long"], "pg.type": f"pg_{kind}"}
        for name in columns
    ]
    value: dict[str, Any] = {"op": op, "schema": "public", "table": table, "before": None, "before_image": "none"}
    value |= {"after": dict(zip(columns, values, strict=True)), "unchanged": [], "raw": {}, "flags": []}
    envelope = {"fields": [{"name": "before", "type": ["null", {"fields": fields}]}]}
    key_schema = {"fields": [{"name": "id", "type": "long"}]}
    number = list(COLUMNS).index(table)
    return replace(
        message(lsn, seq, "", origin),
        topic=f"p.public.{table}",
        key={"id": values[0]},
        key_bytes=f"{table} {values[0]}".encode(),
        key_schema=key_schema,
        value=value | stamp(lsn, seq, origin),
        schema=envelope,
        schema_id=number,
    )


def message(lsn: int, seq: int, content: str, origin: str | None = None) -> Event:
    """Return a record of the topic of messages."""
    value = {"prefix": "remark" if seq >= 0 else "aside", "content": content.encode(), "transactional": seq >= 0}
    value |= stamp(lsn, seq, origin) | ({"xid": None, "ts": None, "origin": None} if seq < 0 else {})
    return Event("p.messages", 0, -1, lsn, b"key", None, None, value, None, len(COLUMNS), None)


def stamp(lsn: int, seq: int, origin: str | None) -> dict[str, Any]:
    ts = datetime.fromtimestamp(lsn, UTC)
    return {"epoch": 1, "lsn": lsn, "seq": seq, "xid": lsn, "ts": ts, "origin": origin}


def transaction(number: int) -> list[Event]:
    """Return a message outside of transactions, and a transaction.

    Every third transaction has an origin and moves no money, like the transactions of the visitor in ``workload``.
    """
    lsn, moved = number * 100, 7 * number
    origin = ORIGIN if number % 3 == 0 else None
    moves = [row("debit", "u", lsn, 0, 1, TOTAL // 2 - moved), row("credit", "u", lsn, 0, 1, TOTAL // 2 + moved)]
    records = [
        message(lsn - 50, -1, f"{number} {origin or ''}"),
        row("note", "c", lsn, 0, number, 1, origin, origin=origin),
        message(lsn, 0, str(number), origin),
        *(moves if origin is None else []),
        row("aside", "c", lsn, 0, number, f"0/{lsn - 50:X}", origin, origin=origin),
        row(
            "ledger",
            "c",
            lsn,
            0,
            WORKER_NUMBERS + number,
            4 if origin is None else 2,
            number,
            None,
            origin,
            origin=origin,
        ),
    ]
    return numbered(records)


def numbered(records: Iterable[Event]) -> list[Event]:
    """Number the events of each transaction from zero, so that missing events leave no gaps."""
    return [
        change(event, seq=number) if event["seq"] >= 0 else event
        for _, found in groupby(records, lambda event: (event["lsn"], event["seq"] < 0))
        for number, event in enumerate(found)
    ]


def history() -> History:
    """Return seven transactions in three cuts."""
    first = [
        row("debit", "c", 10, 0, 1, TOTAL // 2),
        row("credit", "c", 10, 1, 1, TOTAL // 2),
        row("ledger", "c", 10, 2, 0, 2, None, None, None),
    ]
    cuts = [[first, transaction(1), transaction(2)], [transaction(3), transaction(4)], [transaction(5), transaction(6)]]
    return [[event for found in cut for event in found] for cut in cuts]


def laid_out(spoilt: History, slot_lsn: int = SLOT_LSN, marks: Marks | None = None) -> list[Cut]:
    """Return the cuts of a history, with their cut records. Records get offsets in the order in which they come.

    A cut without records begins an epoch.
    """
    ends: Counter[str] = Counter()
    cuts: list[Cut] = []
    for number, records in enumerate(spoilt, 1):
        firsts = dict(ends)
        placed = []
        for event in records:
            placed.append(replace(event, offset=ends[event.topic]))
            ends[event.topic] += 1
        begun = None if placed else birth(number, cuts[-1].record["epoch"] + 1, slot_lsn)
        record = begun or cut_record(number, placed, firsts, dict(ends))
        cuts.append(Cut({**record, "snapshots": [*(marks or {}).get(number, ())]}, placed))
    return cuts


def birth(number: int, epoch: int, slot_lsn: int) -> dict[str, Any]:
    """Return the cut record of a cut that begins an epoch."""
    nothing = {"full": False, "first_lsn": None, "last_lsn": None, "ts": None, "transactions": 0, "events": 0}
    return {"cut": number, "epoch": epoch, "end_lsn": slot_lsn, **nothing, "topics": []}


def cut_record(number: int, records: list[Event], firsts: dict[str, int], ends: dict[str, int]) -> dict[str, Any]:
    """Return the cut record that matches these records."""
    changes = [event for event in records if event["seq"] >= 0]
    by_topic = {
        topic: list(found)
        for topic, found in groupby(sorted(records, key=lambda one: (one.topic, one.position)), lambda one: one.topic)
    }
    listed = [
        {
            "topic": topic,
            "schema_ids": [found[0].schema_id],
            "counts": dict(Counter(event.op for event in found)),
            "offsets": [{"partition": 0, "first": firsts.get(topic, 0), "next": ends[topic]}],
        }
        for topic, found in by_topic.items()
    ]
    last = max(changes, key=lambda event: event.position, default=None)
    return {
        "cut": number,
        "epoch": max(event["epoch"] for event in records),
        "full": number == 1,
        "first_lsn": min((event["lsn"] for event in changes), default=None),
        "last_lsn": last and last["lsn"],
        "end_lsn": max(event["lsn"] for event in records) + 1,
        "ts": last and last["ts"],
        "transactions": len({event["lsn"] for event in changes}),
        "events": len({event.position for event in records}),
        "topics": listed,
    }


def contents(options: Options, cuts: History | None = None) -> Contents:
    """Return the content of the database after the whole history, without changes that the options exclude."""
    events = [event for cut in cuts or history() for event in cut if event.op != "m"]
    rows: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in COLUMNS}
    for event in events:
        if event["after"] is None:
            del rows[event["table"]][event["before"]["id"]]
        elif options.origin == "any" or event["after"].get("origin") is None:
            rows[event["table"]][event["after"]["id"]] = event["after"]
    asides = {number: 100 * number - 50 for number in rows["aside"]}
    return Contents(
        frozenset(rows["ledger"]),
        asides if options.messages else {},
        6,
        {
            name: (
                list(columns),
                Counter(
                    tuple(None if one[column] is None else str(one[column]) for column in columns)
                    for one in rows[name].values()
                ),
            )
            for name, columns in COLUMNS.items()
        },
    )


def judged(
    spoilt: History,
    options: Options = MESSAGES,
    rest: Iterable[Event] = (),
    adoptions: Sequence[int] = (),
    prepares: Mapping[int, int] | None = None,
) -> Tally:
    """Return the checker's reports about a history that it reads cut by cut.

    A new epoch begins at the position of the first adoption.
    """
    checker = Checker(Replay(tombstones=lambda _: False, partitions=lambda _: 1), options, adoptions, prepares)
    checker.check_cuts(laid_out(spoilt, adoptions[0] if adoptions else SLOT_LSN))
    checker.check_whole(contents(options), list(rest))
    return checker.tally


def change(event: Event, **fields: object) -> Event:
    """Return a copy of the record in which these fields have other values."""
    assert event.value is not None
    return replace(event, value=event.value | fields)


def test_a_correct_history_has_no_problems() -> None:
    tally = judged(history())
    assert tally.problems == []
    assert (tally.transactions, tally.cuts, tally.sums, tally.prepared, tally.messages) == (7, 3, 3, 1, 12)


def test_a_correct_history_without_messages_and_origins_has_no_problems() -> None:
    seen = [[event for event in cut if event["lsn"] % 300 and event.op != "m"] for cut in history()]
    tally = judged([numbered(event for event in cut if event["seq"] >= 0) for cut in seen], Options(origin="none"))
    assert tally.problems == []
    assert (tally.transactions, tally.messages) == (5, 0)


def found(cuts: History, lsn: int, *names: str) -> list[tuple[list[Event], Event]]:
    """Return the records at an LSN, each with its cut. If there are names, return only records of these topics."""
    return [
        (cut, event)
        for cut in cuts
        for event in cut
        if event["lsn"] == lsn and (not names or event.topic.rpartition(".")[2] in names)
    ]


def without(lsn: int, *names: str, unnoticed: bool = False) -> Spoil:
    """Leave records out. With ``unnoticed``, renumber the others, so that there is no gap."""

    def spoil(cuts: History) -> None:
        for cut, event in found(cuts, lsn, *names):
            cut.remove(event)
        if unnoticed:
            cuts[:] = [numbered(cut) for cut in cuts]

    return spoil


def with_other(at: int, name: str, /, **fields: object) -> Spoil:
    """Change fields of a record."""

    def spoil(cuts: History) -> None:
        for cut, event in found(cuts, at, name):
            cut[cut.index(event)] = change(event, **fields)

    return spoil


def with_other_row(lsn: int, name: str, **columns: object) -> Spoil:
    """Change columns of a row."""

    def spoil(cuts: History) -> None:
        for _, event in found(cuts, lsn, name):
            with_other(lsn, name, after=event["after"] | columns)(cuts)

    return spoil


def again(lsn: int, *names: str, at: int | None = None) -> Spoil:
    """Repeat records in the last cut, at another LSN if ``at`` is given."""

    def spoil(cuts: History) -> None:
        cuts[-1] += [change(event, lsn=lsn if at is None else at) for _, event in found(cuts, lsn, *names)]

    return spoil


def more(*events: Event) -> Spoil:
    """Add records to the last cut."""
    return lambda cuts: cuts[-1].extend(events)


def exchange_cuts(cuts: History) -> None:
    cuts[1], cuts[2] = cuts[2], cuts[1]


def exchange_transactions(cuts: History) -> None:
    """Swap the commit LSNs of the first two transactions."""
    lsns = {100: 200, 200: 100}
    moved = [change(event, lsn=lsns.get(event["lsn"], event["lsn"])) for event in cuts[0]]
    cuts[0] = sorted(moved, key=lambda event: event.position)


def tear(cuts: History) -> None:
    """Let a cut end between the debit and the credit of a transaction."""
    ((_, credit),) = found(cuts, 200, "credit")
    end = cuts[0].index(credit)
    cuts[1][:0] = cuts[0][end:]
    del cuts[0][end:]


def misplace_message(cuts: History) -> None:
    """Put a message before its note, although the note says that the message follows it."""
    with_other(200, "messages", seq=0)(cuts)
    with_other(200, "note", seq=1)(cuts)


SPOILT: Mapping[str, tuple[str, Spoil]] = {
    "a transaction is missing": ("lost", without(400)),
    "a transaction comes again at a later position": ("doubled", again(500, at=700)),
    "a transaction comes again in its cut": ("other", again(500)),
    "a transaction comes again in a later cut": ("out_of_order", again(400)),
    "a transaction that was never committed is delivered": (
        "other",
        more(row("ledger", "c", 700, 0, 77, 0, None, None, None)),
    ),
    "a change is missing": ("torn", without(400, "debit")),
    "a change is missing, and the numbers have no gap": ("torn", without(400, "debit", unnoticed=True)),
    "the first and the last change are missing": ("torn", without(400, "note", "ledger", unnoticed=True)),
    "a change comes twice": ("other", again(600, "aside")),
    "a change comes again in a later cut": ("torn", again(400, "credit")),
    "a transaction is torn by a cut": ("torn", tear),
    "two transactions are merged into one": ("torn", with_other(200, "ledger", lsn=100)),
    "cuts have changed places": ("out_of_order", exchange_cuts),
    "transactions have changed places": ("out_of_order", exchange_transactions),
    "a row has another value": ("torn", with_other_row(500, "debit", balance=1)),
    "the last row has another value": ("other", with_other_row(600, "note", place=-1)),
    "an origin is missing": ("other", with_other(300, "note", origin=None)),
    "an origin is invented": ("other", with_other(400, "note", origin=ORIGIN)),
    "a change has the xid of another transaction": ("other", with_other(400, "note", xid=7)),
    "a message is missing": ("torn", without(400, "messages", unnoticed=True)),
    "a message of a rolled-back savepoint is delivered": ("torn", more(message(600, 4, "17", ORIGIN))),
    "a message is in another place": ("torn", misplace_message),
    "a message has other content": ("torn", with_other(400, "messages", content=b"5")),
    "a message is wrongly outside of transactions": ("torn", with_other(400, "messages", transactional=False)),
    "a message outside of transactions is missing": ("lost", without(350)),
    "a message outside of transactions comes again": ("doubled", again(350, at=650)),
    "a message outside of transactions is at another place": ("other", with_other(350, "messages", lsn=351)),
    "a message outside of transactions comes late": ("out_of_order", again(350)),
    "a message outside of transactions was never written": ("other", more(message(650, -1, "7"))),
    "a message outside of transactions has an origin": ("other", with_other(350, "messages", origin=ORIGIN)),
}


@pytest.mark.parametrize("name", SPOILT)
def test_each_error_is_reported(name: str) -> None:
    kind, spoil = SPOILT[name]
    spoilt = history()
    spoil(spoilt)
    assert getattr(judged(spoilt), kind) > 0


def test_changes_that_the_options_exclude_are_reported() -> None:
    assert judged(history(), Options()).other > 0  # messages outside of transactions
    assert judged(history(), Options()).torn > 0  # messages in transactions
    assert judged(history(), Options(messages=True, origin="none")).other > 0


def test_records_that_no_cut_lists_are_reported() -> None:
    assert judged(history(), rest=[history()[0][0]]).other > 0


class TestAtLeastOnce:
    """Records after the last checkpoint may come again, but must not have changed."""

    @staticmethod
    def judged(records: Iterable[Event], *checkpoints: Checkpoint) -> Tally:
        checker = Checker(Replay(tombstones=lambda _: False, partitions=lambda _: 1), MESSAGES)
        checker.check_repeated([replace(event, offset=number) for number, event in enumerate(records)], checkpoints)
        checker.check_whole(contents(MESSAGES), [])
        return checker.tally

    @staticmethod
    def records() -> list[Event]:
        """Return all records. Their timestamps are one second apart."""
        everything = [event for cut in history() for event in cut]
        return [replace(event, timestamp_ms=1000 * number) for number, event in enumerate(everything)]

    def test_a_correct_history_has_no_problems(self) -> None:
        records = self.records()
        tally = self.judged(
            [*records, *(replace(event, timestamp_ms=99_000) for event in records[-12:])], Checkpoint(28.5, 401)
        )
        assert tally.problems == []
        assert tally.repeated == 12

    def test_a_repetition_from_before_the_checkpoint_is_reported(self) -> None:
        records = self.records()
        assert self.judged([*records, replace(records[-1], timestamp_ms=99_000)], Checkpoint(90.0, 601)).doubled > 0

    def test_a_changed_repetition_is_reported(self) -> None:
        records = self.records()
        assert self.judged([*records, change(records[-1], origin=None)]).other > 0

    def test_a_late_record_is_reported(self) -> None:
        records = self.records()
        ledger = next(event for event in records if event["lsn"] == 400 and event.topic.endswith("ledger"))
        records.remove(ledger)
        assert self.judged([*records, ledger]).out_of_order > 0

    def test_a_missing_record_is_reported(self) -> None:
        assert self.judged(event for event in self.records() if event["lsn"] != 400).lost > 0


class TestNewEpoch:
    """A new epoch begins when the slot is adopted (``--adopt-slot``).

    First, exactly the transactions after the slot's position have to come again. New transactions follow.
    """

    @staticmethod
    def history(slot_lsn: int = SLOT_LSN) -> History:
        """Return a history with two epochs.

        The second epoch first repeats the transactions after the slot's position. Then the last transaction follows.
        """
        *cuts, last = history()
        former = [event for event in last if event["lsn"] <= 500]
        again = [event for event in former if event["lsn"] >= slot_lsn]
        new = [event for event in last if event["lsn"] > 500]
        return [*cuts, former, [], *([change(event, epoch=2) for event in found] for found in (again, new))]

    def test_a_correct_history_has_no_problems(self) -> None:
        tally = judged(self.history(), adoptions=[SLOT_LSN])
        assert tally.problems == []
        assert (tally.transactions, tally.repeated, tally.messages) == (7, 6, 12)

    def test_an_epoch_may_begin_without_repetitions(self) -> None:
        cuts = self.history()
        del cuts[4]
        tally = judged(cuts, adoptions=[501])
        assert tally.problems == []
        assert tally.repeated == 0

    def test_a_message_outside_of_transactions_comes_again(self) -> None:
        tally = judged(self.history(450), adoptions=[450])
        assert tally.problems == []
        assert tally.repeated == 7

    @pytest.mark.parametrize(
        ("prepared_at", "two_phase", "excused"),
        [(SLOT_LSN - 1, True, True), (SLOT_LSN, True, False), (SLOT_LSN - 1, False, False)],
    )
    def test_a_transaction_prepared_before_the_slots_position_cannot_come_again(
        self,
        prepared_at: int,
        two_phase: bool,  # noqa: FBT001
        excused: bool,  # noqa: FBT001
    ) -> None:
        options = replace(MESSAGES, two_phase=two_phase)
        prepares = {WORKER_NUMBERS + 5: prepared_at}
        cuts = self.history()
        del cuts[4]
        assert (judged(cuts, options, adoptions=[SLOT_LSN], prepares=prepares).problems == []) == excused
        assert judged(self.history(), options, adoptions=[SLOT_LSN], prepares=prepares).problems == []

    @pytest.mark.parametrize("adoptions", [[], [SLOT_LSN, 700]], ids=["none", "two"])
    def test_an_epoch_begins_only_after_an_adoption(self, adoptions: list[int]) -> None:
        assert judged(self.history(), adoptions=adoptions).other > 0

    def test_an_epoch_begins_at_the_slots_position(self) -> None:
        checker = Checker(Replay(tombstones=lambda _: False, partitions=lambda _: 1), MESSAGES, [SLOT_LSN])
        checker.check_cuts(laid_out(self.history(), SLOT_LSN + 1))
        assert checker.tally.other == 1

    @pytest.mark.parametrize("epoch", [1, 3])
    def test_epochs_follow_each_other(self, epoch: int) -> None:
        cuts = self.history()
        cuts[-1] = [change(event, epoch=epoch) for event in cuts[-1]]
        assert judged(cuts, adoptions=[SLOT_LSN]).other > 0

    SPOILT: Mapping[str, tuple[str, Spoil]] = {
        "a repetition has another value": ("other", lambda cuts: with_other_row(500, "credit", balance=1)(cuts[4:])),
        "a repetition has another xid": ("other", lambda cuts: with_other(500, "note", xid=7)(cuts[4:])),
        "a repetition lacks a change": ("other", lambda cuts: without(500, "debit")(cuts[4:])),
        "a repetition is missing": ("other", lambda cuts: cuts.pop(4)),
        "a repetition is torn by a cut": ("other", lambda cuts: cuts.insert(5, [cuts[4].pop()])),
        "a repetition comes late": ("doubled", lambda cuts: cuts.append(cuts.pop(4))),
        "a repetition comes twice": ("doubled", lambda cuts: cuts.insert(5, cuts[4])),
        "a repetition is older than the slot's position": ("doubled", lambda cuts: cuts.insert(4, of_epoch_2(400))),
        "a message from before the slot's position comes again": (
            "doubled",
            lambda cuts: cuts[4].extend(of_epoch_2(450)),
        ),
        "a new transaction is missing": ("lost", lambda cuts: cuts[4].extend(cuts.pop()[:1])),
        "a new transaction lacks a change": ("torn", lambda cuts: without(600, "note")(cuts[5:])),
    }

    @pytest.mark.parametrize("name", SPOILT)
    def test_each_error_is_reported(self, name: str) -> None:
        kind, spoil = self.SPOILT[name]
        spoilt = self.history()
        spoil(spoilt)
        assert getattr(judged(spoilt, adoptions=[SLOT_LSN]), kind) > 0


def of_epoch_2(lsn: int) -> list[Event]:
    """Return the records at an LSN as the second epoch would repeat them."""
    return [change(event, epoch=2) for cut in history() for event in cut if event["lsn"] == lsn]


class Scene:
    """A history with a table that had three rows before the slot was created. A load delivers them in two cuts."""

    def __init__(self) -> None:
        """Build the history. One row changes before it is read, one changes later, and one is deleted later."""
        self.cuts = history()
        self._change(400, row("goods", "u", 400, 0, 2, 21))
        self._change(500, deleted(500, 3))
        self._change(500, row("goods", "u", 500, 0, 1, 11))
        self.cuts[0] += [read(220, 1, 1, 10)]
        self.cuts[1] += [read(420, 0, 2, 21), read(420, 1, 3, 30)]
        self.marks: dict[int, list[dict[str, Any]]] = {
            1: [mark("begin", 220, 0, 0), mark("rows", 220, 2, 1)],
            2: [mark("rows", 420, 2, 3), mark("end", 420, 3, 3)],
        }
        self.forgets = False

    def _change(self, lsn: int, event: Event) -> None:
        """Add a change to a transaction, before its line in the ledger."""
        ((cut, line),) = found(self.cuts, lsn, "ledger")
        cut.insert(cut.index(line), event)
        with_other_row(lsn, "ledger", changes=line["after"]["changes"] + 1)(self.cuts)
        self.cuts = [numbered(one) for one in self.cuts]

    def truth(self) -> Truth:
        """Return the content of the tables as the witness would report it."""
        told = [Committed(5, [Change("goods", None, goods(number, 10 * number)) for number in (1, 2, 3)])]
        events = sorted((event for cut in Scene().cuts for event in cut if event.op not in "mr"), key=position_of)
        for lsn, found in groupby(events, lambda event: event["lsn"]):
            told.append(Committed(lsn, [_told(event) for event in found]))
        return Truth(told)

    def judged(self) -> Tally:
        """Return the checker's reports."""
        replay = Replay(
            tombstones=lambda _: False,
            partitions=lambda _: 1,
            partial=["public.goods"],
            forgets=lambda _: self.forgets,
        )
        checker = Checker(replay, MESSAGES, truth=self.truth())
        checker.check_cuts(laid_out(self.cuts, marks=self.marks))
        checker.check_loaded()
        checker.check_whole(contents(MESSAGES, Scene().cuts), [])
        return checker.tally

    def take_row(self, number: int) -> None:
        """Leave out a row that was read."""
        for cut in self.cuts:
            cut[:] = [event for event in cut if not (event.op == "r" and event["after"]["id"] == number)]

    def put_row(self, number: int, **fields: object) -> None:
        """Change the values of a row that was read."""
        for cut in self.cuts:
            for place, event in enumerate(cut):
                if event.op == "r" and event["after"]["id"] == number:
                    cut[place] = change(event, **fields)

    def count(self, rows: int) -> None:
        """Set the number of rows in the marks of the second cut."""
        for one in self.marks[2]:
            one["rows"] = rows


def deleted(lsn: int, number: int) -> Event:
    """Return the event of a DELETE."""
    before = {"id": number, "n": None}
    return change(row("goods", "d", lsn, 0, number, 0), after=None, before=before, before_image="key")


def _told(event: Event) -> Change:
    """Return a change as the witness reports it."""
    before, after = event["before"], event["after"]
    return Change(event["table"], before and goods(before["id"], 0), after and _texts(after))


def _texts(row: Mapping[str, object]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in row.items()}


def goods(number: int, n: int) -> dict[str, str | None]:
    """Return a row of the table that is loaded."""
    return _texts({"id": number, "n": n})


def read(lsn: int, count: int, *values: object) -> Event:
    """Return a row that was read. At its position, ``count`` other rows and marks come before it."""
    return change(row("goods", "r", lsn, FIRST_SEQ + count, *values), xid=0)


def read_loose(lsn: int, count: int, number: int) -> Event:
    """Return a row that was read from a table without a key."""
    found = change(row("loose", "r", lsn, FIRST_SEQ + count, number, 0), xid=0)
    return replace(found, key=None, key_bytes=None, key_schema=None)


LOOSE = {"topic": "p.public.loose", "table": "loose", "id": "first load"}
LOOSE_AGAIN = LOOSE | {"id": "second load"}


def mark(
    state: str, lsn: int, count: int, rows: int, fields: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Return a mark. At its position, ``count`` rows and marks come before it. ``fields`` overrides its fields."""
    names = {"topic": "p.public.goods", "schema": "public", "table": "goods", "id": "load", "state": state}
    return {**names, "epoch": 1, "lsn": lsn, "seq": FIRST_SEQ + count, "rows": rows, "replaces": True, **fields}


class TestLoads:
    """Rows that were read have to equal the table at their position. After a load, the copy has to equal the table."""

    def test_a_correct_history_has_no_problems(self) -> None:
        for forgets in (False, True):
            scene = Scene()
            scene.forgets = forgets
            tally = scene.judged()
            assert tally.problems == []
            assert (tally.loads, tally.rows_read, tally.transactions) == (1, 3, 7)
            assert tally.compared > 0

    @staticmethod
    def _without_row(scene: Scene) -> None:
        scene.take_row(3)

    @staticmethod
    def _without_row_that_is_counted(scene: Scene) -> None:
        scene.take_row(3)
        scene.count(2)

    @staticmethod
    def _too_early(scene: Scene) -> None:
        """Move the second row to a position before its change."""
        scene.take_row(2)
        scene.cuts[0].append(read(220, 2, 2, 21))
        scene.marks[1][1] |= {"rows": 2, "seq": FIRST_SEQ + 3}

    @staticmethod
    def _not_there(scene: Scene) -> None:
        scene.cuts[1].append(read(420, 2, 4, 40))
        scene.marks[2] = [mark("end", 420, 3, 4)]

    @staticmethod
    def _twice(scene: Scene) -> None:
        scene.cuts[1].append(read(420, 2, 3, 30))
        scene.marks[2] = [mark("end", 420, 3, 3)]

    @staticmethod
    def _behind_the_end(scene: Scene) -> None:
        scene.cuts[2].insert(0, read(430, 0, 3, 30))

    @staticmethod
    def _begins_twice(scene: Scene) -> None:
        scene.marks[2].insert(0, mark("begin", 410, 0, 1))

    @staticmethod
    def _of_another_load(scene: Scene) -> None:
        scene.marks[2][1]["id"] = "another"

    SPOILT: Mapping[str, tuple[str, Callable[[Scene], object]]] = {
        "a row is missing": ("other", _without_row),
        "a row is missing, and the total is too low": ("untrue", _without_row_that_is_counted),
        "a row is stale": ("untrue", lambda scene: scene.put_row(2, after={"id": 2, "n": 20})),
        "a row has another value": ("untrue", lambda scene: scene.put_row(3, after={"id": 3, "n": 31})),
        "a row is at a position where it had other values": ("untrue", _too_early),
        "a row is read that the table does not have": ("untrue", _not_there),
        "a row comes twice": ("other", _twice),
        "a row comes after the end of its load": ("other", _behind_the_end),
        "the total is wrong": ("other", lambda scene: scene.count(4)),
        "a load has an end, but no beginning": ("other", lambda scene: scene.marks[1].pop(0)),
        "a load has no end": ("lost", lambda scene: scene.marks[2].pop()),
        "the end belongs to another load": ("other", _of_another_load),
        "a load begins twice": ("other", _begins_twice),
        "a change after the end of the load is missing": ("untrue", lambda scene: without(500, "goods")(scene.cuts)),
    }

    @pytest.mark.parametrize("name", SPOILT)
    def test_each_error_is_reported(self, name: str) -> None:
        kind, spoil = self.SPOILT[name]
        scene = Scene()
        spoil(scene)
        assert getattr(scene.judged(), kind) > 0

    @staticmethod
    def judged_without_key(*, second_end: bool = True, rows: Sequence[int] = (1, 2)) -> Tally:
        """Load a table without a key twice, the second time in two cuts. Return the checker's reports."""
        cuts = [
            [read_loose(220, 1, 1), read_loose(220, 2, 2)],
            [read_loose(420, 1, rows[0])],
            [read_loose(420, 3, rows[1])],
        ]
        marks = {
            1: [mark("begin", 220, 0, 0, LOOSE), mark("end", 220, 3, 2, LOOSE)],
            2: [mark("begin", 420, 0, 0, LOOSE_AGAIN), mark("rows", 420, 2, 1, LOOSE_AGAIN)],
            3: [mark("end", 420, 4, 2, LOOSE_AGAIN)] if second_end else [],
        }
        replay = Replay(tombstones=lambda _: False, partitions=lambda _: 1, partial=["public.loose"])
        told = [Change("loose", None, _texts({"a": number, "b": 0})) for number in (1, 2)]
        checker = Checker(replay, Options(), truth=Truth([Committed(5, told)]))
        checker.check_cuts(laid_out(cuts, marks=marks))
        checker.check_loaded()
        return checker.tally

    def test_a_copy_without_a_key_has_rows_twice_until_the_second_load_ends(self) -> None:
        tally = self.judged_without_key()
        assert (tally.problems, tally.loads, tally.compared) == ([], 2, 4)
        assert self.judged_without_key(second_end=False).lost == 1
        assert self.judged_without_key(rows=(1, 1)).untrue == 1

    def test_rows_older_than_the_load_are_removed_at_its_end(self) -> None:
        """A consumer may have kept a row from an earlier epoch, and may have missed the change that deleted the row."""
        table = Table("public.goods", ("id",), {("9",): {"id": "9", "n": "1"}}, places={("9",): (1, 1, 0)})
        table.drop_before((1, 220, FIRST_SEQ))
        assert table.rows == {}


class TestAnswers:
    """Each command has one first answer, and each table of an accepted command has one final answer."""

    @staticmethod
    def judged(*answers: Answer, is_atomic: bool = True) -> Tally:
        tally = Tally()
        check_answers(["7"], {"7": [asdict(one) for one in answers]}, tally, is_atomic=is_atomic)
        return tally

    DONE = Answer("7", "done")
    ACCEPTED = Answer("7", "accepted", tables=("a", "b"))
    ENDS = (Answer("7", "loaded", tables=("a",)), Answer("7", "ended", tables=("b",)))

    def test_a_correct_history_has_no_problems(self) -> None:
        waiting = Answer("7", "waiting", tables=("a",))
        for answers in ([self.DONE], [Answer("7", "refused")], [self.ACCEPTED, waiting, waiting, *self.ENDS]):
            tally = self.judged(*answers)
            assert (tally.problems, tally.commands) == ([], 1)

    def test_each_error_is_reported(self) -> None:
        assert self.judged().lost == 1
        assert self.judged(self.DONE, self.DONE).doubled == 1
        assert self.judged(self.DONE, self.ACCEPTED, *self.ENDS).doubled == 1
        assert self.judged(self.ACCEPTED, self.ACCEPTED, *self.ENDS).doubled == 1
        assert self.judged(self.ACCEPTED, *self.ENDS, self.ENDS[0]).doubled == 1
        assert self.judged(self.ACCEPTED, self.ENDS[0]).doubled == 1

    def test_answers_may_be_repeated_in_at_least_once_mode(self) -> None:
        assert self.judged(self.DONE, self.DONE, is_atomic=False).problems == []
        assert self.judged(is_atomic=False).lost == 1


def test_a_slot_ahead_of_its_checkpoint_is_reported() -> None:
    samples = [(1.0, 100), (3.0, 200)]
    tally = Tally()
    check_positions(samples, [Checkpoint(0.5, 100), Checkpoint(2.0, 200)], tally)
    assert tally.problems == []
    check_positions(samples, [Checkpoint(0.5, 100), Checkpoint(4.0, 200)], tally)
    assert tally.other == 1


def test_a_slot_ahead_of_the_checkpoints_of_its_epoch_is_reported() -> None:
    checkpoints = [Checkpoint(0.5, 900), Checkpoint(2.0, 100, epoch=2), Checkpoint(4.0, 300, epoch=2)]
    tally = Tally()
    check_positions([(1.0, 900), (3.0, 100), (5.0, 300)], checkpoints, tally)
    assert tally.problems == []
    check_positions([(3.0, 200)], checkpoints, tally)
    assert tally.other == 1
