"""The position that may be confirmed. It depends on what was received and delivered."""

import pytest

from pgsluice.errors import Diverged
from pgsluice.progress import Progress, ResentKind


class TestProgress:
    def test_nothing_is_confirmed_before_anything_was_received_in_this_session(self) -> None:
        assert Progress(1000).confirmable == 0

    def test_no_more_is_confirmed_than_was_delivered(self) -> None:
        progress = Progress(1000)
        progress.on_received(1000)
        progress.on_received(2000)
        assert (progress.confirmable, progress.undelivered) == (1000, True)
        progress.on_delivered(2000)
        assert (progress.confirmable, progress.undelivered) == (2000, False)

    def test_no_more_is_confirmed_than_was_received(self) -> None:
        progress = Progress(1000)
        progress.on_received(900)
        assert (progress.confirmable, progress.undelivered) == (900, False)

    def test_only_received_positions_are_confirmed(self) -> None:
        """Do not confirm position 1000, because it may be inside a WAL record of a restored server."""
        progress = Progress(1000)
        progress.on_received(900)
        progress.on_received(1100)
        assert (progress.confirmable, progress.undelivered) == (900, True)
        progress.on_delivered(1100)
        assert progress.confirmable == 1100

    def test_only_received_positions_are_confirmed_even_if_more_is_delivered(self) -> None:
        progress = Progress(1000)
        progress.on_received(900)
        progress.on_delivered(1000)
        assert progress.confirmable == 900

    def test_what_was_received_never_goes_back(self) -> None:
        progress = Progress(0)
        progress.on_received(2000)
        progress.on_received(1000)
        assert progress.received == 2000

    def test_a_checkpoint_that_goes_back_is_our_mistake(self) -> None:
        with pytest.raises(AssertionError):
            Progress(1000).on_delivered(999)


class TestASimpleEnd:
    """Whether the end of a single transaction can be processed without further checks."""

    def test_of_an_ordinary_transaction(self) -> None:
        assert Progress(1000).is_simple

    def test_not_while_the_server_owes_something(self) -> None:
        assert not Progress(1000, {900: "transaction"}).is_simple

    def test_not_while_one_is_prepared(self) -> None:
        progress = Progress(1000)
        progress.on_prepared(700, 1100)
        assert not progress.is_simple
        progress.forget(700)
        assert progress.is_simple

    def test_not_while_one_waits(self) -> None:
        progress = Progress(1000)
        progress.limit_received(1100)
        assert not progress.is_simple
        progress.lift_limit()
        assert progress.is_simple


class TestWhatTheServerOwes:
    """The last delivered transaction and message, which the server has to send again if the slot is before them."""

    def test_it_comes_before_anything_new(self) -> None:
        progress = Progress(1000, {900: "transaction"})
        progress.on_resent(700, "transaction")
        progress.on_received(900)
        progress.on_resent(900, "transaction")
        progress.on_received(2000)
        assert progress.received == 2000

    def test_a_server_that_goes_past_it_is_another_one(self) -> None:
        progress = Progress(1000, {900: "transaction"})
        progress.on_resent(700, "transaction")
        with pytest.raises(Diverged, match=r"last transaction delivered ended at 0/384.*restored from a backup"):
            progress.on_received(901)
        with pytest.raises(Diverged):
            progress.on_resent(950, "transaction")

    def test_nothing_is_confirmed_before_it_came(self) -> None:
        """Confirm nothing yet. If this turns out to be another server, it has to send these changes again for a new
        epoch."""
        progress = Progress(1000, {900: "transaction"})
        progress.on_resent(700, "transaction")
        progress.on_received(800)
        assert progress.confirmable == 0
        progress.on_resent(900, "transaction")
        assert progress.confirmable == 900

    @pytest.mark.parametrize(
        "to_be_resent", [{900: "transaction", 950: "message"}, {950: "message", 900: "transaction"}]
    )
    def test_both_have_to_come(self, to_be_resent: dict[int, ResentKind]) -> None:
        progress = Progress(1000, to_be_resent)
        progress.on_resent(900, "transaction")
        assert progress.confirmable == 0
        with pytest.raises(Diverged, match="last message delivered ended at 0/3B6"):
            progress.on_received(951)
        progress.on_resent(950, "message")
        assert progress.confirmable == 950

    def test_one_cannot_come_in_place_of_the_other(self) -> None:
        progress = Progress(1000, {900: "transaction"})
        progress.on_resent(900, "message")
        assert (progress.awaits_resent, progress.confirmable) == (True, 0)
        with pytest.raises(Diverged, match="last transaction delivered ended at 0/384"):
            progress.on_received(901)
        progress = Progress(1000, {900: "transaction"})
        progress.on_resent(900, "transaction")
        assert (progress.awaits_resent, progress.confirmable) == (False, 900)


class TestPreparedTransactions:
    def test_nothing_behind_a_prepare_is_confirmed_while_it_is_outstanding(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared(700, 1500)
        progress.on_prepared(800, 1700)
        assert progress.confirmable == 1500

    def test_a_prepare_is_outstanding_until_its_commit_is_delivered(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared(700, 1500)
        progress.on_received(2200)
        progress.on_prepared_commit(700, 2200)
        progress.on_delivered(2100)
        assert progress.confirmable == 1500
        progress.on_delivered(2200)
        assert progress.confirmable == 2200

    def test_a_commit_that_was_delivered_before_releases_it_at_once(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared(700, 1500)
        progress.on_prepared_commit(700, 1900)
        assert progress.confirmable == 2000

    def test_a_rollback_releases_it_at_once(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared(700, 1500)
        progress.forget(700)
        assert progress.confirmable == 2000

    def test_a_checkpoint_holds_the_slot_until_one_says_that_nothing_does(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared(700, 1500)
        progress.on_delivered(2000, progress.held_at(2000))
        progress.forget(700)
        assert (progress.confirmable, progress.undelivered) == (1500, True)
        progress.on_delivered(2000, progress.held_at(2000))
        assert (progress.confirmable, progress.undelivered) == (2000, False)

    def test_it_says_so_when_the_commit_is_before_its_end(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared(700, 1500)
        progress.on_prepared(800, 1700)
        progress.on_received(2200)
        progress.on_prepared_commit(700, 2100)
        assert [progress.held_at(lsn) for lsn in (2000, 2099, 2100)] == [1500, 1500, 1700]
        progress.forget(800)
        assert progress.held_at(2100) == 0

    def test_in_a_new_session_until_it_has_come_again(self) -> None:
        progress = Progress(2000, held=1500, slot_lsn=1400)
        progress.on_received(1500)
        assert (progress.held_at(2000), progress.confirmable, progress.undelivered) == (1500, 1500, False)
        progress.on_received(1999)
        assert (progress.held_at(2000), progress.undelivered) == (0, False)
        progress.on_received(2000)
        assert (progress.held_at(2000), progress.undelivered) == (0, True)

    def test_one_that_was_prepared_before_the_slot_told_of_it_comes_again_anyway(self) -> None:
        progress = Progress(2000, slot_lsn=1500)
        progress.on_received(2000)
        progress.on_prepared(700, 1499)
        assert (progress.confirmable, progress.held_at(2000)) == (2000, 0)
        progress.on_prepared(800, 1500)
        assert progress.confirmable == 1500

    def test_the_end_of_what_is_not_held_changes_nothing(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared_commit(700, 3000)
        progress.forget(800)
        assert progress.confirmable == 2000


class TestHoldingBack:
    """A transaction waits in the spool, so nothing after it counts as received."""

    def test_what_is_received_counts_up_to_there(self) -> None:
        progress = received_and_delivered(2000)
        progress.limit_received(2500)
        progress.on_received(2400)
        assert progress.received == 2400
        progress.on_received(2500)
        progress.on_received(3000)
        assert (progress.received, progress.confirmable) == (2500, 2000)
        progress.on_delivered(2500)
        assert (progress.received, progress.confirmable, progress.undelivered) == (2500, 2500, False)

    def test_the_first_one_that_waits_decides(self) -> None:
        progress = received_and_delivered(2000)
        progress.limit_received(2500)
        progress.limit_received(2700)
        progress.on_received(3000)
        assert progress.received == 2500

    def test_lifting_the_limit_returns_the_received_position(self) -> None:
        progress = received_and_delivered(2000)
        progress.limit_received(2500)
        progress.on_received(3000)
        progress.on_received(2900)
        assert progress.lift_limit() == 3000
        assert progress.received == 2500
        progress.on_received(3000)
        assert (progress.received, progress.undelivered) == (3000, True)
        progress.on_delivered(3000)
        assert progress.confirmable == 3000

    def test_a_limit_can_be_set_again(self) -> None:
        progress = received_and_delivered(2000)
        progress.limit_received(2500)
        progress.on_received(3000)
        progress.lift_limit()
        progress.on_received(3000)
        progress.limit_received(3500)
        progress.on_received(3400)
        assert (progress.received, progress.lift_limit()) == (3400, 0)

    def test_without_a_limit_there_is_no_held_position(self) -> None:
        assert received_and_delivered(2000).lift_limit() == 0

    def test_what_was_received_before_remains_so(self) -> None:
        progress = received_and_delivered(2000)
        progress.limit_received(1500)
        progress.on_received(2500)
        assert (progress.received, progress.confirmable) == (2000, 2000)

    def test_a_checkpoint_of_that_time_keeps_what_is_prepared(self) -> None:
        progress = received_and_delivered(2000)
        progress.limit_received(2500)
        progress.on_prepared(700, 2200)
        progress.on_received(3000)
        assert progress.held_at(2500) == 2200
        progress.on_delivered(2500, 2200)
        assert progress.confirmable == 2200

    def test_another_server_is_noticed_all_the_same(self) -> None:
        progress = Progress(1000, {900: "transaction"})
        progress.limit_received(800)
        with pytest.raises(Diverged, match="last transaction delivered ended at 0/384"):
            progress.on_received(901)


def received_and_delivered(lsn: int) -> Progress:
    progress = Progress(lsn)
    progress.on_received(lsn)
    return progress
