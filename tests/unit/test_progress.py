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

    def test_the_end_of_an_ordinary_transaction_is_simple(self) -> None:
        assert Progress(1000).is_simple

    def test_no_end_is_simple_while_the_server_has_to_send_something_again(self) -> None:
        assert not Progress(1000, {900: "transaction"}).is_simple

    def test_no_end_is_simple_while_a_transaction_is_prepared(self) -> None:
        progress = Progress(1000)
        progress.on_prepared(700, 1100)
        assert not progress.is_simple
        progress.forget(700)
        assert progress.is_simple

    def test_no_end_is_simple_while_a_transaction_waits(self) -> None:
        progress = Progress(1000)
        progress.limit_received(1100)
        assert not progress.is_simple
        progress.lift_limit()
        assert progress.is_simple


class TestWhatTheServerOwes:
    """The last delivered transaction and message, which the server has to send again if the slot is before them."""

    def test_the_server_sends_delivered_changes_before_new_ones(self) -> None:
        progress = Progress(1000, {900: "transaction"})
        progress.on_resent(700, "transaction")
        progress.on_received(900)
        progress.on_resent(900, "transaction")
        progress.on_received(2000)
        assert progress.received == 2000

    def test_a_server_that_skips_delivered_changes_is_refused(self) -> None:
        progress = Progress(1000, {900: "transaction"})
        progress.on_resent(700, "transaction")
        with pytest.raises(Diverged, match=r"last transaction delivered ended at 0/384.*restored from a backup"):
            progress.on_received(901)
        with pytest.raises(Diverged):
            progress.on_resent(950, "transaction")

    def test_nothing_is_confirmed_before_delivered_changes_came_again(self) -> None:
        """Confirm nothing yet. If the server has another history, its changes are needed again in a new epoch."""
        progress = Progress(1000, {900: "transaction"})
        progress.on_resent(700, "transaction")
        progress.on_received(800)
        assert progress.confirmable == 0
        progress.on_resent(900, "transaction")
        assert progress.confirmable == 900

    @pytest.mark.parametrize(
        "to_be_resent", [{900: "transaction", 950: "message"}, {950: "message", 900: "transaction"}]
    )
    def test_both_the_transaction_and_the_message_have_to_come_again(self, to_be_resent: dict[int, ResentKind]) -> None:
        progress = Progress(1000, to_be_resent)
        progress.on_resent(900, "transaction")
        assert progress.confirmable == 0
        with pytest.raises(Diverged, match="last message delivered ended at 0/3B6"):
            progress.on_received(951)
        progress.on_resent(950, "message")
        assert progress.confirmable == 950

    def test_a_message_cannot_come_in_place_of_the_transaction(self) -> None:
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

    def test_an_already_delivered_commit_releases_its_prepare_immediately(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared(700, 1500)
        progress.on_prepared_commit(700, 1900)
        assert progress.confirmable == 2000

    def test_a_rollback_releases_its_prepare_immediately(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared(700, 1500)
        progress.forget(700)
        assert progress.confirmable == 2000

    def test_a_prepare_holds_the_slot_until_a_checkpoint_without_it_is_delivered(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared(700, 1500)
        progress.on_delivered(2000, progress.held_at(2000))
        progress.forget(700)
        assert (progress.confirmable, progress.undelivered) == (1500, True)
        progress.on_delivered(2000, progress.held_at(2000))
        assert (progress.confirmable, progress.undelivered) == (2000, False)

    def test_a_checkpoint_holds_the_slot_only_for_prepares_that_commit_after_it(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared(700, 1500)
        progress.on_prepared(800, 1700)
        progress.on_received(2200)
        progress.on_prepared_commit(700, 2100)
        assert [progress.held_at(lsn) for lsn in (2000, 2099, 2100)] == [1500, 1500, 1700]
        progress.forget(800)
        assert progress.held_at(2100) == 0

    def test_in_a_new_session_a_prepare_holds_the_slot_until_it_has_come_again(self) -> None:
        progress = Progress(2000, held=1500, slot_lsn=1400)
        progress.on_received(1500)
        assert (progress.held_at(2000), progress.confirmable, progress.undelivered) == (1500, 1500, False)
        progress.on_received(1999)
        assert (progress.held_at(2000), progress.undelivered) == (0, False)
        progress.on_received(2000)
        assert (progress.held_at(2000), progress.undelivered) == (0, True)

    def test_a_prepare_before_the_slots_position_does_not_hold_the_slot(self) -> None:
        progress = Progress(2000, slot_lsn=1500)
        progress.on_received(2000)
        progress.on_prepared(700, 1499)
        assert (progress.confirmable, progress.held_at(2000)) == (2000, 0)
        progress.on_prepared(800, 1500)
        assert progress.confirmable == 1500

    def test_the_end_of_an_unknown_prepared_transaction_changes_nothing(self) -> None:
        progress = received_and_delivered(2000)
        progress.on_prepared_commit(700, 3000)
        progress.forget(800)
        assert progress.confirmable == 2000


class TestHoldingBack:
    """A transaction waits in the spool, so nothing after it counts as received."""

    def test_the_received_position_stops_at_the_limit(self) -> None:
        progress = received_and_delivered(2000)
        progress.limit_received(2500)
        progress.on_received(2400)
        assert progress.received == 2400
        progress.on_received(2500)
        progress.on_received(3000)
        assert (progress.received, progress.confirmable) == (2500, 2000)
        progress.on_delivered(2500)
        assert (progress.received, progress.confirmable, progress.undelivered) == (2500, 2500, False)

    def test_the_first_limit_applies(self) -> None:
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

    def test_a_limit_does_not_lower_the_received_position(self) -> None:
        progress = received_and_delivered(2000)
        progress.limit_received(1500)
        progress.on_received(2500)
        assert (progress.received, progress.confirmable) == (2000, 2000)

    def test_a_checkpoint_made_under_a_limit_keeps_prepares_before_the_limit(self) -> None:
        progress = received_and_delivered(2000)
        progress.limit_received(2500)
        progress.on_prepared(700, 2200)
        progress.on_received(3000)
        assert progress.held_at(2500) == 2200
        progress.on_delivered(2500, 2200)
        assert progress.confirmable == 2200

    def test_another_server_is_noticed_in_spite_of_a_limit(self) -> None:
        progress = Progress(1000, {900: "transaction"})
        progress.limit_received(800)
        with pytest.raises(Diverged, match="last transaction delivered ended at 0/384"):
            progress.on_received(901)


def received_and_delivered(lsn: int) -> Progress:
    progress = Progress(lsn)
    progress.on_received(lsn)
    return progress
