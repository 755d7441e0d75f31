"""Compares the checkpoint with the changes that the server sends again, to recognise a server with another history.

The server sends all unconfirmed changes again. The session drops those that were delivered before, and checks here that
they are the same. A server that was restored from a backup sends different changes.

https://www.postgresql.org/docs/current/logicaldecoding-explanation.html
"""

from collections.abc import Mapping

from pgsluice.checkpoint import Checkpoint
from pgsluice.cut import message_crc
from pgsluice.errors import Diverged
from pgsluice.lsn import INVALID_LSN, format_lsn
from pgsluice.pgoutput.messages import LogicalMessage
from pgsluice.progress import ResentKind
from pgsluice.transaction import Change, Emitted, Resent


def check_resent(checkpoint: Checkpoint, resent: Resent) -> None:
    """Raise Diverged if ``resent`` ends where the last delivered transaction ended, but is a different transaction."""
    found = (resent.transaction.xid, resent.transaction.commit_ts)
    if resent.end_lsn == checkpoint.last_end_lsn and found != (
        checkpoint.last_xid,
        checkpoint.last_commit_ts,
    ):
        raise Diverged(
            f"The transaction that ends at {format_lsn(resent.end_lsn)} has xid {found[0]}, but the one delivered had "
            f"xid {checkpoint.last_xid}. The server was restored from a backup and has another history now. Compare "
            "the tables, then start a new history with --adopt-slot."
        )


def check_message_resent(checkpoint: Checkpoint, message: LogicalMessage) -> None:
    """Raise Diverged if ``message`` ends where the last delivered message ended, but is a different message."""
    if message.lsn == checkpoint.last_message_lsn and checkpoint.last_message_crc not in ("", message_crc(message)):
        raise Diverged(
            f"The message at {format_lsn(message.lsn)} is not the one that was delivered. The server was restored from "
            "a backup and has another history now. Compare the tables, then start a new history with --adopt-slot."
        )


def unexpected(checkpoint: Checkpoint, change: Change | Emitted) -> Diverged:
    """Return the error for a change at a position where the server had nothing to send in an earlier session.

    See :class:`pgsluice.transaction.Unexpected`.
    """
    delivered = checkpoint.delivered
    if change.transaction is not None:
        what = f"transaction {change.transaction.xid}, which commits at {format_lsn(change.transaction.commit_lsn)}"
        since = delivered.transaction_lsn
    else:
        assert isinstance(change, Emitted), "every row is part of a transaction"
        what, since = f"a message at {format_lsn(change.message.lsn)}", delivered.message_lsn
    end = format_lsn(delivered.lsn)
    if since == INVALID_LSN:
        why = (
            f"Changes before {end} count as delivered, because this epoch began at the slot's position with "
            "--adopt-slot, and has delivered nothing yet. The slot has gone back since. So the server crashed before "
            "it had saved the slot's position, or it"
        )
    else:
        why = (
            f"Changes before {end} are delivered, and between {format_lsn(since)} and {end} the server had nothing to "
            "send when this pipeline followed it. So it"
        )
    return Diverged(
        f"PostgreSQL has sent {what}. {why} was restored from a backup or a disk snapshot, or it is a copy of the "
        "server that was followed. What it has sent was not delivered, and will be sent again. Compare the tables, "
        "then start a new history with --adopt-slot. The new history begins at the slot's position."
    )


def to_be_resent(checkpoint: Checkpoint, slot_lsn: int) -> Mapping[int, ResentKind]:
    """Return what the server must send again: the last delivered transaction and message, by their end LSNs.

    The server sends everything that ends after the slot's position. ``checkpoint``: the checkpoint from which the
    session continues. Positions before its ``selection_lsn`` are left out, because they were delivered with different
    settings, and with the present settings the server may not send them.
    """
    last: dict[int, ResentKind] = {checkpoint.last_end_lsn: "transaction", checkpoint.last_message_lsn: "message"}
    return {lsn: what for lsn, what in last.items() if lsn > max(slot_lsn, checkpoint.selection_lsn)}
