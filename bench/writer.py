"""Writes one-row transactions at a fixed rate, even if consumers do not keep up, and reports when each COMMIT returned.

Each transaction has a planned time, in one timetable for all connections. A connection that is late writes its next row
immediately. The writer runs in a separate process.
"""

import time
from array import array
from threading import Thread
from typing import Any

from psycopg import pq

from bench.loads import ORDERS_COLUMNS, columns
from bench.processes import child_main, say, wait_for_word

STATEMENT = b"insert"


def main(arguments: dict[str, Any]) -> None:
    """Write ``count`` rows with ids from ``first`` on, at ``rate`` per second. Report their commit times."""
    count, connections = arguments["count"], arguments["connections"]
    wires = [_connect(arguments["conninfo"]) for _ in range(connections)]
    times = array("d", bytes(8 * count))
    say(ready=True)
    wait_for_word()
    begin = time.monotonic()
    first, rate = arguments["first"], arguments["rate"]
    threads = [
        Thread(target=_write, args=(wire, first, range(number, count, connections), times, begin, rate))
        for number, wire in enumerate(wires)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(times=times.tolist(), begin=begin, rate=count / (max(times) - begin))


def _connect(conninfo: str) -> pq.abc.PGconn:
    wire = pq.PGconn.connect(conninfo.encode())
    values = ", ".join(value for _, _, value in columns(ORDERS_COLUMNS))
    statement = f"INSERT INTO orders SELECT g, {values} FROM (SELECT $1::bigint) AS one(g)"
    result = wire.prepare(STATEMENT, statement.encode())
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise RuntimeError(wire.error_message.decode())
    return wire


def _write(wire: pq.abc.PGconn, first: int, numbers: range, times: "array[float]", begin: float, rate: float) -> None:
    monotonic, sleep, execute = time.monotonic, time.sleep, wire.exec_prepared
    for number in numbers:
        early = begin + number / rate - monotonic()
        if early > 0:
            sleep(early)
        result = execute(STATEMENT, [b"%d" % (first + number)])
        times[number] = monotonic()
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise RuntimeError(wire.error_message.decode())


if __name__ == "__main__":
    child_main(main)
