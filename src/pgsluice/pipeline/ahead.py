"""Looks at frames that the session has received but not processed yet."""

from collections.abc import Iterator, Sequence
from typing import Final

from pgsluice.errors import ProtocolError
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import MESSAGE_AT, Keepalive, XLogData
from pgsluice.pgoutput.messages import Relation

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
        """Yield the tables that the frames describe, except in transactions that may still be rolled back.

        If this method was already called for the same read, yield nothing.

        The server describes a table right before its first row, so rows of these tables are about to be processed. Stop
        at a frame that cannot be decoded, because the session will process that frame and raise the error.
        """
        if not self._is_new:
            return
        self._is_new, decoder, end = False, Decoder(), None
        for frame in self._frames[self._at :]:
            if isinstance(frame, Keepalive):
                continue
            kind = frame[MESSAGE_AT : MESSAGE_AT + 1]
            if end is not None:
                end = None if kind == end else end
            elif kind == _RELATION:
                try:
                    found = decoder.decode(frame[MESSAGE_AT:])
                except ProtocolError:
                    return
                assert isinstance(found, Relation), "the message has the type of a Relation"
                yield found
            else:
                end = _ENDS.get(kind)
