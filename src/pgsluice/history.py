"""Where a start may go on: what earlier sessions left in Kafka, compared with the slot and the server.

Every check is a pure function over gathered facts. :func:`resume` makes the whole decision; the pipeline gathers the
facts, calls it, and acts.

The rules follow https://www.postgresql.org/docs/current/logicaldecoding-explanation.html (a slot may send changes
again) and what running servers did: a slot confirms whatever position it is told, even one that does not exist yet.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Final

from pgsluice.avro.wire import read_json
from pgsluice.commands import CommandState, read_command_state
from pgsluice.cut import CUT_MAX, EPOCH_MAX, Cut, Recorded, message_crc
from pgsluice.errors import ConfigError, Diverged, HistoryError, SourceUnavailable
from pgsluice.loads import Load, Place, read_loads, read_place
from pgsluice.lsn import INVALID_LSN, MAX_LSN, format_lsn
from pgsluice.pgoutput.messages import LogicalMessage
from pgsluice.progress import Owed
from pgsluice.transaction import Change, Delivered, Emitted, Resent

_CHECKPOINT_VERSION = 1

LOAD_AGAIN: Final = "load the tables concerned again: `pgsluice snapshot start TABLE...` while pgsluice runs."
"""What to do where changes are missing: the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is durable downstream: the record behind every acknowledgement, kept in Kafka.

    ``end_lsn``: everything before it is delivered; 0/0 while the slot is still being created. ``epoch``: which history
    LSNs belong to. ``last_end_lsn``, ``last_xid`` and ``last_commit_ts`` identify the last transaction delivered;
    ``last_message_lsn`` and ``last_message_crc`` the last message outside transactions. They are 0, or empty, when
    there was none in this epoch; earlier versions did not record the latter.
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
    last_message_lsn: int = INVALID_LSN
    last_message_crc: str = ""
    held_lsn: int = INVALID_LSN
    """Where the oldest prepared transaction that had not ended was prepared: nothing behind it is confirmed."""
    asked: str = field(default="", compare=False)
    """What decides which changes are delivered: with other publications, the server sends other transactions."""
    asked_lsn: int = field(default=INVALID_LSN, compare=False)
    """Since which position ``asked`` has been what it is; 0/0 in an adopted epoch (:func:`_begun`) until it changes."""
    refused: str = ""
    """Why a start or a session found that the server has another history. No later start judges that anew."""
    loads: tuple[Load, ...] = ()
    """The tables whose rows are being read, and how far that has come."""
    place: Place = field(default_factory=Place)
    """Where the last rows that were read stand. More rows at the same position are numbered from there on."""
    commands: CommandState = field(default_factory=CommandState)
    """Which commands were read, and what they have left behind."""
    tracks_loads: bool = False
    """Whether a published table that has no record in ``<prefix>.snapshots`` was never loaded. Earlier versions loaded
    no table by default, so what they delivered counts as loaded (:func:`pgsluice.loads.assumed`)."""

    def advanced(self, cut: Cut, number: int, held_lsn: int = INVALID_LSN) -> "Checkpoint":
        """Return the checkpoint that belongs to ``cut``, which gets this ``number``."""
        found = replace(
            self,
            cut=number,
            end_lsn=cut.end_lsn,
            held_lsn=held_lsn,
            loads=self.loads if cut.loads is None else tuple(cut.loads),
            place=cut.place or self.place,
            commands=cut.commands or self.commands,
            tracks_loads=self.tracks_loads or cut.tracks_loads,
        )
        if cut.last_message is not None:
            message_lsn, message_crc = cut.last_message
            found = replace(found, last_message_lsn=message_lsn, last_message_crc=message_crc)
        if cut.last is None:
            return found
        transaction, last_end_lsn = cut.last
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

    @property
    def delivered(self) -> Delivered:
        """How far changes are delivered, and from where on there was nothing to deliver."""
        return Delivered(
            self.end_lsn,
            transaction_lsn=max(self.last_end_lsn, self.asked_lsn),
            message_lsn=max(self.last_message_lsn, self.asked_lsn),
        )

    def asking(self, asked: str) -> "Checkpoint":
        """Return the checkpoint of a session that asks for ``asked``."""
        return self if asked == self.asked else replace(self, asked=asked, asked_lsn=self.end_lsn)

    def to_json(self) -> bytes:
        """Return the value of the checkpoint record."""
        return json.dumps({"version": _CHECKPOINT_VERSION, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str = "The checkpoint record") -> "Checkpoint":
        """Return the checkpoint that ``data`` holds; HistoryError when it is not one. ``where`` it was found."""
        try:
            return cls._from_fields(read_json(data.decode()))
        except ValueError as error:
            raise HistoryError(
                f"{where} is not one that this version of pgsluice can read: {error}. Was it written by a newer "
                "version, or by another program? Run the version that wrote it, or choose another kafka.topic_prefix."
            ) from None

    @classmethod
    def _from_fields(cls, found: object) -> "Checkpoint":
        """Return the checkpoint with these fields; ValueError, saying why, when they are not those of one."""
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004 - wrong data, not a wrong argument
        if found.pop("version", None) != _CHECKPOINT_VERSION:
            raise ValueError(f"its version is not {_CHECKPOINT_VERSION}")
        # Earlier versions did not record messages: any position up to the end may be one's.
        found.setdefault("last_message_lsn", found.get("end_lsn"))
        loads, place, commands = found.pop("loads", []), found.pop("place", {}), found.pop("commands", {})
        known = {one.name: one for one in fields(cls) if one.name not in ("loads", "place", "commands")}
        if not found.keys() <= known.keys():
            raise ValueError("it has fields that are not known")
        missing = [one.name for one in known.values() if one.default is MISSING and one.name not in found]
        if missing:
            raise ValueError(f"{missing[0]!r} is missing")
        for name, value in found.items():
            _check_field(name, value, known[name].type)
        return cls(**found, loads=read_loads(loads), place=read_place(place), commands=read_command_state(commands))


_BOUNDS: Final = {
    "timeline": (1, 2**32 - 1),
    "epoch": (1, EPOCH_MAX),
    "cut": (0, CUT_MAX),
    "last_xid": (0, 2**32 - 1),
    "last_commit_ts": (-(2**63), 2**63 - 1),
}
"""Of the numbers in a checkpoint; all others are LSNs."""


_KINDS: Final[Mapping[object, str]] = {str: "a string", int: "an integer", bool: "true or false"}


def _check_field(name: str, value: object, kind: object) -> None:
    if type(value) is not kind:
        raise ValueError(f"{name!r} is not {_KINDS[kind]}")
    lowest, highest = _BOUNDS.get(name, (INVALID_LSN, MAX_LSN))
    if isinstance(value, int) and not lowest <= value <= highest:
        raise ValueError(f"{name!r} is outside {lowest} to {highest}")


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


@dataclass(frozen=True, slots=True)
class Identity:
    """Who starts: the pipeline's name and slot, and what decides which changes it delivers (``asked``).

    ``is_atomic``: a cut's records and its checkpoint are committed together (exactly once). ``adopt``: where the
    history cannot be continued, a new one begins.
    """

    pipeline: str
    slot: str
    asked: str
    is_atomic: bool
    adopt: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What a start has found, once no earlier session can write any more.

    ``checkpoints``: the committed records of the checkpoint topic, the one that counts last, as far back as they were
    read.
    ``recorded``: what the cut records say. ``slot_lsn``: the slot's confirmed_flush_lsn. ``switches``: the history of
    the server's timeline.
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
    """Where a session goes on.

    ``committed``: the number of the last cut that was committed, 0 if there was none. ``reason``: why a new history
    begins, None when the former one goes on.
    """

    checkpoint: Checkpoint
    committed: int
    reason: str | None = None

    @property
    def is_birth(self) -> bool:
        """Whether the checkpoint is not in Kafka yet, so that its cut has to be committed before anything else."""
        return self.checkpoint.cut > self.committed


def last_checkpoint(found: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the checkpoint that counts among those that were read (see ``kafka.checkpoint``); None if there is none.

    It is the last one, and not the one that is furthest on: a record that another program has forged would hide every
    later one of ours. Whether the cut records confirm it, :func:`resume` decides.
    """
    return found[-1] if found else None


def is_outrun(checkpoint: Checkpoint | None, recorded: Recorded) -> bool:
    """Return whether cuts are recorded that ``checkpoint`` knows nothing of.

    One is possible: its record can become visible although the process died before its checkpoint was committed.
    """
    known = checkpoint.cut if checkpoint is not None else 0
    return recorded.cut > known + 1


def is_contradicted(checkpoint: Checkpoint | None, recorded: Recorded) -> bool:
    """Return whether the record of the cut to which ``checkpoint`` belongs says something else than ``checkpoint``.

    Both are written in one transaction. An announcement has no cut record of its own: it follows a cut, and announces
    a later epoch. A refusal stops every start, whatever its position.
    """
    position = recorded.positions.get(checkpoint.cut) if checkpoint is not None else None
    if checkpoint is None or position is None or checkpoint.refused:
        return False
    if checkpoint.is_announcement:
        return checkpoint.epoch <= position[0]
    return (checkpoint.epoch, checkpoint.end_lsn) != position


def resume(facts: Facts, identity: Identity) -> Resumption:
    """Decide where the session goes on.

    ConfigError when the topics belong to another pipeline. SourceUnavailable on a standby that is behind. Diverged
    when the server is not the one that was followed, and HistoryError when changes are missing or cannot be told from
    others, unless ``identity.adopt``. HistoryError in any case when another program has written impossible numbers.
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
        begun = _with_room(_begun(former, facts, identity))
        return Resumption(begun, 0 if former is None else former.cut, str(error))
    return replace(found, checkpoint=_with_room(found.checkpoint).asking(identity.asked))


def announcement(last: Checkpoint | None, recorded: Recorded, identity: Identity, server: ServerIdentity) -> Checkpoint:
    """Return what says that the slot is going to be created; cut numbers go on after the last one committed."""
    epoch, cut = (1, 0) if last is None else (last.epoch + (not last.is_announcement), last.cut)
    if identity.is_atomic and cut == recorded.cut + 1:
        cut = recorded.cut  # as in _committed
    begun = Checkpoint(identity.pipeline, identity.slot, server.systemid, server.timeline, epoch, cut, INVALID_LSN)
    if last is None:
        return _with_room(begun)
    return _with_room(replace(begun, commands=last.commands, tracks_loads=last.tracks_loads))


def _with_room(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint that a session begins with; HistoryError when those after it could not be read back."""
    if checkpoint.epoch > EPOCH_MAX or checkpoint.cut > CUT_MAX // 2:
        raise HistoryError(
            f"The history in Kafka has reached epoch {checkpoint.epoch} and cut {checkpoint.cut}, to which pgsluice "
            "never counts: another program has written to the topics of checkpoints or transactions. Take that right "
            "away from it, and choose another kafka.topic_prefix."
        )
    return checkpoint


def _begun(last: Checkpoint | None, facts: Facts, identity: Identity) -> Checkpoint:
    """Return the first checkpoint of a new epoch, which begins at the slot's position.

    Its numbers go on after those that readers know: what comes now must not look older than what they have. Nothing is
    known of what was asked for before the slot's position, so ``asked_lsn`` is not set. If the server sends something
    that ends before that position, it was restored, and what it sends may be new.
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
        asked=identity.asked,
        commands=CommandState() if last is None else last.commands,
        tracks_loads=last is None or last.tracks_loads,
    )


def _first_of_epoch(announced: Checkpoint, facts: Facts, identity: Identity) -> Checkpoint:
    """Return the first checkpoint of the epoch that was announced; HistoryError if the epoch has one already."""
    if is_outrun(announced, facts.recorded):
        raise HistoryError(
            f"Cut {facts.recorded.cut} was delivered, but the checkpoint that belongs to it is lost, and the slot is a "
            "new one: changes made in between are lost to this pipeline. Start a new history with --adopt-slot, then "
            f"{LOAD_AGAIN}"
        )
    return replace(
        announced,
        timeline=facts.server.timeline,
        cut=announced.cut + 1,
        end_lsn=facts.slot_lsn,
        asked=identity.asked,
        asked_lsn=facts.slot_lsn,
        tracks_loads=announced.tracks_loads or announced.epoch == 1,  # nothing was delivered before the first epoch
    )


def _continued(last: Checkpoint | None, facts: Facts, identity: Identity) -> Resumption:
    """Return where the history that was followed goes on; HistoryError when it cannot."""
    if last is None:
        raise HistoryError(
            f"Slot {identity.slot!r} exists, but there is no checkpoint for it in Kafka: either it was not created by "
            "pgsluice, or the Kafka cluster lost its topics. If changes before the slot's position may be missing "
            f"downstream, {LOAD_AGAIN} Before that, start with --adopt-slot."
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

    With transactions that need not be the last one: a transaction marker that arrives late can show a checkpoint whose
    cut was aborted because the process died. A checkpoint and its cut record are committed together, so without the
    record it does not count, and nothing behind the one before it was ever confirmed. If the slot stands behind that,
    the cut was committed, and Kafka lost its record.

    Another program can have written the last one under our key: see :func:`check_genuine`. Then the last one that the
    cut records do not deny is returned, and a new epoch goes on from its numbers.
    """
    recorded = facts.recorded
    if not identity.is_atomic:
        return last
    if last.cut < recorded.cut or is_contradicted(last, recorded):
        return _undenied(facts) or last
    if last.cut == recorded.cut:
        return last
    if not recorded.cut and last.cut > 1:
        return last  # retention has deleted all cut records, so there is nothing to compare with
    former = _undenied(facts)
    if former is None:
        return last
    confirmable = last.end_lsn if former.is_announcement else former.end_lsn  # a slot is made where its history begins
    return former if facts.slot_lsn <= confirmable else last


def _undenied(facts: Facts) -> Checkpoint | None:
    """Return the last checkpoint of the highest cut, up to the last one recorded, that no cut record contradicts."""
    recorded = facts.recorded
    found = [one for one in facts.checkpoints if one.cut <= recorded.cut and not is_contradicted(one, recorded)]
    return max(reversed(found), key=lambda one: one.cut, default=None)


def _wait_for_standby(checkpoint: Checkpoint, facts: Facts) -> None:
    """Raise SourceUnavailable on a standby that has not replayed what was delivered: it may be behind."""
    if facts.is_standby and checkpoint.end_lsn > facts.server.xlogpos:
        raise SourceUnavailable(
            f"The server is a standby, and it has not replayed {format_lsn(checkpoint.end_lsn)} yet: waiting for it, "
            "or for the primary."
        )


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


def check_refused(checkpoint: Checkpoint) -> None:
    """Raise HistoryError when an earlier start or session has found that the server has another history.

    The server's WAL may have grown past the checkpoint since, so looking at it again could accept that history.
    """
    if checkpoint.refused:
        raise HistoryError(
            f"{checkpoint.refused} An earlier run found this, and pgsluice does not go on until it is told to. If that "
            "run was connected to a copy of the database by mistake, and this is the right server, start once with "
            "--adopt-slot: nothing has to be reloaded, and what was delivered but not yet confirmed comes again in a "
            "new epoch."
        )


def check_genuine(checkpoints: Sequence[Checkpoint], committed: Checkpoint, recorded: Recorded) -> None:
    """Raise HistoryError when the cut records show that another program has written the last of ``checkpoints``.

    ``committed``: the one of the last cut that was committed. A checkpoint and its cut record are written in one
    transaction, so they agree. Late markers can show or hide one of the two for the last cut only, so one of the topics
    can be one cut ahead of the other. pgsluice never writes a checkpoint right after one of a higher recorded cut, nor
    one that is two or more cuts ahead of the records. If the slot stands behind the last cut recorded, the latter means
    that Kafka lost cut records, which is told when the topics are compared.
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
        f"but the cut records say that {says}: another program has written this checkpoint under our key, or Kafka "
        "lost records. Going on from it could hide changes or repeat them, so nothing was delivered. Let nobody but "
        "pgsluice write to the topics of checkpoints and transactions. Then start once with --adopt-slot: a new epoch "
        "begins at the slot's position, nothing is missing, and what was delivered behind that position comes again in "
        f"the new epoch. If topics lost records, {LOAD_AGAIN}"
    )


def check_recorded(checkpoint: Checkpoint, facts: Facts, *, is_atomic: bool) -> None:
    """Raise HistoryError when Kafka lost the checkpoints of cuts that are recorded: they must not be written again.

    Without transactions (at least once) they may, as long as the slot still sends them.
    """
    recorded = facts.recorded
    was_confirmed = recorded.cut > checkpoint.cut and checkpoint.end_lsn < facts.slot_lsn <= recorded.end_lsn
    if not was_confirmed and not (is_atomic and is_outrun(checkpoint, recorded)):
        return
    raise HistoryError(
        f"Cut {recorded.cut} is recorded as delivered, but the last checkpoint is the one of cut "
        f"{checkpoint.cut}: Kafka lost the last records of the checkpoint topic, as after an unclean leader election "
        f"or with a lost disk. Going on from cut {checkpoint.cut} would deliver the later cuts a second time. Start "
        "once with --adopt-slot: a new epoch begins at the slot's position, nothing is missing, and what was "
        "delivered behind that position comes again in the new epoch. If other topics lost records as well, "
        f"{LOAD_AGAIN}"
    )


def check_slot(checkpoint: Checkpoint, confirmed_flush_lsn: int, server: ServerIdentity) -> None:
    """Raise HistoryError when the slot is ahead of the checkpoint (a gap).

    Diverged when the checkpoint is ahead of the server.
    """
    delivered = format_lsn(checkpoint.end_lsn)
    if confirmed_flush_lsn > checkpoint.end_lsn:
        raise HistoryError(
            f"Slot {checkpoint.slot!r} is at {format_lsn(confirmed_flush_lsn)}, but only changes before {delivered} "
            "are in Kafka: somebody else advanced or re-created the slot, and the changes between are lost to this "
            f"pipeline. Start a new history with --adopt-slot, then {LOAD_AGAIN}"
        )
    if confirmed_flush_lsn > checkpoint.held_lsn != INVALID_LSN:
        raise HistoryError(
            f"Slot {checkpoint.slot!r} is at {format_lsn(confirmed_flush_lsn)}, behind a PREPARE TRANSACTION at "
            f"{format_lsn(checkpoint.held_lsn)} that was not committed by then: somebody else advanced the slot, and "
            "PostgreSQL will not send the changes prepared before it. Have those transactions ended, start a new "
            f"history with --adopt-slot, then {LOAD_AGAIN}"
        )
    if checkpoint.end_lsn > server.xlogpos:
        raise Diverged(
            f"Changes before {delivered} are in Kafka, but the server's WAL ends at {format_lsn(server.xlogpos)}: it "
            "was restored or failed over to a state before them. Compare the tables, then start a new history with "
            "--adopt-slot."
        )


def check_timeline(checkpoint: Checkpoint, server: ServerIdentity, switches: Iterable[TimelineSwitch]) -> Checkpoint:
    """Return ``checkpoint`` on the server's timeline; HistoryError when something delivered lies beyond the switch.

    Where only heartbeats do, nothing is missing from the new timeline: the session goes on from the switch point.
    """
    if checkpoint.timeline == server.timeline:
        return checkpoint
    switch = next((entry.switch_lsn for entry in switches if entry.timeline == checkpoint.timeline), None)
    if switch is None or max(checkpoint.last_end_lsn, checkpoint.last_message_lsn) > switch:
        at = "is not an ancestor of it" if switch is None else f"was left at {format_lsn(switch)}"
        raise HistoryError(
            f"Changes before {format_lsn(checkpoint.end_lsn)} on timeline {checkpoint.timeline} are in Kafka; the "
            f"server is on timeline {server.timeline}, and timeline {checkpoint.timeline} {at}: the server lost "
            "changes that were published. Compare the tables, then start a new history with --adopt-slot."
        )
    if checkpoint.place.lsn > switch:
        raise HistoryError(
            f"Rows that were read of tables are in Kafka at {format_lsn(checkpoint.place.lsn)} on timeline "
            f"{checkpoint.timeline}, which was left at {format_lsn(switch)}: the server lacks no change, but its next "
            "ones would come before these rows in the order of positions. Start a new history with --adopt-slot."
        )
    return replace(
        checkpoint,
        timeline=server.timeline,
        end_lsn=min(checkpoint.end_lsn, switch),
        asked_lsn=min(checkpoint.asked_lsn, switch),
        held_lsn=checkpoint.held_lsn if checkpoint.held_lsn < switch else INVALID_LSN,
    )


def check_resent(checkpoint: Checkpoint, resent: Resent) -> None:
    """Raise Diverged when the transaction that ends at the checkpoint is not the one that was delivered."""
    found = (resent.transaction.xid, resent.transaction.commit_ts)
    if resent.end_lsn == checkpoint.last_end_lsn and found != (
        checkpoint.last_xid,
        checkpoint.last_commit_ts,
    ):
        raise Diverged(
            f"The transaction that ends at {format_lsn(resent.end_lsn)} is {found[0]}, but the one delivered was "
            f"{checkpoint.last_xid}: the server was restored from a backup and has another history now. Compare the "
            "tables, then start a new history with --adopt-slot."
        )


def check_message_resent(checkpoint: Checkpoint, message: LogicalMessage) -> None:
    """Raise Diverged when the message that ends at the checkpoint is not the one that was delivered."""
    if message.lsn == checkpoint.last_message_lsn and checkpoint.last_message_crc not in ("", message_crc(message)):
        raise Diverged(
            f"The message at {format_lsn(message.lsn)} is not the one that was delivered: the server was restored from "
            "a backup and has another history now. Compare the tables, then start a new history with --adopt-slot."
        )


def unexpected(checkpoint: Checkpoint, change: Change | Emitted) -> Diverged:
    """Return what follows when a change to deliver comes where the WAL that was followed had none."""
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
            f"Changes before {end} count as delivered: this epoch began with --adopt-slot, where the slot stood then, "
            "and has delivered nothing yet. The slot has gone back since. So the server crashed before it had saved "
            "the slot's position, or it"
        )
    else:
        why = (
            f"Changes before {end} are delivered, and between {format_lsn(since)} and that position the server had "
            "nothing to send when this pipeline followed it. So it"
        )
    return Diverged(
        f"PostgreSQL has sent {what}. {why} was restored from a backup or a disk snapshot, or it is a copy of the "
        "server that was followed. What it has sent was not delivered, and will be sent again. Compare the tables, "
        "then start a new history with --adopt-slot: it begins at the slot's position."
    )


def owed(checkpoint: Checkpoint, slot_lsn: int) -> Mapping[int, Owed]:
    """Return what the server has to send again, as its end and what it is: the last transaction, the last message.

    ``checkpoint``: of the session, so that nothing is expected that was delivered when something else was asked for.
    """
    last: dict[int, Owed] = {checkpoint.last_end_lsn: "transaction", checkpoint.last_message_lsn: "message"}
    return {lsn: what for lsn, what in last.items() if lsn > max(slot_lsn, checkpoint.asked_lsn)}
