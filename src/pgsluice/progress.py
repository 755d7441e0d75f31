"""What one session has received and delivered, and what may therefore be confirmed to PostgreSQL.

Pure bookkeeping: the session tells it what it received and what is durable in Kafka, and asks what may be confirmed.
The rules of acknowledgement follow
https://www.postgresql.org/docs/current/logicaldecoding-explanation.html (a slot may send changes again).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from pgsluice.errors import Diverged
from pgsluice.lsn import INVALID_LSN, MAX_LSN, format_lsn

Owed: TypeAlias = Literal["transaction", "message"]

_NOTHING: Final[Mapping[int, Owed]] = MappingProxyType({})


class Progress:
    """The positions of one session, which begins where the last one ``delivered`` to.

    ``received``: the highest position received in this session. Before it, the server may still owe us
    changes, and there may be prepared transactions that we do not know yet. ``delivered``: the end LSN of the
    last committed checkpoint. ``owed``: what the server has to send again before anything behind it, as its end and
    what it is: a server that does not, is another one. ``held``: the ``held_lsn`` of that checkpoint. ``slot_lsn``:
    where the slot stood when the session began.
    """

    def __init__(
        self, delivered: int, owed: Mapping[int, Owed] = _NOTHING, held: int = INVALID_LSN, slot_lsn: int = INVALID_LSN
    ) -> None:
        self._owed = dict(sorted(owed.items()))
        self._held = held
        self._slot_lsn = slot_lsn
        self.received = INVALID_LSN
        self.delivered = delivered
        self._settled = INVALID_LSN
        """The highest position received in this session before which everything is delivered."""
        self._prepares: dict[int, int] = {}
        self._released: dict[int, int] = {}
        self._ceiling = MAX_LSN
        self._beyond = INVALID_LSN
        """The highest position that was not counted because of it."""

    def hold_back(self, lsn: int) -> None:
        """Let nothing behind ``lsn`` count as received until :meth:`let_go`: something waits there."""
        self._ceiling = min(self._ceiling, lsn)

    def let_go(self) -> int:
        """Hold nothing back any more; return what will have been received once everything that waits has gone on."""
        self._ceiling, beyond = MAX_LSN, self._beyond
        self._beyond = INVALID_LSN
        return beyond

    def on_received(self, lsn: int) -> None:
        """Note that everything before ``lsn`` has been received: the end of a record, or an idle keepalive.

        Diverged when something was not there that the server had to send again.
        """
        if self._owed:
            self._check_owed(lsn)
        if lsn > self._ceiling:
            self._beyond, lsn = max(self._beyond, lsn), self._ceiling
        self.received = max(self.received, lsn)
        if lsn <= self.delivered:
            self._settle(lsn)

    def _check_owed(self, lsn: int) -> None:
        for owed_lsn, what in self._owed.items():
            if lsn > owed_lsn:
                raise Diverged(
                    f"The last {what} delivered ended at {format_lsn(owed_lsn)}. The slot stands before it, but the "
                    "server did not send it again: it was restored from a backup and has another history now. Compare "
                    "the tables, then start a new history with --adopt-slot."
                )

    def on_resent(self, end_lsn: int, what: Owed) -> None:
        """Note that a transaction, or a message, came which was delivered before."""
        self.on_received(end_lsn)
        if self._owed.get(end_lsn) == what:
            del self._owed[end_lsn]
        self._settle(end_lsn)

    def _settle(self, lsn: int) -> None:
        # Until a server has shown that it is the one that was followed, what it sends may have replaced what was
        # delivered. It has to be sent again then, so nothing of it is confirmed.
        if not self._owed:
            self._settled = max(self._settled, lsn)

    def on_delivered(self, end_lsn: int, held_lsn: int = INVALID_LSN) -> None:
        """Note that the checkpoint with ``end_lsn`` and ``held_lsn`` is committed."""
        assert end_lsn >= self.delivered, "a checkpoint never goes back"
        self.delivered = end_lsn
        self._held = held_lsn
        if end_lsn <= self.received:
            self._settle(end_lsn)
        self._drop_released()

    def hold(self, xid: int, prepare_lsn: int) -> None:
        """Confirm nothing behind this Prepare: the server would not send the transaction again.

        It will if the slot stood behind it already: then the slot told of no prepares at the time.
        """
        if prepare_lsn >= self._slot_lsn:
            self._prepares[xid] = prepare_lsn

    def release(self, xid: int, end_lsn: int) -> None:
        """Note that the transaction ended at ``end_lsn``: it is held until everything before that is delivered."""
        if xid in self._prepares:
            self._released[xid] = end_lsn
            self._drop_released()

    def forget(self, xid: int) -> None:
        """Note that the transaction was rolled back: there is nothing of it to deliver."""
        self._prepares.pop(xid, None)

    def held_at(self, end_lsn: int) -> int:
        """Return the ``held_lsn`` for a checkpoint with this ``end_lsn``."""
        held = [lsn for xid, lsn in self._prepares.items() if self._released.get(xid, end_lsn + 1) > end_lsn]
        if self.received <= self._held != INVALID_LSN:
            held.append(self._held)  # what was prepared there has not come again yet
        return min(held, default=INVALID_LSN)

    def _drop_released(self) -> None:
        for xid in [xid for xid, end_lsn in self._released.items() if end_lsn <= self.delivered]:
            del self._released[xid], self._prepares[xid]

    @property
    def confirmable(self) -> int:
        """What may be confirmed to PostgreSQL: never more than what a committed checkpoint records.

        And no position that this session has not received: in a server that was restored, it may lie within a record.
        """
        held = () if self._held == INVALID_LSN else (self._held,)
        positions: tuple[int, ...] = (self._settled, *self._prepares.values(), *held)
        return min(positions)

    @property
    def owes(self) -> bool:
        """Whether the server has not yet shown that it is the one that was followed."""
        return bool(self._owed)

    @property
    def undelivered(self) -> bool:
        """Whether positions were received, or prepared transactions ended, that no checkpoint records yet.

        What comes again is no news: of a transaction prepared there the end may be about to come, too.
        """
        if self.received != self.delivered:
            return self.received > self.delivered
        return self.held_at(self.delivered) != self._held
