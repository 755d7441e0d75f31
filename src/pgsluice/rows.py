"""Runs of rows, from CopyData to records: the way that nearly every change takes.

The session hands over what it has read, and where it is; the run goes on while rows of one transaction follow, of
tables whose encoder is ready, and there is room. What ends it, the session does, and comes back. ``_rows`` is the
compiled twin of this module, chosen by ``speedups``; every row that it cannot write, it gives to this one.

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
    """Return whether a run can begin with the frame."""
    return isinstance(frame, bytes) and frame[MESSAGE_AT : MESSAGE_AT + 1] in _ROWS


class Rows:
    """The changes of one version of a table; ``encoder`` None: of a table that is left out."""

    def __init__(self, relation: Relation, encoder: ChangeEncoder | None) -> None:
        self.relation = relation
        self.encoder = encoder

    def add(self, message: bytes, stamp: Stamp, pending: Pending, *, is_streamed: bool) -> None:
        """Add what an Insert, Update, Delete or Truncate becomes; ProtocolError when it is none."""
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
    """Add the rows that begin at ``frames[at]``, none of them streamed; where the run ended.

    It ends before what is no row of a table in ``ready`` whose version is that of ``relations``, and when ``pending``
    is full.
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
