"""Properties of the pgoutput decoder. It reads all messages of the test encoder, and refuses all other bytes."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgsluice.errors import ProtocolError
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import (
    MESSAGE_AT,
    Keepalive,
    PrimaryStatus,
    StandbyStatusUpdate,
    parse_frame,
    parse_standby_status_update,
    standby_status_update,
)
from pgsluice.pgoutput.framing import wal_end as read_wal_end
from pgsluice.pgoutput.messages import UNCHANGED, BinaryValue, Message, StreamAbort, StreamStart, StreamStop
from tests.support.pgoutput_encoder import encode, keepalive, primary_status, xlog_data

LSN = st.integers(0, 2**64 - 1)
TIME = st.integers(-(2**63), 2**63 - 1)
UINT32 = st.integers(0, 2**32 - 1)
TYPMOD = st.integers(-(2**31), 2**31 - 1)
STRING = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
CONTENT = st.binary(max_size=12)
VALUE = st.one_of(CONTENT, st.none(), st.just(UNCHANGED), CONTENT.map(BinaryValue))
TUPLE = st.lists(VALUE, max_size=6)
COLUMN = st.builds(messages.RelationColumn, st.booleans(), STRING, UINT32, TYPMOD)
IDENTITY = st.sampled_from("dnfi")
OLD_IMAGE = st.one_of(st.tuples(TUPLE, st.none()), st.tuples(st.none(), TUPLE))


FLAGGED: dict[type, st.SearchStrategy[Message]] = {
    messages.Commit: st.builds(messages.Commit, LSN, LSN, TIME),
    messages.StreamCommit: st.builds(messages.StreamCommit, UINT32, LSN, LSN, TIME),
    messages.Prepare: st.builds(messages.Prepare, LSN, LSN, TIME, UINT32, STRING),
    messages.StreamPrepare: st.builds(messages.StreamPrepare, LSN, LSN, TIME, UINT32, STRING),
    messages.CommitPrepared: st.builds(messages.CommitPrepared, LSN, LSN, TIME, UINT32, STRING),
    messages.RollbackPrepared: st.builds(messages.RollbackPrepared, LSN, LSN, TIME, TIME, UINT32, STRING),
}
TRANSACTIONS: dict[type, st.SearchStrategy[Message]] = {
    **FLAGGED,
    messages.Begin: st.builds(messages.Begin, LSN, TIME, UINT32),
    messages.Origin: st.builds(messages.Origin, LSN, STRING),
    messages.StreamAbort: st.one_of(
        st.builds(StreamAbort, UINT32, UINT32, st.none(), st.none()),
        st.builds(StreamAbort, UINT32, UINT32, LSN, TIME),
    ),
    messages.BeginPrepare: st.builds(messages.BeginPrepare, LSN, LSN, TIME, UINT32, STRING),
}


_Image = tuple[messages.TupleData | None, messages.TupleData | None]


def _update(xid: int | None, oid: int, image: _Image, new: messages.TupleData) -> messages.Update:
    return messages.Update(xid, oid, *image, new)


def _delete(xid: int | None, oid: int, image: _Image) -> messages.Delete:
    return messages.Delete(xid, oid, *image)


def _changes(xid: st.SearchStrategy[int | None]) -> dict[type, st.SearchStrategy[Message]]:
    columns = st.lists(COLUMN, max_size=4).map(tuple)
    oids = st.lists(UINT32, max_size=4).map(tuple)
    no_image = st.just((None, None))
    return {
        messages.Relation: st.builds(messages.Relation, xid, UINT32, STRING, STRING, IDENTITY, columns),
        messages.Type: st.builds(messages.Type, xid, UINT32, STRING, STRING),
        messages.Insert: st.builds(messages.Insert, xid, UINT32, TUPLE),
        messages.Update: st.builds(_update, xid, UINT32, st.one_of(OLD_IMAGE, no_image), TUPLE),
        messages.Delete: st.builds(_delete, xid, UINT32, OLD_IMAGE),
        messages.Truncate: st.builds(messages.Truncate, xid, st.booleans(), st.booleans(), oids),
        messages.LogicalMessage: st.builds(messages.LogicalMessage, xid, st.booleans(), LSN, STRING, CONTENT),
    }


OPTIONS = [_changes(st.none())[one] for one in (messages.Truncate, messages.LogicalMessage)]
OUTSIDE = st.one_of(*TRANSACTIONS.values(), *_changes(st.none()).values())
INSIDE = st.one_of(*TRANSACTIONS.values(), *_changes(UINT32).values())
START = st.builds(StreamStart, UINT32, st.booleans())


@st.composite
def _payloads(draw: st.DrawFn) -> tuple[bool, bytes]:
    """Return whether the decoder is inside a streamed transaction, and a payload that is valid there."""
    in_stream = draw(st.booleans())
    return in_stream, encode(draw(INSIDE | st.just(StreamStop()) if in_stream else OUTSIDE | START))


def _decode(payload: bytes, *, in_stream: bool) -> Message:
    decoder = Decoder()
    decoder.in_stream = in_stream
    return decoder.decode(payload)


def _check_documented(payload: bytes, *, in_stream: bool) -> None:
    """Check that ``payload`` is either refused with a documented error, or read as a message with the same encoding."""
    try:
        message = _decode(payload, in_stream=in_stream)
    except ProtocolError as error:
        assert " at offset " in str(error)  # noqa: PT017  # both outcomes are right
        assert ": expected " in str(error)  # noqa: PT017  # both outcomes are right
    else:
        assert encode(message) == payload


@given(st.lists(st.one_of(OUTSIDE, st.tuples(START, st.lists(INSIDE, max_size=5))), max_size=8))
@settings(deadline=None)
def test_a_session_is_read_as_it_was_written(
    session: list[Message | tuple[StreamStart, list[Message]]],
) -> None:
    sent: list[Message] = []
    for step in session:
        sent += [step[0], *step[1], StreamStop()] if isinstance(step, tuple) else [step]
    decoder = Decoder()
    assert [decoder.decode(encode(message)) for message in sent] == sent


@given(st.one_of(OUTSIDE, START))
@settings(deadline=None)
def test_a_value_keeps_its_type(message: Message) -> None:
    assert repr(_decode(encode(message), in_stream=False)) == repr(message)


@given(_payloads())
@settings(deadline=None)
def test_every_truncation_is_refused(case: tuple[bool, bytes]) -> None:
    in_stream, payload = case
    for length in range(len(payload)):
        if payload[:1] == b"A" and length == 9:
            continue  # this is a valid Stream Abort without the fields of parallel streaming
        with pytest.raises(ProtocolError):
            _decode(payload[:length], in_stream=in_stream)


@given(_payloads(), st.binary(min_size=1, max_size=4))
@settings(deadline=None)
def test_trailing_bytes_are_refused(case: tuple[bool, bytes], tail: bytes) -> None:
    in_stream, payload = case
    with pytest.raises(ProtocolError):
        _decode(payload + tail, in_stream=in_stream)


@given(_payloads(), st.data())
@settings(deadline=None)
def test_a_changed_byte_is_refused_or_read_exactly(case: tuple[bool, bytes], data: st.DataObject) -> None:
    in_stream, payload = case
    at = data.draw(st.integers(0, len(payload) - 1))
    byte = data.draw(st.binary(min_size=1, max_size=1))
    _check_documented(payload[:at] + byte + payload[at + 1 :], in_stream=in_stream)


@given(st.sampled_from(b"BCORYIUDTMSEcAbPpKr"), st.binary(max_size=64), st.booleans())
@settings(deadline=None)
def test_any_bytes_are_refused_or_read_exactly(kind: int, rest: bytes, in_stream: bool) -> None:  # noqa: FBT001  # drawn by Hypothesis
    _check_documented(bytes([kind]) + rest, in_stream=in_stream)


@given(st.one_of(*FLAGGED.values()), st.integers(1, 255))
@settings(deadline=None)
def test_reserved_flags_are_refused(message: Message, flags: int) -> None:
    with pytest.raises(ProtocolError, match="expected flags 0"):
        _decode(encode(message, flags=flags), in_stream=False)


@given(st.one_of(OPTIONS), st.sampled_from([4, 8, 0x10, 0x20, 0x40, 0x80]))
@settings(deadline=None)
def test_unknown_options_are_refused(message: Message, flags: int) -> None:
    with pytest.raises(ProtocolError, match=r"expected (options|flags) 0 or 1"):
        _decode(encode(message, flags=flags), in_stream=False)


def test_every_message_has_a_strategy() -> None:
    drawn = {*TRANSACTIONS, *_changes(st.none()), StreamStart, StreamStop}
    assert drawn == set(get_args(Message))


@given(CONTENT, LSN, st.none() | LSN, TIME)
@settings(deadline=None)
def test_xlog_data_is_read_as_it_was_written(payload: bytes, start: int, wal_end: int | None, time: int) -> None:
    frame = parse_frame(memoryview(xlog_data(payload, start, wal_end, time)))
    assert isinstance(frame, bytes)
    assert frame[MESSAGE_AT:] == payload
    assert read_wal_end(frame) == (start if wal_end is None else wal_end)


@given(LSN, TIME, st.booleans())
@settings(deadline=None)
def test_a_keepalive_is_read_as_it_was_written(wal_end: int, time: int, reply: bool) -> None:  # noqa: FBT001  # drawn by Hypothesis
    frame = keepalive(wal_end, time, reply_requested=reply)
    assert parse_frame(frame) == Keepalive(wal_end, time, reply)
    for length in range(len(frame)):
        with pytest.raises(ProtocolError):
            parse_frame(frame[:length])


def test_a_primary_status_is_recognised() -> None:
    assert parse_frame(primary_status()) == PrimaryStatus()


@given(LSN, LSN, LSN, TIME, st.booleans())
@settings(deadline=None)
def test_a_status_update_is_read_as_it_was_written(
    write: int,
    flush: int,
    apply: int,
    time: int,
    reply: bool,  # noqa: FBT001  # drawn by Hypothesis
) -> None:
    frame = standby_status_update(write, flush, apply, time, reply_requested=reply)
    assert parse_standby_status_update(frame) == StandbyStatusUpdate(write, flush, apply, time, reply)
    for length in range(len(frame)):
        with pytest.raises(ProtocolError):
            parse_standby_status_update(frame[:length])


@given(st.binary(max_size=40))
@settings(deadline=None)
def test_any_copy_data_is_parsed_or_refused(data: bytes) -> None:
    for parse in (parse_frame, parse_standby_status_update):
        try:
            parse(data)
        except ProtocolError as error:
            assert " at offset " in str(error)  # noqa: PT017  # both outcomes are right
