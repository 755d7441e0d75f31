"""Looks at frames that the session has received but not processed yet."""

from collections.abc import Iterator, Sequence
from typing import Final

from pgsluice.errors import ProtocolError
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import MESSAGE_AT, Keepalive, XLogData
from pgsluice.pgoutput.messages import Relation
from pgsluice.rows import OID, is_row

_RELATION: Final = b"R"
_ENDS: Final = {b"S": b"E", b"b": b"P"}
"""The types of the messages that begin and end a group of rows whose transaction may still be rolled back. Stream Stop
ends a group that begins with Stream Start, and Prepare ends a group that begins with Begin Prepare."""


class Ahead:
    """The frames of the last read, beginning with the frame that the session is processing."""

    def __init__(self) -> None:
        self._frames: Sequence[XLogData | Keepalive] = ()
        self._at = 0
        self._is_new = False

    def come_to(self, frames: Sequence[XLogData | Keepalive], at: int) -> None:
        """Record that the session is about to process ``frames[at]``, outside of prepared and streamed transactions."""
        self._is_new |= frames is not self._frames
        self._frames, self._at = frames, at

    def described(self) -> Iterator[Relation]:
        """Yield the tables that the frames describe and have rows of, except in transactions that may be rolled back.

        If this method was already called for the same read, yield nothing.

        A description alone does not mean that rows of the table follow: if rows are published as those of a partitioned
        table, the server describes their partition as well. Stop at a frame that cannot be decoded, because the session
        will process that frame and raise the error.
        """
        if not self._is_new:
            return
        self._is_new, decoder, waiting = False, Decoder(), dict[bytes, Relation]()
        for frame in self._committed():
            if frame[MESSAGE_AT : MESSAGE_AT + 1] == _RELATION:
                try:
                    described = decoder.decode(frame[MESSAGE_AT:])
                except ProtocolError:
                    return
                assert isinstance(described, Relation), "the message has the type of a Relation"
                waiting[frame[OID]] = described
            elif is_row(frame) and (found := waiting.pop(frame[OID], None)) is not None:
                yield found

    def _committed(self) -> Iterator[XLogData]:
        """Yield the frames that are still to come, without those of transactions that may still be rolled back."""
        end = None
        for frame in self._frames[self._at :]:
            if isinstance(frame, Keepalive):
                continue
            kind = frame[MESSAGE_AT : MESSAGE_AT + 1]
            if end is not None:
                end = None if kind == end else end
            else:
                end = _ENDS.get(kind)
                yield frame
