"""How far we are: received, delivered, confirmed; and whether a session may go on where the last one ended.

Pure bookkeeping: the pipeline tells it what it received and delivered, and asks what may be confirmed.
The rules of acknowledgement follow
https://www.postgresql.org/docs/current/logicaldecoding-explanation.html (a slot may send changes again)
and what running servers did: a slot confirms whatever it is told, even a position that does not exist yet.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace

from pgsluice.errors import ConfigError, HistoryError
from pgsluice.lsn import INVALID_LSN, format_lsn
from pgsluice.transaction import Resent, Transaction

_CHECKPOINT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is durable downstream: the record behind every acknowledgement, kept in Kafka.

    ``end_lsn``: everything before it is delivered; 0/0 while the slot is still being created. ``epoch``: which
    history LSNs belong to. The ``last_*``
    fields identify the last transaction delivered (0 when there was none yet).
    """

    pipeline: str
    slot: str
    systemid: str
    timeline: int
    epoch: int
    cut: int
    end_lsn: int
    last_end_lsn: int = INVALID_LSN
    last_xid: int = 0
    last_commit_ts: int = 0
    held_lsn: int = INVALID_LSN
    """Where the oldest of the prepared transactions was prepared that had not ended: nothing behind it is confirmed."""
    asked: str = field(default="", compare=False)
    """What the server was asked for: with other publications it need not send again what it has sent."""

    def advanced(
        self, cut: int, end_lsn: int, last: tuple[Transaction, int] | None, held_lsn: int = INVALID_LSN
    ) -> "Checkpoint":
        """Return the checkpoint of ``cut``; ``last`` is its last transaction with that one's end LSN."""
        found = replace(self, cut=cut, end_lsn=end_lsn, held_lsn=held_lsn)
        if last is None:
            return found
        transaction, last_end_lsn = last
        return replace(
            found,
            last_end_lsn=last_end_lsn,
            last_xid=transaction.xid,
            last_commit_ts=transaction.commit_ts,
        )

    @property
    def is_announcement(self) -> bool:
        """Whether it only says that a slot is going to be created: its position becomes ours."""
        return self.end_lsn == INVALID_LSN

    def to_json(self) -> bytes:
        """Return the value of the checkpoint record."""
        return json.dumps({"version": _CHECKPOINT_VERSION, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Checkpoint":
        """Return the checkpoint that ``data`` holds; HistoryError when it is not one."""
        try:
            found = json.loads(data)
            written_by = found.pop("version")
            checkpoint = cls(**found)
        except (ValueError, TypeError, KeyError, AttributeError):
            written_by = checkpoint = None
        types_fit = all(isinstance(getattr(checkpoint, f.name, None), f.type) for f in fields(cls))  # type: ignore[arg-type]
        if written_by != _CHECKPOINT_VERSION or checkpoint is None or not types_fit:
            raise HistoryError(
                "The checkpoint record is not one that this version of pgsluice can read. Was it written by a newer "
                "version, or by another program? Run the version that wrote it, or choose another kafka.topic_prefix."
            )
        return checkpoint


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """IDENTIFY_SYSTEM: which cluster, on which timeline, how far its WAL is flushed."""

    systemid: str
    timeline: int
    xlogpos: int


@dataclass(frozen=True, slots=True)
class TimelineSwitch:
    """One line of TIMELINE_HISTORY: ``timeline`` ended at ``switch_lsn``."""

    timeline: int
    switch_lsn: int


def check_pipeline(checkpoint: Checkpoint, pipeline: str) -> None:
    """Raise ConfigError when another pipeline writes under this prefix."""
    if checkpoint.pipeline != pipeline:
        raise ConfigError(
            f"The topics under this prefix belong to pipeline {checkpoint.pipeline!r}, not to {pipeline!r}: give each "
            "pipeline its own kafka.topic_prefix."
        )


def check_origin(checkpoint: Checkpoint, slot: str, server: ServerIdentity) -> None:
    """Raise HistoryError unless ``checkpoint`` was written for this slot of this cluster."""
    if checkpoint.slot != slot:
        raise HistoryError(
            f"The checkpoint was written for slot {checkpoint.slot!r}, but postgres.slot is {slot!r}: set it back, or "
            "start a new history with --adopt-slot."
        )
    if checkpoint.systemid != server.systemid:
        raise HistoryError(
            f"The checkpoint belongs to the PostgreSQL cluster with system identifier {checkpoint.systemid}, this "
            f"server's is {server.systemid}: connect to the right server, or start a new history with --adopt-slot."
        )


def check_slot(checkpoint: Checkpoint, confirmed_flush_lsn: int, server: ServerIdentity) -> None:
    """Raise HistoryError when the slot is ahead of the checkpoint (a gap) or the checkpoint ahead of the server."""
    delivered = format_lsn(checkpoint.end_lsn)
    if confirmed_flush_lsn > checkpoint.end_lsn:
        raise HistoryError(
            f"Slot {checkpoint.slot!r} is at {format_lsn(confirmed_flush_lsn)}, but only changes before {delivered} "
            "are in Kafka: somebody else advanced or re-created the slot, and the changes between are lost to this "
            "pipeline. Reload the tables concerned, then start a new history with --adopt-slot."
        )
    if confirmed_flush_lsn > checkpoint.held_lsn != INVALID_LSN:
        raise HistoryError(
            f"Slot {checkpoint.slot!r} is at {format_lsn(confirmed_flush_lsn)}, behind a PREPARE TRANSACTION at "
            f"{format_lsn(checkpoint.held_lsn)} that was not committed by then: somebody else advanced the slot, and "
            "PostgreSQL will not send the changes prepared before it. Have those transactions ended, reload the tables "
            "concerned, then start a new history with --adopt-slot."
        )
    if checkpoint.end_lsn > server.xlogpos:
        raise HistoryError(
            f"Changes before {delivered} are in Kafka, but the server's WAL ends at {format_lsn(server.xlogpos)}: it "
            "was restored or failed over to a state before them. Compare the tables, then start a new history with "
            "--adopt-slot."
        )


def check_timeline(checkpoint: Checkpoint, server: ServerIdentity, history: Iterable[TimelineSwitch]) -> Checkpoint:
    """Return ``checkpoint`` on the server's timeline; HistoryError when it lies beyond the switch point."""
    if checkpoint.timeline == server.timeline:
        return checkpoint
    switch = next((entry.switch_lsn for entry in history if entry.timeline == checkpoint.timeline), None)
    if switch is None or checkpoint.end_lsn > switch:
        at = "is not an ancestor of it" if switch is None else f"was left at {format_lsn(switch)}"
        raise HistoryError(
            f"Changes before {format_lsn(checkpoint.end_lsn)} on timeline {checkpoint.timeline} are in Kafka; the "
            f"server is on timeline {server.timeline}, and timeline {checkpoint.timeline} {at}: the server lost "
            "changes that were published. Compare the tables, then start a new history with --adopt-slot."
        )
    return replace(checkpoint, timeline=server.timeline)


def check_resent(checkpoint: Checkpoint, resent: Resent) -> None:
    """Raise HistoryError when the transaction that ends at the checkpoint is not the one that was delivered."""
    found = (resent.transaction.xid, resent.transaction.commit_ts)
    if resent.end_lsn == checkpoint.last_end_lsn and found != (
        checkpoint.last_xid,
        checkpoint.last_commit_ts,
    ):
        raise HistoryError(
            f"The transaction that ends at {format_lsn(resent.end_lsn)} is {found[0]}, but the one delivered was "
            f"{checkpoint.last_xid}: the server was restored from a backup and has another history now. Compare the "
            "tables, drop the slot, then start a new history with --adopt-slot."
        )


def owed_lsn(checkpoint: Checkpoint, confirmed_flush_lsn: int, asked: str) -> int:
    """Return the end of the transaction that the server has to send again, 0/0 if there is none.

    ``asked``: what it is asked for now.
    """
    last = checkpoint.last_end_lsn
    return last if confirmed_flush_lsn < last and asked == checkpoint.asked else INVALID_LSN


class Progress:
    """The positions of one session, which begins where the last one ``delivered`` to.

    ``received``: the highest position received in this session. Before it, the server may still owe us
    changes, and there may be prepared transactions that we do not know yet. ``delivered``: the end LSN of the
    last committed checkpoint. ``owed``: the end of the last transaction delivered, if the slot stands before it,
    so that the server has to send it again before anything else: a server that does not, is another one. ``held``:
    the ``held_lsn`` of that checkpoint. ``slot_lsn``: where the slot stood when the session began.
    """

    def __init__(
        self, delivered: int, owed: int = INVALID_LSN, held: int = INVALID_LSN, slot_lsn: int = INVALID_LSN
    ) -> None:
        self._owed = owed
        self._held = held
        self._slot_lsn = slot_lsn
        self.received = INVALID_LSN
        self.delivered = delivered
        self._prepares: dict[int, int] = {}
        self._released: dict[int, int] = {}

    def on_received(self, lsn: int) -> None:
        """Note that everything before ``lsn`` has been received: the end of a record, or an idle keepalive.

        HistoryError when what the server owed us was not there.
        """
        if lsn > self._owed != INVALID_LSN:
            raise HistoryError(
                f"The last transaction delivered ended at {format_lsn(self._owed)}. The slot stands before it, but the "
                "server did not send it again: it was restored from a backup and has another history now. Compare the "
                "tables, drop the slot, then start a new history with --adopt-slot."
            )
        self.received = max(self.received, lsn)

    def on_resent(self, end_lsn: int) -> None:
        """Note that a transaction came which was delivered before."""
        self.on_received(end_lsn)
        if end_lsn == self._owed:
            self._owed = INVALID_LSN

    def on_delivered(self, end_lsn: int, held_lsn: int = INVALID_LSN) -> None:
        """Note that the checkpoint with ``end_lsn`` and ``held_lsn`` is committed."""
        assert end_lsn >= self.delivered, "a checkpoint never goes back"
        self.delivered = end_lsn
        self._held = held_lsn
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
        """What may be confirmed to PostgreSQL: never more than what a committed checkpoint records."""
        held = (self._held,) if self._held != INVALID_LSN else ()
        return min(self.delivered, self.received, *self._prepares.values(), *held)

    @property
    def undelivered(self) -> bool:
        """Whether positions were received, or prepared transactions ended, that no checkpoint records yet.

        What comes again is no news: of a transaction prepared there the end may be about to come, too.
        """
        if self.received != self.delivered:
            return self.received > self.delivered
        return self.held_at(self.delivered) != self._held
