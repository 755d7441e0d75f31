"""Runs of rows, from CopyData to records: the path of nearly every change.

The session passes the frames that it has read, and the index of the first one. The run goes on as long as rows of one
transaction follow, their tables have encoders, and there is room. The session handles the frame that ended the run, and
then starts a new run. ``native.rows`` is the compiled twin of this module, and ``native.speedups`` chooses between the
two. The compiled twin leaves every row that it cannot write to this module.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from pgsluice.envelope import ChangeEncoder, Stamp
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import MESSAGE_AT, Keepalive, XLogData
from pgsluice.record import Pending
from pgsluice.relation import Relation

_ROWS: Final = frozenset((b"I", b"U", b"D"))


def is_row(frame: XLogData | Keepalive) -> TypeGuard[XLogData]:
    """Return whether the frame is a row, with which a run can begin."""
    return isinstance(frame, bytes) and frame[MESSAGE_AT : MESSAGE_AT + 1] in _ROWS


class Rows:
    """Adds the changes of one version of a table. ``encoder`` is None if the table is not published."""

    def __init__(self, relation: Relation, encoder: ChangeEncoder | None) -> None:
        self.relation = relation
        self.encoder = encoder

    def add(self, message: bytes, stamp: Stamp, pending: Pending, *, is_streamed: bool) -> None:
        """Add the records of an Insert, Update, Delete or Truncate; ProtocolError if the message is invalid."""
        if self.encoder is not None:
            decoder = Decoder()
            decoder.in_stream = is_streamed
            decoded: Any = decoder.decode(message)
            pending.add(self.encoder.encode(decoded, stamp))


def add_run(
    frames: Sequence[XLogData | Keepalive],
    at: int,
    relations: Mapping[int, Relation],
    ready: Mapping[int, Rows],
    stamp: Stamp,
    pending: Pending,
) -> int:
    """Add the rows from ``frames[at]`` on, and return the index at which the run ended. No row may be streamed.

    The run ends before a frame that is not a row, before a row whose table is not in ``ready``, or is there in another
    version than in ``relations``, and when ``pending`` is full.
    """
    while at < len(frames) and not pending.full:
        frame = frames[at]
        if not is_row(frame):
            break
        oid = int.from_bytes(frame[MESSAGE_AT + 1 : MESSAGE_AT + 5], "big")
        rows = ready.get(oid)
        if rows is None or relations.get(oid) is not rows.relation:
            break
        rows.add(frame[MESSAGE_AT:], stamp, pending, is_streamed=False)
        at += 1
    return at
