"""The events that follow from the messages of one connection."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from pgsluice import waiting
from pgsluice.errors import Diverged, ProtocolError
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.messages import Delete, Insert, LogicalMessage, StreamAbort, Truncate, Update
from pgsluice.relation import RelationCache, size_of
from pgsluice.transaction import (
    Change,
    Committed,
    Delivered,
    Emitted,
    Event,
    Held,
    MessageResent,
    Paused,
    Prepared,
    Resent,
    RolledBack,
    Transaction,
    Unexpected,
)
from pgsluice.transactions import Transactions
from tests.support.ends import MemoryRows, MemorySpool
from tests.support.pgoutput_encoder import encode


def column(name: str, type_oid: int, *, is_key: bool = False) -> messages.RelationColumn:
    return messages.RelationColumn(is_key, name, type_oid, -1)


TABLE = messages.Relation(None, 7, "public", "t", "d", (column("id", 23, is_key=True),))
OTHER = messages.Relation(None, 8, "public", "o", "d", TABLE.columns)
BEGIN = messages.Begin(commit_lsn=100, commit_ts=5, xid=700)
COMMIT = messages.Commit(commit_lsn=100, end_lsn=120, commit_ts=5)
INSERT = Insert(None, 7, [b"1"])

STOP = messages.StreamStop()


def start(xid: int, *, first: bool = True) -> messages.StreamStart:
    return messages.StreamStart(xid, first)


def row(xid: int | None, value: int, relation_oid: int = 7) -> Insert:
    return Insert(xid, relation_oid, [str(value).encode()])


def segment(xid: int, *rows: messages.Message, first: bool = True) -> list[messages.Message]:
    return [start(xid, first=first), *rows, STOP]


def truncate(xid: int | None, *relation_oids: int) -> Truncate:
    return Truncate(xid, cascade=False, restart_identity=True, relation_oids=relation_oids)


def emitted(xid: int | None, lsn: int, content: bytes, *, transactional: bool = True) -> LogicalMessage:
    return LogicalMessage(xid, transactional, lsn, "p", content)


def stream_commit(xid: int, commit_lsn: int = 100) -> messages.StreamCommit:
    return messages.StreamCommit(xid, commit_lsn, commit_lsn + 20, 5)


def prepare(xid: int, prepare_lsn: int = 50, gid: str = "g") -> messages.Prepare:
    return messages.Prepare(prepare_lsn, prepare_lsn + 10, 4, xid, gid)


def begin_prepare(xid: int, prepare_lsn: int = 50, gid: str = "g") -> messages.BeginPrepare:
    return messages.BeginPrepare(prepare_lsn, prepare_lsn + 10, 4, xid, gid)


def stream_prepare(xid: int, prepare_lsn: int = 50, gid: str = "g") -> messages.StreamPrepare:
    return messages.StreamPrepare(prepare_lsn, prepare_lsn + 10, 4, xid, gid)


def commit_prepared(xid: int, commit_lsn: int = 100) -> messages.CommitPrepared:
    return messages.CommitPrepared(commit_lsn, commit_lsn + 20, 5, xid, "g")


def rollback_prepared(xid: int) -> messages.RollbackPrepared:
    return messages.RollbackPrepared(60, 120, 4, 5, xid, "g")


def receive(found: Transactions, *received: messages.Message) -> list[Event]:
    """Receive messages, and return all resulting events."""
    return [event for message in received for event in found.receive(encode(message))]


def transactions(*received: messages.Message, delivered_lsn: int = 0) -> Transactions:
    """Return the transactions of a connection that has received descriptions of the tables and these messages."""
    found = Transactions(Delivered(delivered_lsn, delivered_lsn, delivered_lsn), MemorySpool())
    assert not receive(found, TABLE, OTHER, *received)
    return found


def values(events: Sequence[Event]) -> list[int]:
    """Return the values in the changes among the events."""
    return [int(event.message.rpartition(b"\0")[2][1:]) for event in events if isinstance(event, Change)]


class TestOrdinaryTransactions:
    def test_a_row_comes_out_with_its_transaction_and_its_relation(self) -> None:
        found = transactions(BEGIN)
        assert receive(found, INSERT) == [Change(Transaction(700, 100, 5), found.relations[7], encode(INSERT))]

    @pytest.mark.parametrize("message", [Update(None, 7, None, None, [b"1"]), Delete(None, 7, [b"1"], None)])
    def test_updates_and_deletes_are_changes_too(self, message: messages.Message) -> None:
        (change,) = receive(transactions(BEGIN), message)
        assert isinstance(change, Change)
        assert change.message == encode(message)

    def test_a_truncate_is_one_change_per_table(self) -> None:
        events = receive(transactions(BEGIN), truncate(None, 8, 7))
        assert [event.relation.name for event in events if isinstance(event, Change)] == ["o", "t"]

    def test_a_commit_ends_the_transaction_at_its_end_lsn(self) -> None:
        found = transactions(BEGIN)
        assert not found.is_between
        assert receive(found, COMMIT) == [Committed(Transaction(700, 100, 5), 120)]
        assert found.is_between

    def test_a_transaction_passes_immediately_if_it_begins_behind_the_delivered_position(self) -> None:
        found = transactions(delivered_lsn=90)
        assert found.passes_from == 90
        receive(found, BEGIN)
        assert found.passes_from is None
        receive(found, COMMIT)
        assert found.passes_from == 90

    def test_an_origin_belongs_to_the_transaction(self) -> None:
        (change,) = receive(transactions(BEGIN, messages.Origin(9, "elsewhere")), INSERT)
        assert isinstance(change, Change)
        assert change.transaction.origin == "elsewhere"

    def test_a_type_is_known_to_the_relations_that_follow(self) -> None:
        mood = column("mood", 20000)
        found = transactions(
            messages.Type(None, 20000, "public", "mood"), messages.Relation(None, 9, "public", "m", "n", (mood,))
        )
        assert found.relations[9].columns[0].type.name == "mood"

    def test_transactions_do_not_nest(self) -> None:
        with pytest.raises(ProtocolError, match="Begin inside another transaction"):
            receive(transactions(BEGIN), BEGIN)

    def test_a_commit_has_to_match_its_begin(self) -> None:
        with pytest.raises(ProtocolError, match="Commit at 0/65 for a transaction that began with commit LSN 0/64"):
            receive(transactions(BEGIN), messages.Commit(101, 120, 5))

    def test_a_change_of_a_table_that_was_not_described_is_an_error(self) -> None:
        with pytest.raises(ProtocolError, match="relation 99"):
            receive(transactions(BEGIN), Insert(None, 99, []))

    @pytest.mark.parametrize(
        "message",
        [
            INSERT,
            COMMIT,
            messages.Origin(0, "o"),
            truncate(None, 7),
            emitted(None, 1, b""),
        ],
        ids=lambda message: type(message).__name__,
    )
    def test_messages_of_a_transaction_are_refused_outside_of_a_transaction(self, message: messages.Message) -> None:
        with pytest.raises(ProtocolError, match="outside a transaction"):
            receive(transactions(), message)

    def test_bytes_that_are_not_a_message_are_an_error(self) -> None:
        with pytest.raises(ProtocolError, match="found the end"):
            transactions().receive(b"")


class TestDeliveredBefore:
    def test_a_delivered_transaction_comes_out_without_its_changes(self) -> None:
        inside = (INSERT, truncate(None, 7), emitted(None, 90, b""))
        found = transactions(BEGIN, *inside, delivered_lsn=120)
        assert receive(found, COMMIT) == [Resent(Transaction(700, 100, 5), 120)]

    @pytest.mark.parametrize(
        "received",
        [
            (BEGIN, INSERT, COMMIT),
            (*segment(700, row(700, 1)), stream_commit(700)),
            (begin_prepare(700), row(None, 1), prepare(700), commit_prepared(700)),
        ],
        ids=["ordinary", "streamed", "prepared"],
    )
    def test_a_transaction_that_commits_at_the_delivered_position_is_new(
        self, received: Sequence[messages.Message]
    ) -> None:
        events = receive(transactions(delivered_lsn=100), *received)
        assert values(events) == [1]
        assert events[-1] == Committed(Transaction(700, 100, 5), 120)

    def test_a_delivered_position_inside_a_commit_record_is_another_servers(self) -> None:
        found = transactions(BEGIN, delivered_lsn=110)
        with pytest.raises(Diverged, match="0/6E, recorded as delivered, lies inside the commit record 0/64 to"):
            receive(found, COMMIT)

    def test_a_streamed_transaction_that_was_delivered_is_dropped(self) -> None:
        found = transactions(*segment(700, row(700, 1)), delivered_lsn=120)
        assert receive(found, stream_commit(700)) == [Resent(Transaction(700, 100, 5), 120)]
        assert found.waiting == 0

    def test_a_prepared_transaction_that_was_delivered_is_dropped(self) -> None:
        found = transactions(begin_prepare(700), row(None, 1), delivered_lsn=120)
        assert [type(event) for event in receive(found, prepare(700))] == [Prepared]
        assert receive(found, commit_prepared(700)) == [Resent(Transaction(700, 100, 5), 120)]

    def test_a_delivered_message_outside_transactions_is_dropped(self) -> None:
        found = transactions(delivered_lsn=120)
        message = emitted(None, 120, b"", transactional=False)
        assert receive(found, message) == [MessageResent(message)]


class TestWhereNothingWasToBeDelivered:
    """Changes and messages between the last delivered transaction and the delivered position.

    Heartbeats have advanced the delivered position.
    """

    HEARTBEATS = Delivered(1000, transaction_lsn=100, message_lsn=80)

    def events(self, *received: messages.Message) -> list[Event]:
        return receive(Transactions(self.HEARTBEATS, MemorySpool()), TABLE, OTHER, *received)

    def test_a_change_is_unexpected(self) -> None:
        *unexpected, resent = self.events(BEGIN, INSERT, truncate(None, 7, 8), COMMIT)
        changes = [event.change for event in unexpected if isinstance(event, Unexpected)]
        assert [one.relation.oid for one in changes if isinstance(one, Change)] == [7, 7, 8]
        assert {one.transaction and one.transaction.xid for one in changes} == {700}
        assert resent == Resent(Transaction(700, 100, 5), 120)

    @pytest.mark.parametrize(
        "received",
        [
            (*segment(700, row(700, 1)), stream_commit(700)),
            (begin_prepare(700), row(None, 1), prepare(700), commit_prepared(700)),
        ],
        ids=["streamed", "prepared"],
    )
    def test_a_change_that_has_waited_is_unexpected(self, received: Sequence[messages.Message]) -> None:
        *_, unexpected, resent = self.events(*received)
        assert isinstance(unexpected, Unexpected)
        assert isinstance(unexpected.change, Change)
        assert resent == Resent(Transaction(700, 100, 5), 120)

    def test_a_change_that_was_rolled_back_is_not_unexpected(self) -> None:
        rolled_back = [*segment(700, row(701, 1)), StreamAbort(700, 701, None, None), stream_commit(700)]
        assert [type(event) for event in self.events(*rolled_back)] == [Resent]

    def test_a_message_of_a_transaction_is_unexpected(self) -> None:
        unexpected, _ = self.events(BEGIN, emitted(None, 90, b"x"), COMMIT)
        assert isinstance(unexpected, Unexpected)
        assert isinstance(unexpected.change, Emitted)

    def test_a_message_behind_the_last_delivered_one_is_unexpected(self) -> None:
        message = emitted(None, 80, b"", transactional=False)
        assert self.events(message) == [MessageResent(message)]
        (unexpected,) = self.events(emitted(None, 81, b"", transactional=False))
        assert isinstance(unexpected, Unexpected)
        assert isinstance(unexpected.change, Emitted)
        assert unexpected.change.transaction is None

    def test_a_transaction_without_changes_is_not_unexpected(self) -> None:
        assert self.events(BEGIN, COMMIT) == [Resent(Transaction(700, 100, 5), 120)]


class TestStreamedTransactions:
    def test_rows_come_out_at_the_commit_across_segments_and_in_order(self) -> None:
        found = transactions(*segment(700, row(700, 1), row(700, 2)), *segment(700, row(700, 3), first=False))
        assert found.waiting == 1
        assert found.streamed == [700]
        events = receive(found, stream_commit(700))
        assert values(events) == [1, 2, 3]
        assert events[-1] == Committed(Transaction(700, 100, 5), 120)
        assert found.waiting == 0

    def test_segments_of_streamed_transactions_and_whole_transactions_may_interleave(self) -> None:
        found = transactions(*segment(700, row(700, 1)), *segment(800, row(800, 10)))
        assert values(receive(found, messages.Begin(60, 5, 900), row(None, 100), messages.Commit(60, 70, 5))) == [100]
        receive(found, *segment(700, row(700, 2), first=False), *segment(800, row(800, 20), first=False))
        assert values(receive(found, stream_commit(800, 80))) == [10, 20]
        assert values(receive(found, stream_commit(700, 100))) == [1, 2]

    def test_a_subtransaction_that_is_rolled_back_leaves_no_rows(self) -> None:
        found = transactions(*segment(700, row(700, 1), row(701, 2), row(702, 3)), StreamAbort(700, 701, None, None))
        receive(found, *segment(700, row(703, 4), first=False))
        assert values(receive(found, stream_commit(700))) == [1, 3, 4]

    def test_other_tasks_get_turns_while_many_rows_are_skipped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waiting, "SKIPPED_AT_ONCE", 3)
        rows = [row(701, n) for n in range(7)]
        found = transactions(*segment(700, *rows, row(700, 7)), StreamAbort(700, 701, None, None))
        assert [type(event) for event in receive(found, stream_commit(700))] == [Paused, Paused, Change, Committed]

    def test_a_streamed_transaction_that_is_rolled_back_is_forgotten(self) -> None:
        found = transactions(*segment(700, row(700, 1)), StreamAbort(700, 700, 90, 5))
        assert found.waiting == 0
        with pytest.raises(ProtocolError, match="Stream Commit of transaction 700, which was not streamed"):
            receive(found, stream_commit(700))

    def test_an_abort_of_a_transaction_that_was_never_streamed_is_no_error(self) -> None:
        found = transactions(BEGIN, StreamAbort(9, 9, None, None))
        assert len(receive(found, INSERT)) == 1

    def test_an_empty_streamed_transaction_commits_without_rows(self) -> None:
        found = transactions(*segment(700))
        assert receive(found, stream_commit(700)) == [Committed(Transaction(700, 100, 5), 120)]

    def test_a_streamed_row_keeps_the_table_version_under_which_it_was_sent(self) -> None:
        wide = column("more", 25)
        altered = messages.Relation(700, 7, "public", "t", "d", (*TABLE.columns, wide))
        found = transactions(*segment(700, row(700, 1), altered, Insert(700, 7, [b"2", b"x"]), row(700, 3, 8)))
        found.relations.on_relation(TABLE)
        changes = [event for event in receive(found, stream_commit(700)) if isinstance(event, Change)]
        assert [len(change.relation.columns) for change in changes] == [1, 2, 1]
        assert [change.relation.name for change in changes] == ["t", "t", "o"]

    def test_the_memory_for_table_versions_of_all_transactions_is_limited(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Keep versions up to the limit. No copy of a version beyond the limit may remain in memory."""
        tables = [
            messages.Relation(700, oid, "public", f"t{oid}", "d", (column("c", 25, is_key=True),))
            for oid in range(10, 15)
        ]
        monkeypatch.setattr(waiting, "VERSIONS_BYTES_MAX", 3 * size_of(RelationCache().on_relation(tables[0])))
        first = [(replace(one, xid=None), row(None, 1, one.oid)) for one in tables[:2]]
        found = transactions(begin_prepare(800), *(message for pair in first for message in pair))
        receive(found, prepare(800))
        for xid, one in ((700, tables[2]), (701, tables[3])):
            for message in segment(xid, replace(one, xid=xid), row(xid, 3, one.oid)):
                receive(found, message)
        kept = [len(waiting.relations) for waiting in (found._prepares[800], found._streams[700], found._streams[701])]
        assert kept == [2, 1, 0]
        assert found._streams[701].last == {}
        (change, _) = receive(found, stream_commit(701))
        assert isinstance(change, Change)
        assert change.relation == found.relations[13]
        receive(found, stream_commit(700))
        for message in segment(702, replace(tables[4], xid=702), row(702, 4, 14)):
            receive(found, message)
        assert len(found._streams[702].relations) == 1, "the release of transaction 700 did not make room"

    def test_a_table_version_described_in_a_stream_applies_to_later_transactions(self) -> None:
        altered = messages.Relation(700, 7, "public", "renamed", "d", TABLE.columns)
        found = transactions(*segment(700, altered), StreamAbort(700, 700, None, None), BEGIN)
        (change,) = receive(found, INSERT)
        assert isinstance(change, Change)
        assert change.relation.name == "renamed"

    def test_truncates_and_messages_wait_in_their_places_among_the_rows(self) -> None:
        both = truncate(701, 8, 7)
        message = emitted(700, 90, b"\x00")
        found = transactions(start(700), messages.Origin(0, "o"), row(700, 1), both, message, STOP)
        events = receive(found, stream_commit(700))
        transaction = Transaction(700, 100, 5, "o")
        assert events[1:4] == [
            Change(transaction, found.relations[8], encode(both), is_streamed=True),
            Change(transaction, found.relations[7], encode(both), is_streamed=True),
            Emitted(transaction, message),
        ]

    def test_updates_and_deletes_wait_as_well(self) -> None:
        rows: list[messages.Message] = [Update(700, 7, None, None, [b"1"]), Delete(700, 7, [b"1"], None)]
        found = transactions(*segment(700, *rows))
        events = receive(found, stream_commit(700))
        assert [event.message for event in events if isinstance(event, Change)] == [encode(row) for row in rows]

    @pytest.mark.parametrize(
        ("received", "expected"),
        [
            ([start(700, first=False)], "Stream Start: the first segment of transaction 700 is missing"),
            ([*segment(700), start(700)], "Stream Start: the first segment of transaction 700 comes twice"),
            ([BEGIN, start(700)], "Stream Start inside another transaction"),
            ([start(700), BEGIN], "Begin inside another transaction"),
            ([start(700), stream_commit(700)], "Stream Commit inside another transaction"),
            ([start(700), COMMIT], "Commit outside a transaction"),
            ([start(700), prepare(700)], "Prepare of transaction 700 inside transaction 700"),
            ([start(700), row(700, 1, 99)], "relation 99"),
            ([messages.StreamPrepare(50, 60, 4, 700, "g")], "Stream Prepare of transaction 700, which was not"),
            (
                [emitted(None, 1, b"", transactional=False), BEGIN, emitted(None, 1, b"", transactional=False)],
                "inside another",
            ),
        ],
    )
    def test_messages_that_cannot_come_there_are_an_error(
        self, received: list[messages.Message], expected: str
    ) -> None:
        with pytest.raises(ProtocolError, match=expected):
            receive(transactions(), *received)

    @pytest.mark.parametrize("begin", [replace(BEGIN, commit_lsn=2**62), replace(BEGIN, commit_ts=2**62)])
    def test_positions_and_times_that_no_server_reaches_are_an_error(self, begin: messages.Begin) -> None:
        with pytest.raises(ProtocolError, match=r"Begin: commit at .* is beyond all bounds"):
            receive(transactions(), begin)

    def test_a_row_that_is_cut_short_is_an_error(self) -> None:
        found = transactions(start(700))
        with pytest.raises(ProtocolError, match="'I' at offset 1: expected the OID of a relation, found the end"):
            found.receive(b"I\x00\x00\x02\xbc\x00")


class TestPreparedTransactions:
    def test_rows_come_out_at_commit_prepared(self) -> None:
        found = transactions(begin_prepare(700), row(None, 1), row(None, 2))
        assert receive(found, prepare(700)) == [Prepared(700, "g", 50, 60, 4, has_rows=True)]
        assert list(found.prepared) == [700]
        assert found.is_between
        events = receive(found, commit_prepared(700))
        assert values(events) == [1, 2]
        assert events[-1] == Committed(Transaction(700, 100, 5), 120)
        assert (found.prepared, found.waiting) == ({}, 0)

    def test_rows_of_streamed_prepared_transactions_come_out_at_commit_prepared(self) -> None:
        found = transactions(*segment(700, row(700, 1), row(701, 2)), StreamAbort(700, 701, None, None))
        assert receive(found, stream_prepare(700)) == [Prepared(700, "g", 50, 60, 4, has_rows=True)]
        assert values(receive(found, commit_prepared(700))) == [1]

    def test_prepared_transactions_are_told_apart_by_xid_and_not_by_gid(self) -> None:
        found = transactions()
        for xid in (700, 800):
            receive(found, begin_prepare(xid), row(None, xid), prepare(xid))
        assert values(receive(found, commit_prepared(800))) == [800]
        assert values(receive(found, commit_prepared(700))) == [700]

    def test_a_prepared_transaction_that_is_rolled_back_leaves_nothing(self) -> None:
        found = transactions(begin_prepare(700), row(None, 1))
        receive(found, prepare(700))
        assert receive(found, rollback_prepared(700)) == [RolledBack(700, 120)]
        assert (found.prepared, found.waiting) == ({}, 0)

    def test_a_rollback_of_an_unknown_prepared_transaction_is_no_error(self) -> None:
        assert receive(transactions(), rollback_prepared(700)) == [RolledBack(700, 120)]

    def test_a_prepared_transaction_that_only_has_locks_has_no_rows(self) -> None:
        found = transactions()
        (prepared,) = receive(found, prepare(700))
        assert isinstance(prepared, Prepared)
        assert not prepared.has_rows
        assert receive(found, commit_prepared(700)) == [Committed(Transaction(700, 100, 5), 120)]

    def test_a_commit_without_a_prepare_is_marked(self) -> None:
        events = receive(transactions(), commit_prepared(700))
        assert events == [Committed(Transaction(700, 100, 5), 120, is_bare=True)]

    @pytest.mark.parametrize(
        ("received", "expected"),
        [
            ([begin_prepare(700), prepare(701)], "Prepare of transaction 701 inside transaction 700"),
            ([begin_prepare(700), commit_prepared(700)], "Commit Prepared inside another transaction"),
            ([begin_prepare(700), rollback_prepared(700)], "Rollback Prepared inside another transaction"),
            ([BEGIN, begin_prepare(700)], "Begin Prepare inside another transaction"),
            ([BEGIN, prepare(700)], "Prepare inside another transaction"),
            ([prepare(700), prepare(700)], "Prepare of transaction 700, which is prepared already"),
        ],
    )
    def test_a_prepare_in_the_wrong_place_is_an_error(self, received: list[messages.Message], expected: str) -> None:
        with pytest.raises(ProtocolError, match=expected):
            receive(transactions(), *received)


class TestMessages:
    def test_a_message_of_a_transaction_comes_out_in_its_place(self) -> None:
        message = emitted(None, 90, b"x")
        found = transactions(BEGIN)
        assert receive(found, message) == [Emitted(Transaction(700, 100, 5), message)]

    def test_a_message_of_a_prepared_transaction_waits_with_it(self) -> None:
        message = emitted(None, 40, b"x")
        found = transactions(begin_prepare(700), message)
        receive(found, prepare(700))
        assert receive(found, commit_prepared(700))[0] == Emitted(Transaction(700, 100, 5), message)

    def test_a_message_outside_transactions_comes_out_by_itself(self) -> None:
        message = emitted(None, 90, b"x", transactional=False)
        assert receive(transactions(), message) == [Emitted(None, message)]


class Below:
    """A gate that admits transactions below the id ``xid``, and messages outside transactions below ``lsn``.

    It keeps the ids of the transactions that it was asked about, and of those that wait.
    """

    def __init__(self, xid: int, lsn: int = 1000) -> None:
        self.xid = xid
        self.lsn = lsn
        self.asked: list[int] = []
        self.waiting: list[int] = []

    def admits(self, transaction: Transaction) -> bool:
        self.asked.append(transaction.xid)
        return transaction.xid < self.xid

    def admits_message(self, lsn: int) -> bool:
        return lsn < self.lsn

    def hold(self, transaction: Transaction) -> None:
        self.waiting.append(transaction.xid)


ORDINARY = (BEGIN, INSERT, COMMIT)
STREAMED = (*segment(700, row(700, 1)), stream_commit(700))
TWO_PHASE = (begin_prepare(700), row(None, 1), prepare(700), commit_prepared(700))
STREAMED_TWO_PHASE = (*segment(700, row(700, 1)), stream_prepare(700), commit_prepared(700))
of_each_kind = pytest.mark.parametrize(
    "received",
    [ORDINARY, STREAMED, TWO_PHASE, STREAMED_TWO_PHASE],
    ids=["ordinary", "streamed", "two-phase", "streamed and two-phase"],
)


class TestTheGate:
    """The gate. While the rows of a table are read, it holds back the transactions that belong after these rows."""

    def gated(self, xid: int, *received: messages.Message, delivered_lsn: int = 0) -> tuple[Transactions, Below]:
        """Return a connection on which transactions from ``xid`` on have to wait."""
        found, gate = transactions(delivered_lsn=delivered_lsn), Below(xid)
        found.gate = gate
        assert not receive(found, *received)
        return found, gate

    @of_each_kind
    def test_an_admitted_transaction_goes_on(self, received: Sequence[messages.Message]) -> None:
        found, gate = self.gated(701)
        events = [event for event in receive(found, *received) if not isinstance(event, Prepared)]
        assert [type(event) for event in events] == [Change, Committed]
        assert (gate.asked, gate.waiting) == ([700], [])

    def test_an_admitted_ordinary_transaction_goes_on_row_by_row(self) -> None:
        found, _ = self.gated(701, BEGIN)
        assert found.passing == Transaction(700, 100, 5)
        assert values(receive(found, INSERT)) == [1]

    @of_each_kind
    def test_a_transaction_that_is_not_admitted_waits_until_it_is_released(
        self, received: Sequence[messages.Message]
    ) -> None:
        found, gate = self.gated(700)
        events = [event for event in receive(found, *received) if not isinstance(event, Prepared)]
        assert events == [Held(Transaction(700, 100, 5))]
        assert gate.waiting == [700]
        assert (found.is_between, found.passing, found.waiting, found.prepared) == (True, None, 0, {})
        released = list(found.release())
        assert values(released) == [1]
        assert released[-1] == Committed(Transaction(700, 100, 5), 120)
        assert list(found.release()) == []

    def test_waiting_transactions_are_released_in_the_order_of_their_commits(self) -> None:
        found, _ = self.gated(700, *segment(700, row(700, 1)))
        receive(found, messages.Begin(60, 5, 800), row(None, 2), messages.Commit(60, 70, 5), stream_commit(700))
        released = list(found.release())
        assert values(released) == [2, 1]
        assert [event.end_lsn for event in released if isinstance(event, Committed)] == [70, 120]

    def test_an_ordinary_transaction_that_has_to_wait_is_received_to_its_end(self) -> None:
        found, _ = self.gated(700, BEGIN, INSERT)
        assert (found.is_between, found.passing) == (False, None)
        assert receive(found, COMMIT) == [Held(Transaction(700, 100, 5))]
        assert found.is_between

    def test_truncates_messages_and_the_origin_wait_with_their_transaction(self) -> None:
        both, message = truncate(None, 8, 7), emitted(None, 90, b"x")
        found, _ = self.gated(700, BEGIN, messages.Origin(0, "o"), INSERT, both, message)
        receive(found, COMMIT)
        transaction = Transaction(700, 100, 5, "o")
        assert list(found.release()) == [
            Change(transaction, found.relations[7], encode(INSERT)),
            Change(transaction, found.relations[8], encode(both)),
            Change(transaction, found.relations[7], encode(both)),
            Emitted(transaction, message),
            Committed(transaction, 120),
        ]

    def test_a_transaction_with_only_a_message_waits(self) -> None:
        found, gate = self.gated(700, BEGIN, emitted(None, 90, b"x"))
        assert receive(found, COMMIT) == [Held(Transaction(700, 100, 5))]
        assert gate.waiting == [700]

    def test_a_held_row_keeps_the_table_version_under_which_it_was_sent(self) -> None:
        altered = messages.Relation(None, 7, "public", "t", "d", (*TABLE.columns, column("more", 25)))
        found, _ = self.gated(700, BEGIN, INSERT)
        receive(found, COMMIT, altered)
        (change, _) = found.release()
        assert isinstance(change, Change)
        assert len(change.relation.columns) == 1

    @pytest.mark.parametrize(
        "received",
        [
            (BEGIN, COMMIT),
            (*segment(700), stream_commit(700)),
            (begin_prepare(700), prepare(700), commit_prepared(700)),
            (commit_prepared(700),),
        ],
        ids=["ordinary", "streamed", "two-phase", "two-phase without a Prepare"],
    )
    def test_a_transaction_without_changes_never_waits(self, received: Sequence[messages.Message]) -> None:
        found, gate = self.gated(700)
        committed = receive(found, *received)[-1]
        assert isinstance(committed, Committed)
        assert (committed.transaction, committed.end_lsn) == (Transaction(700, 100, 5), 120)
        assert gate.waiting == []
        assert list(found.release()) == []

    def test_a_transaction_that_is_rolled_back_never_waits(self) -> None:
        found, gate = self.gated(700)
        prepared, rolled_back = receive(found, begin_prepare(700), INSERT, prepare(700), rollback_prepared(700))
        assert isinstance(prepared, Prepared)
        assert rolled_back == RolledBack(700, 120)
        assert (gate.asked, gate.waiting) == ([], [])

    @of_each_kind
    def test_the_gate_is_not_asked_about_delivered_transactions(self, received: Sequence[messages.Message]) -> None:
        found, gate = self.gated(700, delivered_lsn=120)
        assert receive(found, *received)[-1] == Resent(Transaction(700, 100, 5), 120)
        assert (gate.asked, gate.waiting) == ([], [])

    def test_a_message_outside_transactions_waits_behind_held_transactions(self) -> None:
        before, behind = (emitted(None, lsn, b"x", transactional=False) for lsn in (90, 130))
        found, _ = self.gated(700)
        assert receive(found, before) == [Emitted(None, before)]
        receive(found, *ORDINARY)
        assert receive(found, behind) == []
        last = messages.Begin(140, 5, 701), row(None, 2), messages.Commit(140, 150, 5)
        receive(found, *last)
        released = list(found.release())
        assert [type(event) for event in released] == [Change, Committed, Emitted, Change, Committed]
        assert released[2] == Emitted(None, behind)
        assert receive(found, behind) == [Emitted(None, behind)]

    def test_a_message_that_the_gate_does_not_admit_waits(self) -> None:
        message, behind = (emitted(None, lsn, b"x", transactional=False) for lsn in (1000, 1010))
        found, _ = self.gated(700)
        assert receive(found, message, behind) == []
        assert list(found.release()) == [Emitted(None, message), Emitted(None, behind)]

    def test_the_gate_is_asked_again_at_the_commit(self) -> None:
        """Ask again at the commit, because the gate may then admit a transaction that had to wait at its beginning."""
        found, gate = self.gated(700, BEGIN, INSERT)
        gate.xid = 701
        assert values(receive(found, COMMIT)) == [1]
        assert (gate.asked, gate.waiting) == ([700, 700], [])

    def test_the_gate_is_asked_about_a_streamed_transaction_only_at_its_commit(self) -> None:
        found = transactions(*segment(700, row(700, 1)))
        found.gate = gate = Below(700)
        receive(found, *segment(700, row(700, 2), first=False))
        assert gate.asked == []
        assert receive(found, stream_commit(700)) == [Held(Transaction(700, 100, 5))]
        assert values(list(found.release())) == [1, 2]

    def test_a_transaction_that_is_being_received_when_the_gate_ends_goes_on_at_its_commit(self) -> None:
        found, gate = self.gated(700, BEGIN, INSERT)
        found.gate = None
        assert list(found.release()) == []
        events = receive(found, row(None, 2), COMMIT)
        assert values(events) == [1, 2]
        assert events[-1] == Committed(Transaction(700, 100, 5), 120)
        assert gate.waiting == []

    def test_table_versions_of_all_held_transactions_are_limited_together(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found, _ = self.gated(700)
        monkeypatch.setattr(waiting, "VERSIONS_BYTES_MAX", 2 * size_of(found.relations[7]))
        for _ in range(2):  # release() frees the memory, so the second pass gives the same result
            for number in range(3):
                begin = messages.Begin(100 + 20 * number, 5, 700 + number)
                commit = messages.Commit(begin.commit_lsn, begin.commit_lsn + 10, 5)
                receive(found, begin, row(None, number), commit)
            assert [len(one[0].relations) for one in found._held if not isinstance(one, Emitted)] == [1, 1, 0]
            released = list(found.release())
            assert values(released) == [0, 1, 2]
            assert {event.relation.name for event in released if isinstance(event, Change)} == {"t"}

    @pytest.mark.parametrize(
        ("received", "expected"),
        [
            (BEGIN, "Begin inside another transaction"),
            (begin_prepare(701), "Begin Prepare inside another transaction"),
            (prepare(700), "Prepare inside another transaction"),
            (start(701), "Stream Start inside another transaction"),
            (STOP, "Stream Start before Stream Stop"),
            (messages.Commit(101, 120, 5), "Commit at 0/65 for a transaction that began with commit LSN 0/64"),
            (row(None, 1, 99), "relation 99"),
        ],
        ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
    )
    def test_a_held_transaction_is_checked_like_any_other(self, received: messages.Message, expected: str) -> None:
        found, _ = self.gated(700, BEGIN)
        with pytest.raises(ProtocolError, match=expected):
            receive(found, received)


class Counting(MemorySpool):
    """A spool that keeps a list of everything that it has opened."""

    def __init__(self) -> None:
        self.rows: list[MemoryRows] = []

    def open(self) -> MemoryRows:
        self.rows.append(MemoryRows())
        return self.rows[-1]


def test_rows_are_discarded_when_their_transaction_ends() -> None:
    spool = Counting()
    found = Transactions(Delivered(0, 0, 0), spool)
    receive(found, TABLE, *segment(700, row(700, 1)), stream_commit(700))
    receive(found, *segment(800, row(800, 1)), StreamAbort(800, 800, None, None))
    receive(found, begin_prepare(900), row(None, 1), prepare(900), rollback_prepared(900))
    assert [list(rows) for rows in spool.rows] == [[], [], []]


class OnDisk(MemorySpool):
    """A spool whose rows have to be loaded before they can be read."""

    class Rows(MemoryRows):
        def __iter__(self) -> Iterator[tuple[int, bytes] | None]:
            yield None
            yield from super().__iter__()

    def open(self) -> Rows:
        return self.Rows()


def test_rows_that_have_to_be_loaded_are_awaited() -> None:
    found = Transactions(Delivered(0, 0, 0), OnDisk())
    receive(found, TABLE)
    assert [type(event) for event in receive(found, *STREAMED)] == [Paused, Change, Committed]
    found.gate = Below(800)
    receive(found, messages.Begin(160, 5, 800), INSERT, messages.Commit(160, 180, 5))
    assert [type(event) for event in found.release()] == [Paused, Change, Committed]


def test_rows_of_a_held_transaction_are_discarded_after_its_release() -> None:
    spool = Counting()
    found = Transactions(Delivered(0, 0, 0), spool)
    found.gate = Below(700)
    receive(found, TABLE, *ORDINARY)
    (rows,) = spool.rows
    assert len(list(rows)) == 1
    list(found.release())
    assert list(rows) == []
