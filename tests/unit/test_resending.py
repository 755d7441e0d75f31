"""The comparison of the checkpoint with the transactions that the server sends again."""

from dataclasses import replace

import pytest

from pgsluice.checkpoint import Checkpoint
from pgsluice.cut import Cut, message_crc
from pgsluice.errors import Diverged
from pgsluice.pgoutput.messages import LogicalMessage
from pgsluice.relation import Relation
from pgsluice.resending import check_message_resent, check_resent, to_be_resent, unexpected
from pgsluice.transaction import Change, Emitted, Resent, Transaction

CHECKPOINT = Checkpoint("shop", "s", "7001", 1, 2, 9, 1000, last_end_lsn=990, last_xid=700, last_commit_ts=55)


def heartbeat(end_lsn: int) -> Cut:
    return Cut(end_lsn=end_lsn)


class TestAServerWithAnotherHistory:
    @pytest.mark.parametrize("resent", [Resent(Transaction(700, 950, 55), 990), Resent(Transaction(1, 900, 1), 930)])
    def test_a_transaction_that_comes_again_is_the_one_delivered(self, resent: Resent) -> None:
        check_resent(CHECKPOINT, resent)

    @pytest.mark.parametrize("transaction", [Transaction(701, 950, 55), Transaction(700, 950, 56)])
    def test_another_transaction_in_its_place_is_refused(self, transaction: Transaction) -> None:
        with pytest.raises(Diverged, match="restored from a backup"):
            check_resent(CHECKPOINT, Resent(transaction, 990))

    def test_another_message_in_its_place_is_refused(self) -> None:
        message = LogicalMessage(None, transactional=False, lsn=980, prefix="p", content=b"secret")
        delivered = replace(CHECKPOINT, last_message_lsn=980, last_message_crc=message_crc(message))
        check_message_resent(delivered, message)
        for other in (replace(message, content=b"Secret"), replace(message, prefix="q")):
            with pytest.raises(Diverged, match="The message at 0/3D4 is not the one that was delivered"):
                check_message_resent(delivered, other)
            check_message_resent(delivered, replace(other, lsn=960))
            check_message_resent(replace(delivered, last_message_crc=""), other)  # recorded by an earlier version

    def test_a_transaction_where_nothing_was_delivered_is_refused(self) -> None:
        change = Change(Transaction(701, 992, 56), Relation(7, "public", "t", "d", ()), b"I")
        error = unexpected(CHECKPOINT, change)
        assert "has sent transaction 701, which commits at 0/3E0" in str(error)
        assert "before 0/3E8 are delivered, and between 0/3DE and 0/3E8 the server" in str(error)

    def test_a_transaction_before_an_epoch_that_has_delivered_nothing_is_refused(self) -> None:
        change = Change(Transaction(701, 992, 56), Relation(7, "public", "t", "d", ()), b"I")
        error = unexpected(Checkpoint("shop", "s", "7001", 1, 3, 10, 1500), change)
        assert (
            "before 0/5DC count as delivered, because this epoch began at the slot's position with --adopt-slot"
            in str(error)
        )

    def test_a_message_where_nothing_was_delivered_is_refused(self) -> None:
        message = LogicalMessage(None, transactional=False, lsn=995, prefix="p", content=b"secret")
        error = unexpected(replace(CHECKPOINT, last_message_lsn=980), Emitted(None, message))
        assert "has sent a message at 0/3E3" in str(error)
        assert "between 0/3D4 and 0/3E8 the server" in str(error)
        assert "secret" not in str(error)


class TestWhatHasToComeAgain:
    """The last delivered transaction and message, if the slot's position is before them."""

    def test_the_last_transaction_has_to_come_if_the_slot_is_before_it(self) -> None:
        last = {990: "transaction"}
        assert [to_be_resent(CHECKPOINT, lsn) for lsn in (500, 989, 990, 1000)] == [last, last, {}, {}]
        assert to_be_resent(replace(CHECKPOINT, last_end_lsn=0), 500) == {}

    def test_the_last_message_has_to_come_if_the_slot_is_before_it(self) -> None:
        checkpoint = replace(CHECKPOINT, last_message_lsn=995)
        assert [to_be_resent(checkpoint, lsn) for lsn in (989, 990, 995)] == [
            {990: "transaction", 995: "message"},
            {995: "message"},
            {},
        ]

    def test_nothing_has_to_come_again_after_another_selection(self) -> None:
        other = CHECKPOINT.selecting("q")
        assert to_be_resent(other, 500) == {}
        assert to_be_resent(other.advanced(heartbeat(2000), 10), 500) == {}
