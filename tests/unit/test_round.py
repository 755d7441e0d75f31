"""Which transactions a round admits and which have to wait, and the position at which it places the loaded rows."""

import pytest

from pgsluice.round import Round
from pgsluice.snapshot import Snapshot
from pgsluice.transaction import Transaction

SNAPSHOT = Snapshot(700, 710, frozenset({705}))
"""A snapshot that sees transactions 704 and 706. When it was taken, 705 was running, and 710 had not begun."""


def transaction(xid: int, commit_lsn: int) -> Transaction:
    return Transaction(xid, commit_lsn, 0)


def fresh() -> Round:
    return Round(SNAPSHOT, 1000)


def waiting(commit_lsn: int) -> Round:
    """Return a round in which transaction 705 waits."""
    found = fresh()
    assert not found.admits(transaction(705, commit_lsn))
    found.hold(transaction(705, commit_lsn))
    return found


class TestATransaction:
    def test_a_visible_transaction_goes_on(self) -> None:
        found = fresh()
        assert found.admits(transaction(704, 800))
        assert found.admits(transaction(706, 900))

    @pytest.mark.parametrize("xid", [705, 710, 711])
    def test_an_invisible_transaction_waits(self, xid: int) -> None:
        assert not fresh().admits(transaction(xid, 900))

    def test_a_transaction_waits_behind_one_that_waits(self) -> None:
        found = waiting(800)
        assert not found.admits(transaction(704, 900))
        assert not found.admits(transaction(711, 950))

    @pytest.mark.parametrize(("lsn", "goes_on"), [(999, True), (1000, True), (1001, False)])
    def test_a_waiting_transaction_does_not_hold_back_messages_before_the_rows(
        self, *, lsn: int, goes_on: bool
    ) -> None:
        assert fresh().admits_message(lsn) == goes_on

    def test_a_transaction_does_not_wait_behind_one_without_changes(self) -> None:
        """If the transaction that waits has no changes, later transactions need not wait for it."""
        found = fresh()
        assert not found.admits(transaction(705, 800))
        assert found.admits(transaction(706, 900))


class TestARoundIsVoid:
    def test_a_round_is_void_if_visible_changes_come_behind_a_waiting_transaction(self) -> None:
        """Declare the round void. Its rows include the visible changes, but not the earlier changes, which wait."""
        found = waiting(800)
        found.hold(transaction(706, 900))
        assert found.is_void

    def test_a_round_is_not_void_if_no_visible_transaction_waits(self) -> None:
        found = waiting(800)
        found.hold(transaction(711, 900))
        assert not found.is_void

    def test_a_round_is_not_void_if_the_visible_transaction_has_no_changes(self) -> None:
        found = waiting(800)
        assert not found.admits(transaction(706, 900))
        assert not found.is_void

    def test_a_round_is_not_void_if_nothing_waits(self) -> None:
        found = fresh()
        found.admits(transaction(704, 800))
        assert not found.is_void


class TestARoundIsComplete:
    """A round is complete when no transaction that the snapshot sees can come any more."""

    @pytest.mark.parametrize(("commit_lsn", "is_complete"), [(999, False), (1000, True), (1001, True)])
    def test_a_round_is_complete_when_a_commit_lies_at_its_end_or_behind_it(
        self, commit_lsn: int, *, is_complete: bool
    ) -> None:
        for xid in (704, 705):
            found = fresh()
            found.admits(transaction(xid, commit_lsn))
            assert found.is_complete == is_complete

    @pytest.mark.parametrize(("lsn", "is_complete"), [(999, False), (1000, True), (1001, True)])
    def test_a_round_is_complete_when_the_stream_has_reached_its_end(self, lsn: int, *, is_complete: bool) -> None:
        found = fresh()
        found.reach(lsn)
        assert found.is_complete == is_complete

    def test_a_round_stays_complete(self) -> None:
        found = fresh()
        found.reach(1000)
        found.reach(900)
        assert found.is_complete

    def test_a_round_is_not_complete_at_its_beginning(self) -> None:
        assert not fresh().is_complete


class TestThePositionOfTheRows:
    def test_rows_are_placed_at_the_end_when_nothing_waits(self) -> None:
        found = fresh()
        assert found.admits(transaction(704, 800))
        assert found.lsn == 1000

    def test_rows_are_placed_before_the_first_waiting_transaction(self) -> None:
        found = waiting(800)
        found.hold(transaction(711, 900))
        assert found.lsn == 800

    def test_rows_are_not_placed_behind_the_end(self) -> None:
        assert waiting(1200).lsn == 1000
