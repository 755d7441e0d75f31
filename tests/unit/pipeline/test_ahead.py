"""Finding the tables that frames describe, before the session processes the frames."""

from dataclasses import replace

import pytest

from pgsluice.pgoutput import messages
from pgsluice.pgoutput.framing import Keepalive, XLogData
from pgsluice.pipeline.ahead import Ahead
from tests.support.ends import TABLE, data
from tests.support.pgoutput_encoder import xlog_data

BEGIN, COMMIT = messages.Begin(50, 1, 700), messages.Commit(50, 100, 1)
ROW = messages.Insert(None, TABLE.oid, [b"1"])
OLD = messages.Update(None, TABLE.oid, None, None, [b"1"]), messages.Delete(None, TABLE.oid, [b"1"], None)
START, STOP = messages.StreamStart(700, first_segment=True), messages.StreamStop()
PREPARE = messages.BeginPrepare(50, 100, 1, 700, "g"), messages.Prepare(50, 100, 1, 700, "g")


def named(name: str, xid: int | None = None) -> messages.Relation:
    return replace(TABLE, name=name, xid=xid)


def ahead(*sent: messages.Message | Keepalive | bytes, at: int = 0) -> list[str]:
    frames: list[XLogData | Keepalive] = [one if isinstance(one, bytes | Keepalive) else data(one) for one in sent]
    found = Ahead()
    found.come_to(frames, at)
    return [table.name for table in found.described()]


def test_without_a_read_there_are_no_tables() -> None:
    assert list(Ahead().described()) == []


def test_tables_of_several_transactions_are_found() -> None:
    again = (BEGIN, named("b"), ROW, COMMIT)
    assert ahead(BEGIN, named("a"), ROW, COMMIT, Keepalive(100, 0, reply_requested=False), *again) == ["a", "b"]


@pytest.mark.parametrize("row", [ROW, *OLD])
def test_only_tables_with_rows_are_found(row: messages.Message) -> None:
    """The server also describes the partition of a row that it publishes as a row of the partition's root."""
    partition = replace(named("partition"), oid=TABLE.oid + 1)
    assert ahead(BEGIN, named("root"), partition, row, row, COMMIT) == ["root"]
    assert ahead(BEGIN, named("root"), COMMIT) == []


def test_only_frames_that_are_still_to_come_are_examined() -> None:
    assert ahead(BEGIN, named("a"), ROW, named("b"), ROW, COMMIT, at=2) == ["b"]


@pytest.mark.parametrize(("begin", "end"), [(START, STOP), PREPARE])
def test_tables_of_streamed_transactions_are_left_out(begin: messages.Message, end: messages.Message) -> None:
    xid = 700 if begin is START else None
    row = replace(ROW, xid=xid)
    assert ahead(begin, named("a", xid), row, end, BEGIN, named("b"), ROW, COMMIT) == ["b"]
    assert ahead(BEGIN, named("b"), ROW, COMMIT, begin, named("a", xid), row) == ["b"]


def test_each_read_is_examined_once() -> None:
    found = Ahead()
    frames: list[XLogData | Keepalive] = [data(BEGIN), data(named("a")), data(ROW)]
    found.come_to(frames, 0)
    assert len(list(found.described())) == 1
    found.come_to(frames, 1)
    assert list(found.described()) == []
    found.come_to(list(frames), 0)
    assert len(list(found.described())) == 1


def test_the_search_ends_at_bytes_that_cannot_be_decoded() -> None:
    assert ahead(named("a"), ROW, xlog_data(b"R\x00"), named("b"), ROW) == ["a"]
