"""Which events follow from the messages of one connection."""

import pytest

from pgsluice.errors import ConfigError, HistoryError, ProtocolError
from pgsluice.pgoutput import messages
from pgsluice.transaction import Change, Committed, Resent, Transaction, Transactions

TABLE = messages.Relation(None, 7, "public", "t", "d", (messages.RelationColumn(True, "id", 23, -1),))  # noqa: FBT003
OTHER = messages.Relation(None, 8, "public", "o", "d", TABLE.columns)
BEGIN = messages.Begin(commit_lsn=100, commit_ts=5, xid=700)
COMMIT = messages.Commit(commit_lsn=100, end_lsn=120, commit_ts=5)
INSERT = messages.Insert(None, 7, [b"1"])


def transactions(*received: messages.Message, delivered_lsn: int = 0) -> Transactions:
    found = Transactions(delivered_lsn)
    for message in (TABLE, OTHER, *received):
        assert not list(found.receive(message))
    return found


def test_a_row_comes_out_with_its_transaction_and_its_relation() -> None:
    found = transactions(BEGIN)
    (change,) = found.receive(INSERT)
    assert change == Change(Transaction(700, 100, 5), found.relations[7], INSERT)


def test_updates_and_deletes_are_changes_too() -> None:
    found = transactions(BEGIN)
    for message in (
        messages.Update(None, 7, None, None, [b"1"]),
        messages.Delete(None, 7, [b"1"], None),
    ):
        (change,) = found.receive(message)
        assert isinstance(change, Change)
        assert change.message is message


def test_a_truncate_is_one_change_per_table() -> None:
    found = transactions(BEGIN)
    truncate = messages.Truncate(None, False, False, (8, 7))  # noqa: FBT003
    assert [change.relation.name for change in found.receive(truncate) if isinstance(change, Change)] == ["o", "t"]


def test_a_commit_ends_the_transaction_at_its_end_lsn() -> None:
    found = transactions(BEGIN)
    assert list(found.receive(COMMIT)) == [Committed(Transaction(700, 100, 5), 120)]
    assert found.current is None


def test_an_origin_belongs_to_the_transaction() -> None:
    found = transactions(BEGIN, messages.Origin(9, "elsewhere"))
    (change,) = found.receive(INSERT)
    assert isinstance(change, Change)
    assert change.transaction.origin == "elsewhere"


def test_a_type_is_known_to_the_relations_that_follow() -> None:
    column = messages.RelationColumn(False, "mood", 20000, -1)  # noqa: FBT003
    found = transactions(
        messages.Type(None, 20000, "public", "mood"), messages.Relation(None, 9, "public", "m", "n", (column,))
    )
    assert found.relations[9].columns[0].type.name == "mood"


def test_a_transaction_delivered_before_comes_out_without_its_changes() -> None:
    found = transactions(BEGIN, INSERT, messages.Truncate(None, False, False, (7,)), delivered_lsn=120)  # noqa: FBT003
    assert list(found.receive(COMMIT)) == [Resent(Transaction(700, 100, 5), 120)]


def test_a_transaction_that_commits_at_the_delivered_position_is_new() -> None:
    found = transactions(BEGIN, delivered_lsn=100)
    assert len(list(found.receive(INSERT))) == 1


def test_a_delivered_position_inside_a_commit_record_is_another_servers() -> None:
    found = transactions(BEGIN, delivered_lsn=110)
    with pytest.raises(HistoryError, match="0/6E, recorded as delivered, lies inside the commit record 0/64 to 0/78"):
        found.receive(COMMIT)


def test_a_stray_stream_abort_aborts_nothing() -> None:
    found = transactions(BEGIN)
    assert not list(found.receive(messages.StreamAbort(9, 9, None, None)))
    assert found.current is not None


@pytest.mark.parametrize(
    "message",
    [INSERT, COMMIT, messages.Origin(0, "o"), messages.Truncate(None, False, False, (7,))],  # noqa: FBT003
    ids=lambda message: type(message).__name__,
)
def test_nothing_of_a_transaction_comes_outside_of_one(message: messages.Message) -> None:
    with pytest.raises(ProtocolError, match=f"{type(message).__name__} outside a transaction"):
        transactions().receive(message)


def test_transactions_do_not_nest() -> None:
    with pytest.raises(ProtocolError, match="Begin of transaction 700 inside transaction 700"):
        transactions(BEGIN).receive(BEGIN)


def test_a_commit_is_that_of_its_begin() -> None:
    with pytest.raises(ProtocolError, match="Commit at 0/65 for a transaction that began with commit LSN 0/64"):
        transactions(BEGIN).receive(messages.Commit(101, 120, 5))


def test_a_change_of_a_table_that_was_not_described_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="relation 99"):
        transactions(BEGIN).receive(messages.Insert(None, 99, []))


@pytest.mark.parametrize(
    "message",
    [
        messages.BeginPrepare(1, 2, 3, 4, "g"),
        messages.CommitPrepared(1, 2, 3, 4, "g"),
        messages.RollbackPrepared(1, 2, 3, 4, 5, "g"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_two_phase_slot_is_refused_with_the_way_out(message: messages.Message) -> None:
    with pytest.raises(ConfigError, match="two-phase"):
        transactions().receive(message)


@pytest.mark.parametrize("message", [messages.StreamStart(1, True), messages.LogicalMessage(None, False, 1, "p", b"")])  # noqa: FBT003
def test_what_was_not_asked_for_is_an_error(message: messages.Message) -> None:
    with pytest.raises(ProtocolError, match="its option was not asked for"):
        transactions().receive(message)
