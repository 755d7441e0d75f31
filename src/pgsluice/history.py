"""Decides how a session starts, by comparing what earlier sessions recorded in Kafka with the slot and the server.

Every check is a pure function. :func:`resume` makes the whole decision. The pipeline gathers the facts, calls
:func:`resume`, and acts on its result.

The rules take two properties of PostgreSQL into account. A slot accepts every confirmed position, even one that the WAL
has not reached yet. A slot may also send changes again:
https://www.postgresql.org/docs/current/logicaldecoding-explanation.html
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pgsluice.checkpoint import Checkpoint, last_checkpoint
from pgsluice.commands import CommandState
from pgsluice.cut import CUT_MAX, EPOCH_MAX, Recorded
from pgsluice.errors import ConfigError, Diverged, HistoryError, SourceUnavailable
from pgsluice.lsn import INVALID_LSN, format_lsn

LOAD_AGAIN: Final = "load the affected tables again with `pgsluice snapshot start TABLE...` while pgsluice runs."
"""The end of messages about missing changes. It says what to do."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The answer to IDENTIFY_SYSTEM: the cluster, its timeline, and the position up to which its WAL is flushed."""

    systemid: str
    timeline: int
    xlogpos: int


@dataclass(frozen=True, slots=True)
class TimelineSwitch:
    """One line of TIMELINE_HISTORY: ``timeline`` ended at ``switch_lsn``."""

    timeline: int
    switch_lsn: int


@dataclass(frozen=True, slots=True)
class Identity:
    """The pipeline that starts: its name, its slot, and its ``selection`` (see :class:`Checkpoint`).

    ``is_atomic``: the records and the checkpoint of a cut are committed together (exactly once). ``adopt``: if the
    epoch cannot be continued, begin a new epoch instead of raising an error.
    """

    pipeline: str
    slot: str
    selection: str
    is_atomic: bool
    adopt: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a session gathers at its start, after it has fenced all earlier sessions.

    ``checkpoints``: the committed records of the checkpoint topic in order, as far back as they were read.
    ``recorded``: the content of the cut records. ``slot_lsn``: the slot's confirmed_flush_lsn. ``switches``: the
    history of the server's timeline.
    """

    checkpoints: Sequence[Checkpoint]
    recorded: Recorded
    slot_lsn: int
    server: ServerIdentity
    switches: Sequence[TimelineSwitch]
    is_standby: bool

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint."""
        return last_checkpoint(self.checkpoints)


@dataclass(frozen=True, slots=True)
class Resumption:
    """The checkpoint from which a session continues.

    ``committed``: the number of the last cut that was committed, or 0. ``reason``: why a new epoch begins, or None if
    the former epoch continues.
    """

    checkpoint: Checkpoint
    committed: int
    reason: str | None = None

    @property
    def begins_epoch(self) -> bool:
        """Whether the checkpoint is new and not in Kafka yet. Its cut has to be committed before any other cut."""
        return self.checkpoint.cut > self.committed


def is_outrun(checkpoint: Checkpoint | None, recorded: Recorded) -> bool:
    """Return whether Kafka lost the checkpoints of recorded cuts.

    A single recorded cut after ``checkpoint`` does not prove a loss. If the process dies before it commits a cut, a
    transaction marker that arrives late can make the cut record visible, but not the checkpoint.
    """
    known = checkpoint.cut if checkpoint is not None else 0
    return recorded.cut > known + 1


def is_contradicted(checkpoint: Checkpoint | None, recorded: Recorded) -> bool:
    """Return whether ``checkpoint`` and the record of its cut disagree.

    Both are written in one transaction, so they have the same epoch and ``end_lsn``. A checkpoint that announces a new
    slot has no cut record. It has the number of the previous cut, and a later epoch than that cut. If ``refused`` is
    set, the checkpoint is never compared, because it stops every start anyway.
    """
    position = recorded.positions.get(checkpoint.cut) if checkpoint is not None else None
    if checkpoint is None or position is None or checkpoint.refused:
        return False
    if checkpoint.is_announcement:
        return checkpoint.epoch <= position[0]
    return (checkpoint.epoch, checkpoint.end_lsn) != position


def resume(facts: Facts, identity: Identity) -> Resumption:
    """Decide from which checkpoint the session continues.

    Errors:

    * ConfigError if the topics belong to another pipeline.
    * SourceUnavailable if the server is a standby that has not replayed what was delivered.
    * Diverged if this is not the server that pgsluice streamed from before.
    * HistoryError if changes are missing, or if it is unknown which changes were delivered.
      If ``identity.adopt`` is set, a new epoch begins instead of this error or Diverged.
    * HistoryError in any case if another program has written impossibly high numbers.
    """
    last = facts.checkpoint
    if last is not None:
        check_pipeline(last, identity.pipeline)
    try:
        found = _continued(last, facts, identity)
    except HistoryError as error:
        if not identity.adopt:
            raise
        former = None if last is None else _committed(last, facts, identity)
        adopted = _with_room(_adopted(former, facts, identity))
        return Resumption(adopted, 0 if former is None else former.cut, str(error))
    return replace(found, checkpoint=_with_room(found.checkpoint).selecting(identity.selection))


def announcement(last: Checkpoint | None, recorded: Recorded, identity: Identity, server: ServerIdentity) -> Checkpoint:
    """Return the checkpoint that announces a new slot. It keeps the number of the last cut that was committed."""
    epoch, cut = (1, 0) if last is None else (last.epoch + (not last.is_announcement), last.cut)
    if identity.is_atomic and cut == recorded.cut + 1:
        cut = recorded.cut  # the cut of the last checkpoint was never committed, see _committed
    begun = Checkpoint(identity.pipeline, identity.slot, server.systemid, server.timeline, epoch, cut, INVALID_LSN)
    if last is None:
        return _with_room(begun)
    return _with_room(replace(begun, commands=last.commands, tracks_loads=last.tracks_loads))


def _with_room(checkpoint: Checkpoint) -> Checkpoint:
    """Return ``checkpoint``. Raise HistoryError if its epoch or cut number is higher than pgsluice ever assigns."""
    if checkpoint.epoch > EPOCH_MAX or checkpoint.cut > CUT_MAX // 2:
        raise HistoryError(
            f"The topics in Kafka have epoch {checkpoint.epoch} and cut {checkpoint.cut}, but pgsluice never assigns "
            "such high numbers. So another program has written to the topics of checkpoints or transactions. Nothing "
            "was delivered. Withdraw its right to write, choose another kafka.topic_prefix, start once with "
            "--adopt-slot, then load all tables with `pgsluice snapshot start '*.*'` while pgsluice runs."
        )
    return checkpoint


def _adopted(last: Checkpoint | None, facts: Facts, identity: Identity) -> Checkpoint:
    """Return the first checkpoint of a new epoch, which begins at the slot's position.

    Its epoch and cut number are higher than any before, because readers would treat a lower number as older data.

    ``selection_lsn`` stays 0/0, because no session of the new epoch has streamed from the server before ``end_lsn``. So
    nobody knows whether the server has changes to send before ``end_lsn``. If it sends such a change, the slot has gone
    back, and the change may never have been delivered. (An ordinary checkpoint implies that the server had nothing to
    send between the last transaction and ``end_lsn``.)
    """
    server, recorded = facts.server, facts.recorded
    epoch, cut = (0, 0) if last is None else (last.epoch - last.is_announcement, last.cut)
    return Checkpoint(
        identity.pipeline,
        identity.slot,
        server.systemid,
        server.timeline,
        epoch=max(epoch, recorded.epoch) + 1,
        cut=max(cut, recorded.cut) + 1,
        end_lsn=facts.slot_lsn,
        selection=identity.selection,
        commands=CommandState() if last is None else last.commands,
        tracks_loads=last is None or last.tracks_loads,
    )


def _first_of_epoch(announced: Checkpoint, facts: Facts, identity: Identity) -> Checkpoint:
    """Return the first checkpoint of the announced epoch. Raise HistoryError if Kafka lost later checkpoints."""
    if is_outrun(announced, facts.recorded):
        raise HistoryError(
            f"Cut {facts.recorded.cut} was delivered, but the checkpoint that belongs to it is lost, and the slot is a "
            "new one. Changes between that cut and the new slot are lost to this pipeline. Start a new history with "
            f"--adopt-slot, then {LOAD_AGAIN}"
        )
    return replace(
        announced,
        timeline=facts.server.timeline,
        cut=announced.cut + 1,
        end_lsn=facts.slot_lsn,
        selection=identity.selection,
        selection_lsn=facts.slot_lsn,
        tracks_loads=announced.tracks_loads or announced.epoch == 1,  # nothing was delivered before the first epoch
    )


def _continued(last: Checkpoint | None, facts: Facts, identity: Identity) -> Resumption:
    """Return the checkpoint from which the former epoch continues. Raise HistoryError if it cannot be continued."""
    if last is None:
        raise HistoryError(
            f"Slot {identity.slot!r} exists, but there is no checkpoint for it in Kafka. Either pgsluice did not "
            "create the slot, or the Kafka cluster lost its topics. Start with --adopt-slot to deliver the changes "
            f"after the slot's position. If changes before it may be missing downstream, {LOAD_AGAIN}"
        )
    check_origin(last, identity.slot, facts.server)
    check_refused(last)
    found = _committed(last, facts, identity)
    check_refused(found)
    if identity.is_atomic:
        check_genuine(facts.checkpoints, found, facts.recorded)
    if found.is_announcement:
        return Resumption(_first_of_epoch(found, facts, identity), found.cut)
    check_recorded(found, facts, is_atomic=identity.is_atomic)
    if facts.server.timeline <= found.timeline:
        _wait_for_standby(found, facts)
    found = check_timeline(found, facts.server, facts.switches)
    _wait_for_standby(found, facts)
    check_slot(found, facts.slot_lsn, facts.server)
    return Resumption(found, found.cut)


def _committed(last: Checkpoint, facts: Facts, identity: Identity) -> Checkpoint:
    """Return the checkpoint of the last cut that was committed.

    Without Kafka transactions, this is ``last``. With transactions, ``last`` may belong to a cut that was aborted. If
    the process dies, Kafka aborts its transaction. But a transaction marker that arrives late can make the checkpoint
    of the aborted cut visible. The cut record is in another partition, so it can stay invisible.

    If a checkpoint has no cut record, the slot shows whether its cut was committed, because a position is confirmed to
    PostgreSQL only after its cut was committed. If the slot is not beyond the previous checkpoint, the cut was not
    committed, and the previous checkpoint is returned. If the slot is beyond it, the cut was committed, and Kafka lost
    its record.

    Another program may have written ``last`` under our key (see :func:`check_genuine`). In this case, the result is the
    last checkpoint that the cut records do not contradict. A new epoch continues from this checkpoint's numbers.
    """
    recorded = facts.recorded
    if not identity.is_atomic:
        return last
    if last.cut < recorded.cut or is_contradicted(last, recorded):
        return _uncontradicted(facts) or last
    if last.cut == recorded.cut:
        return last
    if not recorded.cut and last.cut > 1:
        return last  # retention has deleted all cut records, so there is nothing to compare with
    former = _uncontradicted(facts)
    if former is None:
        return last
    # An announcement has no position. The slot was created at the position of the epoch's first checkpoint.
    confirmable = last.end_lsn if former.is_announcement else former.end_lsn
    return former if facts.slot_lsn <= confirmable else last


def _uncontradicted(facts: Facts) -> Checkpoint | None:
    """Return the last checkpoint, by cut number, that no cut record contradicts. Return None if there is none.

    Checkpoints of cuts after the last recorded cut are ignored. If a cut has several checkpoints, the last one in the
    topic is returned.
    """
    recorded = facts.recorded
    found = [one for one in facts.checkpoints if one.cut <= recorded.cut and not is_contradicted(one, recorded)]
    return max(reversed(found), key=lambda one: one.cut, default=None)


def _wait_for_standby(checkpoint: Checkpoint, facts: Facts) -> None:
    """Raise SourceUnavailable if the server is a standby that has not replayed what was delivered.

    This is not a sign of another history, because a standby may simply be behind its primary.
    """
    if facts.is_standby and checkpoint.end_lsn > facts.server.xlogpos:
        raise SourceUnavailable(
            f"The server is a standby, and it has not replayed {format_lsn(checkpoint.end_lsn)} yet. pgsluice waits "
            "for it, or for the primary."
        )


def check_pipeline(checkpoint: Checkpoint, pipeline: str) -> None:
    """Raise ConfigError if another pipeline writes under this prefix."""
    if checkpoint.pipeline != pipeline:
        raise ConfigError(
            f"The topics under this prefix belong to pipeline {checkpoint.pipeline!r}, not to {pipeline!r}. Nothing "
            "was delivered. Give each pipeline its own kafka.topic_prefix."
        )


def check_slot_name(checkpoint: Checkpoint, slot: str) -> None:
    """Raise HistoryError unless ``checkpoint`` was written for this slot."""
    if checkpoint.slot != slot:
        raise HistoryError(
            f"The checkpoint was written for slot {checkpoint.slot!r}, but postgres.slot is {slot!r}. Nothing was "
            "delivered. Set postgres.slot back, or start a new history with --adopt-slot."
        )


def check_origin(checkpoint: Checkpoint, slot: str, server: ServerIdentity) -> None:
    """Raise HistoryError unless ``checkpoint`` was written for this slot of this cluster."""
    check_slot_name(checkpoint, slot)
    if checkpoint.systemid != server.systemid:
        raise HistoryError(
            f"The checkpoint belongs to the PostgreSQL cluster with system identifier {checkpoint.systemid}, but this "
            f"server's is {server.systemid}. Nothing was delivered. Connect to the right server, or start a new "
            "history with --adopt-slot."
        )


def check_refused(checkpoint: Checkpoint) -> None:
    """Raise HistoryError if an earlier start or session has found that the server has another history.

    The positions are not compared again. The server's WAL may have grown past the checkpoint since then, so all
    positions would look right although the history is another one.
    """
    if checkpoint.refused:
        raise HistoryError(
            f"{checkpoint.refused} An earlier run found this, so pgsluice does not continue by itself. If that run was "
            "connected to a copy of the database by mistake, and this is the right server, start once with "
            "--adopt-slot. Then nothing has to be reloaded, and changes that were delivered but not yet confirmed come "
            "again in a new epoch."
        )


def check_genuine(checkpoints: Sequence[Checkpoint], committed: Checkpoint, recorded: Recorded) -> None:
    """Raise HistoryError if the cut records show that another program has written the last of ``checkpoints``.

    ``committed``: the checkpoint of the last cut that was committed (:func:`_committed`).

    A checkpoint and its cut record are written in one transaction, so they agree. A late marker can show or hide one of
    the two, but only for the last cut. So each of the two topics can be at most one cut ahead of the other.

    Therefore three signs show that a checkpoint is not ours. First, the record of its cut contradicts it. Second, it
    comes after the checkpoint of a higher recorded cut, although our numbers only grow. Third, it is two or more cuts
    ahead of the cut records. The third sign has one exception. If the slot is beyond the last recorded cut, the cuts
    after it were committed, and Kafka lost their records. The sink reports this loss when it compares the topics with
    the cut records.
    """
    last = checkpoints[-1]
    is_denied, is_aborted = is_contradicted(last, recorded), last.cut == recorded.cut + 1
    former_cut = next((one.cut for one in reversed(checkpoints) if one.cut != last.cut), 0)
    goes_back = last.cut < former_cut <= recorded.cut
    if not is_denied and not goes_back and (is_aborted or committed is last):
        return
    says = f"the last one is cut {recorded.cut}"
    if is_denied:
        epoch, end_lsn = recorded.positions[last.cut]
        says = f"cut {last.cut} is of epoch {epoch} and goes up to {format_lsn(end_lsn)}"
    raise HistoryError(
        f"The last checkpoint is that of cut {last.cut} in epoch {last.epoch}, up to {format_lsn(last.end_lsn)}, "
        f"but the cut records say that {says}. Another program has written this checkpoint under our key, or Kafka "
        "lost records. Continuing from it could hide or repeat changes, so nothing was delivered. Allow only pgsluice "
        "to write to the topics of checkpoints and transactions. Then start once with --adopt-slot: a new epoch begins "
        "at the slot's position, nothing is missing, and changes that were delivered after that position come again "
        f"in the new epoch. If topics lost records, {LOAD_AGAIN}"
    )


def check_recorded(checkpoint: Checkpoint, facts: Facts, *, is_atomic: bool) -> None:
    """Raise HistoryError if Kafka lost the checkpoints of recorded cuts, because those cuts would be written twice.

    Without transactions (at least once), cuts may be written twice. So the loss is an error only if the slot is beyond
    the checkpoint, because PostgreSQL does not send the changes before the slot's position again.
    """
    recorded = facts.recorded
    was_confirmed = recorded.cut > checkpoint.cut and checkpoint.end_lsn < facts.slot_lsn <= recorded.end_lsn
    if not was_confirmed and not (is_atomic and is_outrun(checkpoint, recorded)):
        return
    raise HistoryError(
        f"Cut {recorded.cut} is recorded as delivered, but the last checkpoint belongs to cut {checkpoint.cut}. Kafka "
        "lost the last records of the checkpoint topic, for example in an unclean leader election or a disk failure. "
        f"Continuing from cut {checkpoint.cut} would deliver the later cuts a second time. Start once with "
        "--adopt-slot: a new epoch begins at the slot's position, nothing is missing, and changes that were delivered "
        f"after that position come again in the new epoch. If other topics lost records as well, {LOAD_AGAIN}"
    )


def check_slot(checkpoint: Checkpoint, confirmed_flush_lsn: int, server: ServerIdentity) -> None:
    """Raise HistoryError if the slot has skipped changes, or Diverged if the checkpoint is ahead of the server.

    The slot has skipped changes if it is ahead of the checkpoint. It has also skipped changes if it is ahead of a
    PREPARE whose transaction had not ended: PostgreSQL will send only the commit of that transaction, and no rows.
    """
    delivered = format_lsn(checkpoint.end_lsn)
    if confirmed_flush_lsn > checkpoint.end_lsn:
        raise HistoryError(
            f"Slot {checkpoint.slot!r} is at {format_lsn(confirmed_flush_lsn)}, but only changes before {delivered} "
            "are in Kafka. Somebody else advanced or re-created the slot, and the changes between these positions are "
            f"lost to this pipeline. Start a new history with --adopt-slot, then {LOAD_AGAIN}"
        )
    if confirmed_flush_lsn > checkpoint.held_lsn != INVALID_LSN:
        raise HistoryError(
            f"Slot {checkpoint.slot!r} is at {format_lsn(confirmed_flush_lsn)}, after a PREPARE TRANSACTION at "
            f"{format_lsn(checkpoint.held_lsn)} that was not committed by then. Somebody else advanced the slot, and "
            "PostgreSQL will not send the changes that were prepared before the slot's position. End those "
            f"transactions, start a new history with --adopt-slot, then {LOAD_AGAIN}"
        )
    if checkpoint.end_lsn > server.xlogpos:
        raise Diverged(
            f"Changes before {delivered} are in Kafka, but the server's WAL ends at {format_lsn(server.xlogpos)}. The "
            "server was restored or failed over to an earlier state. Compare the tables, then start a new history with "
            "--adopt-slot."
        )


def check_timeline(checkpoint: Checkpoint, server: ServerIdentity, switches: Iterable[TimelineSwitch]) -> Checkpoint:
    """Return the checkpoint on the server's timeline. Raise HistoryError if that timeline lacks delivered changes.

    A promoted standby begins a new timeline at the switch point. Everything that the former primary wrote after that
    point is missing from the new timeline. If the checkpoint is after the switch point only because of heartbeats,
    nothing that was delivered is missing, and the session continues from the switch point.
    """
    if checkpoint.timeline == server.timeline:
        return checkpoint
    switch = next((entry.switch_lsn for entry in switches if entry.timeline == checkpoint.timeline), None)
    if switch is None or max(checkpoint.last_end_lsn, checkpoint.last_message_lsn) > switch:
        at = "is not an ancestor of it" if switch is None else f"was left at {format_lsn(switch)}"
        raise HistoryError(
            f"Changes before {format_lsn(checkpoint.end_lsn)} on timeline {checkpoint.timeline} are in Kafka. The "
            f"server is on timeline {server.timeline}, and timeline {checkpoint.timeline} {at}. So the server lost "
            "changes that were published. Compare the tables, then start a new history with --adopt-slot."
        )
    if checkpoint.load_position.lsn > switch:
        raise HistoryError(
            f"Rows that were read from tables are in Kafka at {format_lsn(checkpoint.load_position.lsn)} on timeline "
            f"{checkpoint.timeline}, which was left at {format_lsn(switch)}. No change is missing, but later changes "
            "would come before these rows in the order of positions. Start a new history with --adopt-slot."
        )
    return replace(
        checkpoint,
        timeline=server.timeline,
        end_lsn=min(checkpoint.end_lsn, switch),
        selection_lsn=min(checkpoint.selection_lsn, switch),
        held_lsn=checkpoint.held_lsn if checkpoint.held_lsn < switch else INVALID_LSN,
    )
