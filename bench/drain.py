"""The bare drain: a client that receives a slot's stream, and decodes only the ends of transactions.

The drain calls libpq through ``psycopg.pq``, and does no more than a client has to do. It runs in a separate process.
"""

import time
from select import select
from typing import Any

from psycopg import pq

from bench.processes import child_main, say, wait_for_word

XLOG_DATA = 0x77
COMMIT, STREAM_COMMIT = 0x43, 0x63
MESSAGE = 25
"""The offset of pgoutput's message in CopyData. Before the message are ``w`` and three numbers of eight bytes."""

END_LSN = {COMMIT: MESSAGE + 10, STREAM_COMMIT: MESSAGE + 14}
"""The offset of the transaction's end LSN in CopyData, by type of message. In both types, the flags and the commit LSN
precede the end LSN. In a Stream Commit message, the xid precedes the flags."""


def main(arguments: dict[str, Any]) -> None:
    """Drain the stream that ``command`` starts, and report when it has reached each of ``end_lsns``.

    When there is nothing to read, wait until the server sends something, and then another ``pause_s`` seconds.
    """
    wire = pq.PGconn.connect(arguments["conninfo"].encode())
    result = wire.exec_(arguments["command"].encode())
    if result.status != pq.ExecStatus.COPY_BOTH:
        raise RuntimeError(wire.error_message.decode())
    for end_lsn in arguments["end_lsns"]:
        size = _read_until(wire, end_lsn, arguments["pause_s"])
        say(at=time.monotonic(), size=size)
    wait_for_word()  # the bench first reads the CPU time of the walsender, which ends together with this process
    wire.finish()


def _read_until(wire: pq.abc.PGconn, end_lsn: int, pause_s: float) -> int:
    """Read up to the first transaction that ends at ``end_lsn`` or later. Return the size of pgoutput's messages."""
    get_copy_data, consume_input, sockets, ends = wire.get_copy_data, wire.consume_input, [wire.socket], END_LSN
    total, empty = 0, False
    while True:
        size, data = get_copy_data(1)
        if size == 0:
            if empty or not pause_s:
                select(sockets, [], [])
                if pause_s:
                    time.sleep(pause_s)
            empty = True
            consume_input()
        elif size < 0:
            raise RuntimeError("the server has ended the stream")
        elif data[0] == XLOG_DATA:
            empty = False
            total += size - MESSAGE
            at = ends.get(data[MESSAGE])
            if at is not None and int.from_bytes(data[at : at + 8], "big") >= end_lsn:
                return total


if __name__ == "__main__":
    child_main(main)
