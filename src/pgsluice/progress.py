"""The positions that one session has received and delivered, and the position that it may confirm to PostgreSQL.

This is pure bookkeeping. The session reports the positions that it received and those that are durable in Kafka, and
reads the position that it may confirm. A slot may send changes again, see
https://www.postgresql.org/docs/current/logicaldecoding-explanation.html
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from pgsluice.errors import Diverged
from pgsluice.lsn import INVALID_LSN, MAX_LSN, format_lsn

ResentKind: TypeAlias = Literal["transaction", "message"]

_NOTHING: Final[Mapping[int, ResentKind]] = MappingProxyType({})


class Progress:
    """The positions of one session, which continues from the last committed checkpoint.

    ``received``: the highest position that this session has received. It starts from zero and not from the checkpoint,
    because the server may first resend changes that come before the checkpoint. The server may also resend prepared
    transactions that only the previous session has received.

    ``delivered``: the end LSN of the last committed checkpoint. ``held``: the ``held_lsn`` of that checkpoint.
    ``slot_lsn``: the position of the slot when the session began.

    ``to_be_resent``: the transactions and messages that the server has to send again, by their end LSN. If the server
    skips one of them and sends something after its end, the server has another history than before.
    """

    def __init__(
        self,
        delivered: int,
        to_be_resent: Mapping[int, ResentKind] = _NOTHING,
        held: int = INVALID_LSN,
        slot_lsn: int = INVALID_LSN,
    ) -> None:
        self._to_be_resent = dict(sorted(to_be_resent.items()))
        self._held = held
        self._slot_lsn = slot_lsn
        self.received = INVALID_LSN
        self.delivered = delivered
        self._settled = INVALID_LSN
        """The highest position that this session has received and before which everything is delivered."""
        self._prepares: dict[int, int] = {}
        """The LSN of the PREPARE of each transaction that holds the confirmed position back, by xid."""
        self._released: dict[int, int] = {}
        """The end LSN of each transaction in ``_prepares`` that was committed but not delivered yet, by xid."""
        self._ceiling = MAX_LSN
        """No position above this one counts as received."""
        self._beyond = INVALID_LSN
        """The highest position that did not count because of ``_ceiling``."""

    def limit_received(self, lsn: int) -> None:
        """Until :meth:`lift_limit` is called, count no position after ``lsn`` as received.

        Transactions after ``lsn`` may have to wait, for example for the rows of a chunk.
        """
        self._ceiling = min(self._ceiling, lsn)

    def lift_limit(self) -> int:
        """Count all positions as received again.

        Return the highest position that did not count because of :meth:`limit_received`. The caller reports it again
        with :meth:`on_received`, after all waiting transactions have continued.
        """
        self._ceiling, beyond = MAX_LSN, self._beyond
        self._beyond = INVALID_LSN
        return beyond

    def on_received(self, lsn: int) -> None:
        """Record that everything before ``lsn`` was received.

        ``lsn`` is the end of a WAL record, or the position of a keepalive between transactions. Raise Diverged if the
        server has skipped a transaction or message that it had to send again.
        """
        if self._to_be_resent:
            self._check_resent(lsn)
        if lsn > self._ceiling:
            self._beyond, lsn = max(self._beyond, lsn), self._ceiling
        self.received = max(self.received, lsn)
        if lsn <= self.delivered:
            self._settle(lsn)

    def _check_resent(self, lsn: int) -> None:
        for end_lsn, what in self._to_be_resent.items():
            if lsn > end_lsn:
                raise Diverged(
                    f"The last {what} delivered ended at {format_lsn(end_lsn)}. The slot's position is before it, but "
                    "the server did not send it again. So the server was restored from a backup and has another "
                    "history now. Compare the tables, then start a new history with --adopt-slot."
                )

    @property
    def is_simple(self) -> bool:
        """Whether the end of an ordinary transaction has no other effect than to advance ``received``."""
        return not (self._to_be_resent or self._prepares) and self._ceiling == MAX_LSN

    def on_resent(self, end_lsn: int, what: ResentKind) -> None:
        """Record that the server has resent a transaction or a message that was delivered before."""
        self.on_received(end_lsn)
        if self._to_be_resent.get(end_lsn) == what:
            del self._to_be_resent[end_lsn]
        self._settle(end_lsn)

    def _settle(self, lsn: int) -> None:
        """Record that everything before ``lsn`` is delivered. Do nothing if the server may have another history.

        A server that was restored may send other changes than those that were delivered. Its changes then have to be
        delivered in a new epoch, so their positions must not be confirmed yet. If the server sends the last transaction
        and the last message again, it has the same history as before.
        """
        if not self._to_be_resent:
            self._settled = max(self._settled, lsn)

    def on_delivered(self, end_lsn: int, held_lsn: int = INVALID_LSN) -> None:
        """Record that the checkpoint with ``end_lsn`` and ``held_lsn`` is committed."""
        assert end_lsn >= self.delivered, "a checkpoint never goes back"
        self.delivered = end_lsn
        self._held = held_lsn
        if end_lsn <= self.received:
            self._settle(end_lsn)
        self._drop_released()

    def on_prepared(self, xid: int, prepare_lsn: int) -> None:
        """Confirm no position after this Prepare. Otherwise, the server would not send the transaction again.

        A Prepare before the slot's position holds nothing back. It was confirmed before two_phase was enabled for the
        slot, so the server sends the rows with the commit.
        """
        if prepare_lsn >= self._slot_lsn:
            self._prepares[xid] = prepare_lsn

    def on_prepared_commit(self, xid: int, end_lsn: int) -> None:
        """Record that the transaction was committed at ``end_lsn``.

        The transaction holds the confirmed position back until ``end_lsn`` is delivered.
        """
        if xid in self._prepares:
            self._released[xid] = end_lsn
            self._drop_released()

    def forget(self, xid: int) -> None:
        """Record that the transaction was rolled back, so none of its changes has to be delivered."""
        self._prepares.pop(xid, None)

    def held_at(self, end_lsn: int) -> int:
        """Return the ``held_lsn`` for a checkpoint with this ``end_lsn``."""
        held = [lsn for xid, lsn in self._prepares.items() if self._released.get(xid, end_lsn + 1) > end_lsn]
        if self.received <= self._held != INVALID_LSN:
            held.append(self._held)  # the server has not yet resent the transaction that was prepared at this LSN
        return min(held, default=INVALID_LSN)

    def _drop_released(self) -> None:
        for xid in [xid for xid, end_lsn in self._released.items() if end_lsn <= self.delivered]:
            del self._released[xid], self._prepares[xid]

    @property
    def confirmable(self) -> int:
        """The position that may be confirmed to PostgreSQL.

        It is never beyond the last committed checkpoint. It is also never beyond the position that this session has
        received, because on a restored server, a later position may lie within a WAL record.
        """
        held = () if self._held == INVALID_LSN else (self._held,)
        positions: tuple[int, ...] = (self._settled, *self._prepares.values(), *held)
        return min(positions)

    @property
    def awaits_resent(self) -> bool:
        """Whether the server still has to send something again to show that it has the same history as before."""
        return bool(self._to_be_resent)

    @property
    def undelivered(self) -> bool:
        """Whether this session has received positions or ends of prepared transactions that no checkpoint contains.

        While ``received`` is before ``delivered``, the result is False, because the checkpoint contains all positions
        that were received. The ends of prepared transactions are compared with the checkpoint only when ``received``
        has reached ``delivered``, because until then the server may send some of these ends again.
        """
        if self.received != self.delivered:
            return self.received > self.delivered
        return self.held_at(self.delivered) != self._held
