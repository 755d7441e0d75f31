"""Fuzzes the HTTP server: ``python -m tests.fuzz.http --count 1000000 --seed 1``.

Valid requests are damaged and sent over real connections to a server in this process. For each request, the server must
answer with a documented status, end the connection, or wait for the rest of the request. No answer may be an internal
error, none may take long, and memory must not grow. The quick suite does not include this fuzzer. The first input that
breaks a rule is printed, and ends the run with exit code 1.
"""

import argparse
import asyncio
import faulthandler
import json
import logging
import re
import resource
import sys
import time
from collections import Counter
from random import Random
from typing import Final

from prometheus_client import CollectorRegistry

from pgsluice.app.http import server as module
from pgsluice.app.http.health import Health
from pgsluice.app.http.server import HttpServer
from pgsluice.avro.wire import Schema
from pgsluice.registry.store import SchemaStore
from tests.fuzz.pgoutput import MUTATIONS, MUTATIONS_MAX, Broken

AT_ONCE: Final = 32
"""The number of clients. Most of them wait for an answer that never comes, because their request is incomplete."""
ANSWER_S: Final = 0.2
"""How long a client waits for the first bytes of an answer."""
STALL_S: Final = 2.0
"""How long the event loop may be blocked, in CPU time of this process. A request takes less than a millisecond."""
HANG_S: Final = 600.0
"""The limit for a batch. On a busy machine, this process may get no CPU time for a minute or longer."""
GROWTH_KIB: Final = 64 * 1024
"""How much the process may grow after the first tenth of the inputs."""
BATCH: Final = 200
"""The number of inputs that have to be answered within ``HANG_S``."""

ALLOWED: Final = frozenset((200, 301, 400, 403, 404, 405, 408, 411, 413, 414, 415, 417, 421, 422, 431, 501, 503, 505))
STATUS: Final = re.compile(rb"HTTP/\d\.\d (\d{3}) ")

PATHS: Final = (
    "/",
    "/livez",
    "/readyz?role=active",
    "/metrics",
    "/status",
    "/subjects",
    "/subjects/shop.public.t-value",
    "/subjects/shop.public.t-value/versions/latest",
    "/subjects/s%25%00%ff%2f..%2f/versions/-1",
    "/schemas/ids/1",
    "/schemas/ids/99999999999999999999",
    "/config",
    "/mode",
)
HEADERS: Final = (
    "Accept: text/html",
    "Accept: application/vnd.schemaregistry.v1+json",
    "Accept: application/openmetrics-text; version=1.0.0",
    "Content-Encoding: gzip",
    "Connection: keep-alive",
    "Connection: upgrade",
    "Upgrade: websocket",
    "Expect: 100-continue",
    "Transfer-Encoding: chunked",
    "Content-Length: 18446744073709551616",
    "Sec-Fetch-Site: cross-site",
    "Range: bytes=0-0,1-1",
    "X: " + "a" * 9000,
)
SCHEMAS: Final[tuple[Schema, ...]] = (
    {"type": "string"},
    ["null", "long"],
    {"type": "record", "name": "t.R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "t.R"]}]},
    {"type": "enum", "name": "E", "symbols": ["A", "B"]},
)


class Inputs:
    """The inputs. The same seed always gives the same inputs."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._corpus = [self._request() for _ in range(500)]

    def next(self) -> bytes:
        """Return a request, which may be damaged."""
        random = self._random
        data = self._request()
        if random.random() < 0.1:
            return data
        for _ in range(random.randrange(1, MUTATIONS_MAX + 1)):
            if data:
                data = random.choice(MUTATIONS)(random, data, self._corpus)
        return data

    def _request(self) -> bytes:
        random = self._random
        has_body = random.random() < 0.5
        method = (
            random.choice(("POST", "POST", "PUT", "DELETE")) if has_body else random.choice(("GET", "HEAD", "OPTIONS"))
        )
        lines = [f"{method} {random.choice(PATHS)} HTTP/1.1", "Host: localhost"]
        lines += random.sample(HEADERS, random.choice((0, 0, 1, 2)))
        body = b""
        if has_body:
            body = json.dumps({"schema": json.dumps(random.choice(SCHEMAS))}).encode()
            if "Transfer-Encoding: chunked" in lines:
                body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            else:
                lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def check(port: int, data: bytes) -> str:
    """Send ``data``, and return the outcome. Raise Broken if the outcome breaks a rule."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(ANSWER_S):
            answer = await reader.read(4096)
    except TimeoutError:
        return "waiting"
    except ConnectionError:
        return "ended"
    finally:
        writer.transport.abort()
    if not answer:
        return "ended"
    found = STATUS.match(answer)
    if found is None:
        raise Broken(f"no HTTP: {answer[:80]!r}")
    status = int(found[1])
    if status not in ALLOWED and status >= 300:
        raise Broken(f"answered {answer[:200]!r}")
    return str(status)


class Watch:
    """Checks that the event loop is not blocked, and that memory does not grow."""

    def __init__(self) -> None:
        self._last = time.process_time()
        self._peak_kib: int | None = None

    async def loop(self) -> None:
        """Check every few milliseconds. Raise Broken if a check comes too late."""
        while True:
            await asyncio.sleep(0.01)
            now = time.process_time()  # CPU time, because a busy machine may keep this process from running
            if now - self._last > STALL_S:
                raise Broken(f"the event loop was held up for {now - self._last:.1f} s")
            self._last = now

    def measure(self) -> None:
        """Record the peak memory at the first call. Later, raise Broken if it has grown by more than GROWTH_KIB."""
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if self._peak_kib is None:
            self._peak_kib = peak_kib
        elif peak_kib > self._peak_kib + GROWTH_KIB:
            raise Broken(f"memory grew from {self._peak_kib} to {peak_kib} KiB")


async def _clients(port: int, inputs: Inputs, count: int, outcomes: Counter[str]) -> None:
    left = iter(range(count))

    async def client() -> None:
        for number in left:
            if number % BATCH == 0:
                faulthandler.dump_traceback_later(HANG_S, exit=True)
            data = inputs.next()
            try:
                outcomes[await check(port, data)] += 1
            except Broken as broken:
                sys.stdout.write(f"input {number}: {data!r}\n{broken}\n")
                raise

    async with asyncio.TaskGroup() as clients:
        for _ in range(AT_ONCE):
            clients.create_task(client())


async def run(count: int, seed: int) -> Counter[str]:
    """Send ``count`` inputs. The same seed gives the same inputs."""
    module.EARLY_LOOK_S = 0.0  # type: ignore[misc]  # no schema arrives late here, so do not wait
    store, outcomes, watch = SchemaStore(), Counter[str](), Watch()
    for number, schema in enumerate(SCHEMAS):
        store.add(store.propose(f"shop.public.t{number or ''}-value", schema, None)[0])
    store.complete = True
    health = Health(lambda: {"state": "streaming"}, lambda: None, lambda _role: None)
    server, inputs = HttpServer("127.0.0.1:0", health, CollectorRegistry(), store), Inputs(seed)
    await server.start()
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # aiohttp logs a traceback for half of the inputs
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch.loop())
            for part in (count // 10, count - count // 10):
                await _clients(server.port, inputs, part, outcomes)
                watch.measure()
            watching.cancel()
    finally:
        faulthandler.cancel_dump_traceback_later()
        await server.stop()
    return outcomes


def main() -> None:
    """Run, and print the outcomes of the inputs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.http", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="inputs to send")
    parser.add_argument("--seed", type=int, default=1, help="selects the inputs")
    options = parser.parse_args()
    outcomes = asyncio.run(run(options.count, options.seed))
    for outcome, seen in sorted(outcomes.items()):
        sys.stdout.write(f"{seen:>10}  {outcome}\n")
    sys.stdout.write(f"{outcomes.total():>10}  inputs, none of which broke a rule\n")


if __name__ == "__main__":
    main()
