"""Unit tests of pgsluice.pgoutput.decoder. The bytes were written by hand from the protocol's tables."""

import itertools

import pytest

from pgsluice.errors import ProtocolError
from pgsluice.pgoutput.cursor import show
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.messages import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    BinaryValue,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RelationColumn,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
)

Change = Insert | Update | Delete | Truncate | Relation | Type | LogicalMessage

XID = "ffffffff"
"""The highest transaction id. Transaction ids and OIDs are unsigned."""

LSN_1 = "f0000016 b374d848"
LSN_2 = "ffffffff ffffffff"
TIME_1 = "ffffffff fffffff0"
TIME_2 = "ffffffff ffffffff"
"""The last microsecond of 1999. Times are signed, and 0 is the beginning of 2000."""
LSN = 0xF0000016_B374D848

GID = "6769 c3a9 00"  # gié

BEGIN = "42" + LSN_2 + TIME_2 + XID
COMMIT = "43 00" + LSN_1 + LSN_2 + TIME_1
ORIGIN = "4f" + LSN_1 + "6e6f6465 00"
STREAM_START = "53" + XID + "01"
STREAM_STOP = "45"
STREAM_COMMIT = "63" + XID + "00" + LSN_1 + LSN_2 + TIME_2
STREAM_ABORT = "41" + XID + "fffffffd"
BEGIN_PREPARE = "62" + LSN_1 + LSN_2 + TIME_2 + XID + GID
PREPARE = "50 00" + LSN_1 + LSN_2 + TIME_2 + XID + GID
STREAM_PREPARE = "70 00" + LSN_1 + LSN_2 + TIME_2 + XID + GID
COMMIT_PREPARED = "4b 00" + LSN_1 + LSN_2 + TIME_2 + XID + GID
ROLLBACK_PREPARED = "72 00" + LSN_1 + LSN_2 + TIME_1 + TIME_2 + XID + GID

RELATION_HEAD = (
    "fffffffe"  # oid
    "7075626c696300"  # namespace: public
    "c3b600"  # name: ö
    "66"  # replica identity: f
    "0002"
)
RELATION = RELATION_HEAD + (
    "01 696400 00000017 ffffffff"  # part of the key, id, int4, no typmod
    "00 6e00 fffffffc 000a0006"  # column n, of a type with a high OID, with a typmod
)
TYPE = "0001e240 00 6d6f6f6400"  # 123456, pg_catalog, mood
INSERT = (
    "fffffffe 4e 0005"
    "74 00000002 6869"  # text: hi
    "6e"  # NULL
    "75"  # unchanged
    "62 00000003 00ff80"  # binary
    "74 00000000"  # text: the empty string
)
KEY_1 = "4b 0002 74 00000001 31 6e"  # K, two columns: 1 and filler
OLD_1 = "4f 0001 74 00000001 32"
NEW_1 = "4e 0001 75"
TRUNCATE = "00000002 03 00004000 ffffffff"
MESSAGE = "01" + LSN_1 + "707265 00 00000003 00ff80"
COLUMNS = (RelationColumn(True, "id", 23, -1), RelationColumn(False, "n", 2**32 - 4, 0xA0006))  # noqa: FBT003  # as in Relation


def decoded(text: str, *, in_stream: bool = False) -> Message:
    decoder = Decoder()
    decoder.in_stream = in_stream
    return decoder.decode(bytes.fromhex(text))


def error_of(payload: bytes, *, in_stream: bool = False) -> str:
    decoder = Decoder()
    decoder.in_stream = in_stream
    with pytest.raises(ProtocolError) as raised:
        decoder.decode(payload)
    assert decoder.in_stream == in_stream  # a refused message does not change the decoder
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BEGIN, Begin(2**64 - 1, -1, 2**32 - 1)),
        (COMMIT, Commit(LSN, 2**64 - 1, -16)),
        (ORIGIN, Origin(LSN, "node")),
        (STREAM_COMMIT, StreamCommit(2**32 - 1, LSN, 2**64 - 1, -1)),
        (STREAM_ABORT, StreamAbort(2**32 - 1, 2**32 - 3, None, None)),
        (STREAM_ABORT + LSN_1 + TIME_2, StreamAbort(2**32 - 1, 2**32 - 3, LSN, -1)),
        (BEGIN_PREPARE, BeginPrepare(LSN, 2**64 - 1, -1, 2**32 - 1, "gié")),
        (PREPARE, Prepare(LSN, 2**64 - 1, -1, 2**32 - 1, "gié")),
        (STREAM_PREPARE, StreamPrepare(LSN, 2**64 - 1, -1, 2**32 - 1, "gié")),
        (COMMIT_PREPARED, CommitPrepared(LSN, 2**64 - 1, -1, 2**32 - 1, "gié")),
        (
            ROLLBACK_PREPARED,
            RollbackPrepared(LSN, 2**64 - 1, -16, -1, 2**32 - 1, "gié"),
        ),
    ],
)
def test_messages_about_transactions_are_read(text: str, message: Message) -> None:
    assert decoded(text) == message


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("52", RELATION, Relation(None, 2**32 - 2, "public", "ö", "f", COLUMNS)),
        ("52", "00000001 00 00 6e 0000", Relation(None, 1, "", "", "n", ())),
        ("59", TYPE, Type(None, 123456, "", "mood")),
        ("49", INSERT, Insert(None, 2**32 - 2, [b"hi", None, UNCHANGED, BinaryValue(b"\x00\xff\x80"), b""])),
        ("49", "00000001 4e 0000", Insert(None, 1, [])),
        ("55", "00000001" + NEW_1, Update(None, 1, None, None, [UNCHANGED])),
        ("55", "00000001" + KEY_1 + NEW_1, Update(None, 1, [b"1", None], None, [UNCHANGED])),
        ("55", "00000001" + OLD_1 + NEW_1, Update(None, 1, None, [b"2"], [UNCHANGED])),
        ("55", "00000001 4f0000" + NEW_1, Update(None, 1, None, [], [UNCHANGED])),
        ("44", "00000001" + KEY_1, Delete(None, 1, [b"1", None], None)),
        ("44", "00000001" + OLD_1, Delete(None, 1, None, [b"2"])),
        ("54", TRUNCATE, Truncate(None, True, True, (0x4000, 2**32 - 1))),  # noqa: FBT003  # as in Truncate
        ("54", "00000000 00", Truncate(None, False, False, ())),  # noqa: FBT003  # as in Truncate
        ("54", "00000000 01", Truncate(None, True, False, ())),  # noqa: FBT003  # as in Truncate
        ("54", "00000000 02", Truncate(None, False, True, ())),  # noqa: FBT003  # as in Truncate
        ("4d", MESSAGE, LogicalMessage(None, True, LSN, "pre", b"\x00\xff\x80")),  # noqa: FBT003
        ("4d", "00" + LSN_2 + "00 00000000", LogicalMessage(None, False, 2**64 - 1, "", b"")),  # noqa: FBT003
    ],
)
def test_changes_carry_an_xid_in_a_stream_and_only_there(kind: str, text: str, message: Change) -> None:
    assert decoded(kind + text) == message
    message.xid = 2**32 - 1
    assert decoded(kind + XID + text, in_stream=True) == message


def test_binary_values_are_told_from_text() -> None:
    insert = decoded("49" + INSERT)
    assert isinstance(insert, Insert)
    assert [type(value) for value in insert.new] == [bytes, type(None), type(UNCHANGED), BinaryValue, bytes]


def test_a_stream_starts_and_stops() -> None:
    decoder = Decoder()
    assert not decoder.in_stream
    assert decoder.decode(bytes.fromhex(STREAM_START)) == StreamStart(2**32 - 1, True)  # noqa: FBT003  # as in Stream Start
    assert decoder.in_stream
    assert decoder.decode(bytes.fromhex("59" + XID + TYPE)) == Type(2**32 - 1, 123456, "", "mood")
    assert decoder.decode(bytes.fromhex(ORIGIN)) == Origin(LSN, "node")  # an Origin message never has an xid
    assert decoder.decode(bytes.fromhex(STREAM_STOP)) == StreamStop()
    assert not decoder.in_stream
    assert decoder.decode(bytes.fromhex("59" + TYPE)) == Type(None, 123456, "", "mood")
    assert decoder.decode(bytes.fromhex("53 00000001 00")) == StreamStart(1, False)  # noqa: FBT003  # as in Stream Start


def test_a_stream_does_not_start_in_a_stream_nor_stop_outside() -> None:
    start, stop = bytes.fromhex(STREAM_START), bytes.fromhex(STREAM_STOP)
    expected = "Stream Start ('S') at offset 0: expected Stream Stop before the next Stream Start"
    assert error_of(start, in_stream=True) == expected
    assert error_of(stop) == "Stream Stop ('E') at offset 0: expected Stream Start before Stream Stop"


def test_an_empty_payload_is_refused() -> None:
    assert error_of(b"") == "pgoutput message at offset 0: expected a message type, found the end"


def test_every_other_type_byte_is_refused() -> None:
    known = b"BCORYIUDTMSEcAbPpKr"
    for kind in set(range(256)) - set(known):
        error = error_of(bytes([kind]) + bytes(64))
        name = f"pgoutput message ({show(kind)})"
        assert error == f"{name} at offset 0: expected a message type of protocol versions 1 to 4"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (BEGIN, "Begin ('B')"),
        (COMMIT, "Commit ('C')"),
        (ORIGIN, "Origin ('O')"),
        ("52" + RELATION, "Relation ('R')"),
        ("59" + TYPE, "Type ('Y')"),
        ("49" + INSERT, "Insert ('I')"),
        ("55 00000001" + KEY_1 + NEW_1, "Update ('U')"),
        ("55 00000001" + OLD_1 + NEW_1, "Update ('U')"),
        ("55 00000001" + NEW_1, "Update ('U')"),
        ("44 00000001" + KEY_1, "Delete ('D')"),
        ("44 00000001" + OLD_1, "Delete ('D')"),
        ("54" + TRUNCATE, "Truncate ('T')"),
        ("4d" + MESSAGE, "Message ('M')"),
        (STREAM_START, "Stream Start ('S')"),
        (STREAM_COMMIT, "Stream Commit ('c')"),
        (STREAM_ABORT, "Stream Abort ('A')"),
        (BEGIN_PREPARE, "Begin Prepare ('b')"),
        (PREPARE, "Prepare ('P')"),
        (STREAM_PREPARE, "Stream Prepare ('p')"),
        (COMMIT_PREPARED, "Commit Prepared ('K')"),
        (ROLLBACK_PREPARED, "Rollback Prepared ('r')"),
    ],
)
def test_truncated_and_extended_messages_are_refused(text: str, name: str) -> None:
    payload = bytes.fromhex(text)
    for length in range(1, len(payload)):
        assert error_of(payload[:length]).startswith(f"{name} at offset ")
    if name == "Stream Abort ('A')":
        expected = "abort_lsn (8 bytes), found the end after 1"
    else:
        expected = "the end of the message, found 1 more bytes"
    assert error_of(payload + b"\x00") == f"{name} at offset {len(payload)}: expected {expected}"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (BEGIN, "commit_lsn commit_ts xid"),
        (COMMIT, "flags commit_lsn end_lsn commit_ts"),
        (ORIGIN, "lsn name"),
        ("52" + RELATION_HEAD, "oid namespace name replica column_count"),
        ("59" + TYPE, "oid namespace name"),
        ("49" + INSERT, "relation_oid tuple_kind column_count a length a length a length"),
        ("54" + TRUNCATE, "relation_count options relation"),
        ("4d" + MESSAGE, "flags lsn prefix length content"),
        (STREAM_START, "xid first_segment"),
        (STREAM_COMMIT, "xid flags commit_lsn end_lsn commit_ts"),
        (STREAM_ABORT, "xid subxid"),
        (BEGIN_PREPARE, "prepare_lsn end_lsn prepare_ts xid gid"),
        (PREPARE, "flags prepare_lsn end_lsn prepare_ts xid gid"),
        (STREAM_PREPARE, "flags prepare_lsn end_lsn prepare_ts xid gid"),
        (COMMIT_PREPARED, "flags commit_lsn end_lsn commit_ts xid gid"),
        (ROLLBACK_PREPARED, "flags prepare_end_lsn end_lsn prepare_ts rollback_ts xid gid"),
    ],
)
def test_the_error_names_the_field_that_is_cut(text: str, names: str) -> None:
    payload = bytes.fromhex(text)
    errors = [error_of(payload[:length]) for length in range(1, len(payload))]
    fields = [error.partition(": expected ")[2].split()[0].rstrip(",") for error in errors]
    assert [name for name, _ in itertools.groupby(fields)] == names.split()


def test_nothing_follows_the_long_stream_abort_nor_stream_stop() -> None:
    long = bytes.fromhex(STREAM_ABORT + LSN_1 + TIME_1)
    for length in range(10, len(long)):
        assert error_of(long[:length]).startswith("Stream Abort ('A') at offset ")
    end = "expected the end of the message, found 1 more bytes"
    assert error_of(long + b"\x00") == f"Stream Abort ('A') at offset 25: {end}"
    assert error_of(b"E\x00", in_stream=True) == f"Stream Stop ('E') at offset 1: {end}"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (COMMIT, 1),
        (STREAM_COMMIT, 5),
        (PREPARE, 1),
        (STREAM_PREPARE, 1),
        (COMMIT_PREPARED, 1),
        (ROLLBACK_PREPARED, 1),
    ],
)
def test_reserved_flags_are_zero(text: str, at: int) -> None:
    payload = bytearray(bytes.fromhex(text))
    payload[at] = 1
    assert error_of(bytes(payload)).endswith(f" at offset {at}: expected flags 0, found 1")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("53 00000001 02", "Stream Start ('S') at offset 5: expected first_segment 0 or 1, found 2"),
        ("4d 02" + LSN_1 + "00 00000000", "Message ('M') at offset 1: expected flags 0 or 1, found 2"),
        ("54 00000000 04", "Truncate ('T') at offset 5: expected options 0 or 1 or 2 or 3, found 4"),
        (
            "52 00000001 00 6100 78 0000",
            "Relation ('R') at offset 8: expected replica identity 'd' or 'n' or 'f' or 'i', found 'x'",
        ),
        (
            "52 00000001 00 6100 64 0001 02 6100 00000017 ffffffff",
            "Relation ('R') at offset 11: expected column flags 0 or 1, found 2",
        ),
        ("49 00000001 4b 0000", "Insert ('I') at offset 5: expected tuple kind 'N', found 'K'"),
        ("55 00000001 58 0000", "Update ('U') at offset 5: expected tuple kind 'K', 'O' or 'N', found 'X'"),
        ("55 00000001" + OLD_1 + OLD_1, "Update ('U') at offset 14: expected tuple kind 'N', found 'O'"),
        ("44 00000001 4e 0000", "Delete ('D') at offset 5: expected tuple kind 'K' or 'O', found 'N'"),
        (
            "49 00000001 4e 0002 6e 78",
            "Insert ('I') at offset 9: expected a column value 'n', 'u', 't' or 'b', found 'x'",
        ),
    ],
)
def test_bytes_that_mean_nothing_are_refused(text: str, error: str) -> None:
    assert error_of(bytes.fromhex(text)) == error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "49 00000001 4e ffff",  # 65535 columns without any bytes
            "Insert ('I') at offset 8: expected a column value 'n', 'u', 't' or 'b', found the end",
        ),
        (
            "49 00000001 4e 0001 74 000000",
            "Insert ('I') at offset 9: expected length of a column value (4 bytes), found the end after 3",
        ),
        (
            "49 00000001 4e 0001 74 00000003 6869",
            "Insert ('I') at offset 13: expected a column value (3 bytes), found the end after 2",
        ),
        (
            "49 00000001 4e 0002 74 00000003 6869",  # the same value, with a missing column after it
            "Insert ('I') at offset 13: expected a column value (3 bytes), found the end after 2",
        ),
        (
            "49 00000001 4e 0001 62 ffffffff 6869",  # -1
            "Insert ('I') at offset 13: expected a column value (4294967295 bytes), found the end after 2",
        ),
        (
            "54 ffffffff 00 00000001",  # 2^32 - 1 relations
            "Truncate ('T') at offset 6: expected relation OIDs (17179869180 bytes), found the end after 4",
        ),
        (
            "4d 00" + LSN_1 + "00 ffffffff 61",
            "Message ('M') at offset 15: expected content (4294967295 bytes), found the end after 1",
        ),
        (
            "52 00000001 00 6100 64 ffff",  # 65535 columns without any bytes
            "Relation ('R') at offset 11: expected column flags (1 byte), found the end",
        ),
        ("4f" + LSN_1 + "61ff00", "Origin ('O') at offset 10: expected name in UTF-8"),
        (
            "4f" + LSN_1 + "6162",
            "Origin ('O') at offset 9: expected name, ended by NUL, found the end after 2",
        ),
        ("52 00000001 00", "Relation ('R') at offset 6: expected name, ended by NUL, found the end after 0"),
    ],
)
def test_lengths_are_checked_before_anything_is_allocated(text: str, error: str) -> None:
    assert error_of(bytes.fromhex(text)) == error


def test_column_counts_are_unsigned() -> None:
    columns = 40_000  # more than a table can have, but not more than the field can hold
    nulls = columns.to_bytes(2, "big") + b"n" * columns
    for in_stream, xid in ((False, b""), (True, b"\x00\x00\x00\x07")):
        text = (b"U" + xid + b"\x00\x00\x00\x01O" + nulls + b"N" + nulls).hex()
        update = decoded(text, in_stream=in_stream)
        assert isinstance(update, Update)
        assert update.old == update.new == [None] * columns


def test_a_change_in_a_stream_needs_its_xid() -> None:
    expected = "at offset 1: expected xid (4 bytes), found the end after 0"
    for kind, name in ((b"R", "Relation"), (b"Y", "Type"), (b"T", "Truncate"), (b"I", "Insert")):
        assert error_of(kind, in_stream=True) == f"{name} ({kind.decode()!r}) {expected}"
