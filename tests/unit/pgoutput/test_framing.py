"""Unit tests of pgsluice.pgoutput.framing. The bytes were written by hand from the protocol's tables."""

import pytest

from pgsluice.errors import ProtocolError
from pgsluice.pgoutput.framing import (
    MESSAGE_AT,
    Frame,
    Keepalive,
    PrimaryStatus,
    StandbyStatusUpdate,
    parse_frame,
    parse_standby_status_update,
    standby_status_update,
    wal_end,
)

XLOG_DATA = bytes.fromhex(
    "77"  # w
    "f0000016 b374d848"  # dataStart
    "f0000016 b374d849"  # walEnd
    "fffffffffffffffe"  # sendTime, before 2000
    "45"  # payload: Stream Stop
)
KEEPALIVE = bytes.fromhex(
    "6b"  # k
    "ffffffff ffffffff"  # walEnd
    "fffffffffffffffd"  # sendTime
    "01"  # replyRequested
)
STATUS_UPDATE = bytes.fromhex(
    "72"  # r
    "f0000000 00000001"  # write
    "f0000000 00000002"  # flush
    "ffffffff ffffffff"  # apply
    "fffffffffffffffe"  # clientTime
    "01"  # replyRequested
)


@pytest.mark.parametrize(
    ("data", "frame"),
    [
        (XLOG_DATA, XLOG_DATA),
        (XLOG_DATA[:25], XLOG_DATA[:25]),
        (KEEPALIVE, Keepalive(2**64 - 1, -3, reply_requested=True)),
        (KEEPALIVE[:-1] + b"\x00", Keepalive(2**64 - 1, -3, reply_requested=False)),
        (b"s", PrimaryStatus()),
        (b"s and whatever it says", PrimaryStatus()),
    ],
)
def test_frames_are_parsed(data: bytes, frame: Frame) -> None:
    assert parse_frame(data) == frame
    assert parse_frame(memoryview(data)) == frame


def test_wal_data_is_a_head_and_a_message() -> None:
    assert XLOG_DATA[MESSAGE_AT:] == b"E"
    assert wal_end(XLOG_DATA) == 0xF0000016_B374D849


def test_the_frame_is_a_copy_of_its_own() -> None:
    buffer = bytearray(XLOG_DATA)  # libpq frees its buffer after the next read
    frame = parse_frame(memoryview(buffer))
    buffer[25:] = b"?"
    assert frame == XLOG_DATA


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "CopyData at offset 0: expected kind 'w', 'k' or 's'"),
        (b"W", "CopyData at offset 0: expected kind 'w', 'k' or 's'"),
        (b"w", "XLogData ('w') at offset 1: expected start (8 bytes), found the end after 0"),
        (XLOG_DATA[:16], "XLogData ('w') at offset 9: expected wal_end (8 bytes), found the end after 7"),
        (XLOG_DATA[:24], "XLogData ('w') at offset 17: expected send_time (8 bytes), found the end after 7"),
        (b"k", "Primary keepalive ('k') at offset 1: expected wal_end (8 bytes), found the end after 0"),
        (
            KEEPALIVE[:17],
            "Primary keepalive ('k') at offset 17: expected reply_requested (1 byte), found the end",
        ),
        (
            KEEPALIVE[:17] + b"\x02",
            "Primary keepalive ('k') at offset 17: expected reply_requested 0 or 1, found 2",
        ),
        (
            KEEPALIVE + b"\x00",
            "Primary keepalive ('k') at offset 18: expected the end of the message, found 1 more bytes",
        ),
    ],
)
def test_parse_frame_names_message_offset_and_expectation(data: bytes, error: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        parse_frame(data)
    assert str(raised.value) == error


def test_a_standby_status_update_is_written() -> None:
    assert (
        standby_status_update(0xF0000000_00000001, 0xF0000000_00000002, 2**64 - 1, -2, reply_requested=True)
        == STATUS_UPDATE
    )
    assert (
        standby_status_update(0xF0000000_00000001, 0xF0000000_00000002, 2**64 - 1, -2, reply_requested=False)
        == STATUS_UPDATE[:-1] + b"\x00"
    )


def test_a_standby_status_update_is_parsed() -> None:
    update = StandbyStatusUpdate(0xF0000000_00000001, 0xF0000000_00000002, 2**64 - 1, -2, reply_requested=True)
    assert parse_standby_status_update(STATUS_UPDATE) == update
    assert parse_standby_status_update(memoryview(STATUS_UPDATE)) == update


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "offset 0: expected kind (1 byte), found the end"),
        (b"h", "offset 0: expected kind 'r', found 'h'"),
        (STATUS_UPDATE[:32], "offset 25: expected client_time (8 bytes), found the end after 7"),
        (STATUS_UPDATE[:33] + b"\x07", "offset 33: expected reply_requested 0 or 1, found 7"),
        (STATUS_UPDATE + b"abc", "offset 34: expected the end of the message, found 3 more bytes"),
    ],
)
def test_parse_standby_status_update_refuses_anything_else(data: bytes, error: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        parse_standby_status_update(data)
    assert str(raised.value) == f"Standby status update ('r') at {error}"
