"""The checkpoint: the record in Kafka that says how far changes are delivered, and its JSON.

``kafka.checkpoint`` reads and writes the record. :mod:`pgsluice.history` decides whether a start may continue from it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Final

from pgsluice.avro.wire import read_json
from pgsluice.commands import CommandState, read_command_state
from pgsluice.cut import CUT_MAX, EPOCH_MAX, Cut
from pgsluice.errors import HistoryError
from pgsluice.loads import Load, LoadPosition, read_load_position, read_loads
from pgsluice.lsn import INVALID_LSN, MAX_LSN
from pgsluice.transaction import Delivered

_CHECKPOINT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The record in Kafka that says how far changes are delivered.

    ``end_lsn``: everything before this position is delivered, and no later position is confirmed to PostgreSQL. It is
    0/0 while the slot is being created. ``epoch``: the history that the LSNs belong to. ``last_end_lsn``, ``last_xid``
    and ``last_commit_ts`` identify the last transaction that was delivered, and are 0 if this epoch has delivered none.
    ``last_message_lsn`` and ``last_message_crc`` identify the last message outside transactions, and are 0 and empty if
    this epoch has delivered none. Checkpoints that earlier versions of pgsluice wrote do not have the fields for
    messages.
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
    """The LSN of the oldest PREPARE whose transaction had not ended at ``end_lsn``. No position after this PREPARE is
    confirmed to PostgreSQL. 0/0 if there was no such transaction."""
    selection: str = field(default="", compare=False)
    """A digest of the settings that decide which changes are delivered, such as the publications. If these settings
    change, the server may send other transactions than before. The field's name in the record is ``asked``."""
    selection_lsn: int = field(default=INVALID_LSN, compare=False)
    """The position at which ``selection`` got its present value. In an epoch that began with ``--adopt-slot``, it is
    0/0 until the selection changes (see :mod:`pgsluice.history`). The field's name in the record is ``asked_lsn``."""
    refused: str = ""
    """If pgsluice has refused to continue because the server has another history, this is the error message, and every
    later start stops. Otherwise it is empty."""
    loads: tuple[Load, ...] = ()
    """The tables whose rows are being read, with the progress of their loads."""
    load_position: LoadPosition = field(default_factory=LoadPosition)
    """The position of the last rows that were read. Further rows at the same LSN get higher ``seq`` values. The field's
    name in the record is ``place``."""
    commands: CommandState = field(default_factory=CommandState)
    """The lasting effects of the commands that were read, and the offset of the next command."""
    tracks_loads: bool = False
    """Whether a missing record in ``<prefix>.snapshots`` means that a published table was never loaded. This is false
    for a checkpoint of an earlier version. Such a version loaded no table by default, so the tables that it delivered
    count as loaded (:func:`pgsluice.loads.assumed`)."""

    def advanced(self, cut: Cut, number: int, held_lsn: int = INVALID_LSN) -> "Checkpoint":
        """Return the checkpoint that is written with ``cut``. ``number`` is the number of the cut."""
        found = replace(
            self,
            cut=number,
            end_lsn=cut.end_lsn,
            held_lsn=held_lsn,
            loads=self.loads if cut.loads is None else tuple(cut.loads),
            load_position=cut.load_position or self.load_position,
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
        """Whether the checkpoint only announces a new slot. The epoch will begin at the position of that slot."""
        return self.end_lsn == INVALID_LSN

    @property
    def delivered(self) -> Delivered:
        """The positions that show whether a change from the server was already delivered."""
        return Delivered(
            self.end_lsn,
            transaction_lsn=max(self.last_end_lsn, self.selection_lsn),
            message_lsn=max(self.last_message_lsn, self.selection_lsn),
        )

    def selecting(self, selection: str) -> "Checkpoint":
        """Return the checkpoint of a session whose settings have this ``selection``."""
        if selection == self.selection:
            return self
        return replace(self, selection=selection, selection_lsn=self.end_lsn)

    def to_json(self) -> bytes:
        """Return the value of the checkpoint record."""
        values = {_NAMES_IN_RECORD.get(name, name): value for name, value in asdict(self).items()}
        values["commands"] = self.commands.to_fields()
        return json.dumps({"version": _CHECKPOINT_VERSION, **values}).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str = "The checkpoint record") -> "Checkpoint":
        """Return the checkpoint in ``data``. Raise HistoryError if it is not a checkpoint.

        ``where``: what the error message calls the record that contains ``data``.
        """
        try:
            return cls._from_fields(read_json(data.decode()))
        except ValueError as error:
            raise HistoryError(
                f"{where} is not one that this version of pgsluice can read: {error}. Was it written by a newer "
                "version, or by another program? Run the version that wrote it, or choose another kafka.topic_prefix."
            ) from None

    @classmethod
    def _from_fields(cls, found: object) -> "Checkpoint":
        """Return the checkpoint with these fields. Raise ValueError with the reason if they are invalid."""
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004 - wrong data, not a wrong argument
        if found.pop("version", None) != _CHECKPOINT_VERSION:
            raise ValueError(f"its version is not {_CHECKPOINT_VERSION}")
        # Earlier versions did not record messages, so the last message may have been anywhere before ``end_lsn``.
        found.setdefault("last_message_lsn", found.get("end_lsn"))
        loads, load_position, commands = found.pop("loads", []), found.pop("place", {}), found.pop("commands", {})
        plain = [one for one in fields(cls) if one.name not in ("loads", "load_position", "commands")]
        known = {_NAMES_IN_RECORD.get(one.name, one.name): one for one in plain}
        if not found.keys() <= known.keys():
            raise ValueError("it has fields that are not known")
        missing = [name for name, one in known.items() if one.default is MISSING and name not in found]
        if missing:
            raise ValueError(f"{missing[0]!r} is missing")
        for name, value in found.items():
            _check_field(name, value, known[name].type)
        values = {known[name].name: value for name, value in found.items()}
        return cls(
            **values,
            loads=read_loads(loads),
            load_position=read_load_position(load_position),
            commands=read_command_state(commands),
        )


_NAMES_IN_RECORD: Final = {"selection": "asked", "selection_lsn": "asked_lsn", "load_position": "place"}
"""Maps a field to its name in the record, if the two names differ. The record keeps the names that earlier versions
used."""

_BOUNDS: Final = {
    "timeline": (1, 2**32 - 1),
    "epoch": (1, EPOCH_MAX),
    "cut": (0, CUT_MAX),
    "last_xid": (0, 2**32 - 1),
    "last_commit_ts": (-(2**63), 2**63 - 1),
}
"""The lowest and highest value of each numeric field that is not an LSN."""

_KINDS: Final[Mapping[object, str]] = {str: "a string", int: "an integer", bool: "true or false"}


def _check_field(name: str, value: object, kind: object) -> None:
    if type(value) is not kind:
        raise ValueError(f"{name!r} is not {_KINDS[kind]}")
    lowest, highest = _BOUNDS.get(name, (INVALID_LSN, MAX_LSN))
    if isinstance(value, int) and not lowest <= value <= highest:
        raise ValueError(f"{name!r} is outside {lowest} to {highest}")


def last_checkpoint(found: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the latest of the checkpoints that ``kafka.checkpoint`` has ``found``, or None if there is none.

    In exactly-once mode, this is the last one in the topic, and not the one with the highest position. If the position
    decided, another program could write a checkpoint with a high position that hides all our later checkpoints.
    Afterwards, :func:`pgsluice.history.resume` checks whether the cut records confirm the checkpoint.
    """
    return found[-1] if found else None
