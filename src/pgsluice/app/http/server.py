"""The HTTP server: its routes, its limits, and its answers to requests that reach no handler.

``app.daemon`` and ``app.registry_commands`` create it.

https://docs.aiohttp.org/en/stable/web.html
https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
"""

import asyncio
import json
import os
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Final

from aiohttp import HttpVersion11, web, web_response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from pgsluice.app.http import page
from pgsluice.app.http.access import OPEN, Access, AccessFiles
from pgsluice.app.http.connections import Connections
from pgsluice.app.http.health import Health, Role
from pgsluice.app.http.hosts import Hosts
from pgsluice.errors import ConfigError
from pgsluice.printable import printable
from pgsluice.registry import api
from pgsluice.registry.store import SchemaStore

BODY_MAX_BYTES: Final = 1024 * 1024
"""The largest body of a request. The body of a request that looks up a schema contains this schema."""
BODIES_MAX: Final = 16
"""How many requests with a body are processed at a time. The others wait."""
LARGE_BYTES: Final = 64 * 1024
"""If an answer is larger than ``LARGE_BYTES``, other connections may be closed to make room for it. Smaller answers
need no limit, because there are at most 100 connections."""
ANSWER_S: Final = 10.0
"""How long a request to the registry may take, from its head to the answer."""
HEADER_MAX_BYTES: Final = 8190
HEADERS_MAX: Final = 64
BACKLOG: Final = 16
"""The backlog of the listening socket."""
HANDSHAKE_S: Final = 5.0
"""How long a TLS handshake may take. The limit of connections applies only after the handshake."""
SHUTDOWN_S: Final = 1.0
"""How long requests in progress may take once the server stops."""
EARLY_LOOKS: Final = 10
EARLY_LOOK_S: Final = 0.1
"""A consumer can have a message a moment before we have its schema. Most consumers would fail on "not found", so we
look EARLY_LOOKS times, with pauses of EARLY_LOOK_S seconds, before we answer "not found"."""

_ADDRESS: Final = re.compile(r"(\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")
_PORT_MAX: Final = 65535

_OPEN_METRICS: Final = "application/openmetrics-text"

# The content of the Server header. The library's own text would show its version and Python's.
web_response.SERVER_SOFTWARE = "pgsluice"  # type: ignore[attr-defined]  # the library does not export it

_READ: Final = ("GET", "HEAD")

_PROBES: Final = ("/livez", "/readyz")
"""The paths that need no token. Kubernetes and load balancers have no token, and the answers for these paths contain no
table names."""

_CHALLENGE: Final = 'Bearer realm="pgsluice", Basic realm="pgsluice", charset="UTF-8"'

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """One listening address.

    ``allowed_hosts`` are names under which clients may use the server (see :class:`.Hosts`). ``files`` are the server's
    certificate, key and token (see :class:`.Access`).
    """

    def __init__(
        self,
        listen: str,
        health: Health,
        metrics: CollectorRegistry,
        registry: SchemaStore | None = None,
        allowed_hosts: Sequence[str] = (),
        files: AccessFiles = OPEN,
    ) -> None:
        self._listen = listen
        self._files = files
        self._address = _parse_address(listen)
        self._hosts = Hosts(self._address[0], allowed_hosts)
        self._health = health
        self._metrics = metrics
        self._registry = registry
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_S,
            max_line_size=HEADER_MAX_BYTES,
            max_field_size=HEADER_MAX_BYTES,
            max_headers=HEADERS_MAX,
            auto_decompress=False,
        )
        self._bodies = asyncio.Semaphore(BODIES_MAX)
        self._encoding = asyncio.Lock()
        self._searcher = ThreadPoolExecutor(1, "pgsluice-look-up")
        self._stack = AsyncExitStack()

    @property
    def port(self) -> int:
        """The port of the server. If ``listen`` has the port 0, the system has chosen this port."""
        return int(self._listener.sockets[0].getsockname()[1])

    @property
    def waiting_bytes(self) -> int:
        """The bytes of answers that clients have not read yet."""
        return self._connections.waiting_bytes

    async def start(self) -> None:
        """Listen. Raise ConfigError if the address is not available, or a file cannot be used."""
        self._access = Access(self._files)
        await self._runner.setup()
        self._stack.push_async_callback(self._runner.cleanup)
        assert self._runner.server is not None, "setup() has made it"
        self._connections = Connections(self._runner.server)
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._connections.accept,
                *self._address,
                backlog=BACKLOG,
                ssl=self._access.tls,
                ssl_handshake_timeout=HANDSHAKE_S if self._access.tls is not None else None,
            )
        except OSError as error:
            await self.stop()
            reason = _reason(error)
            remedy = "Stop what listens there, or change http.listen (in the image: PGSLUICE_HTTP__LISTEN)."
            raise ConfigError(f"Cannot listen on {self._listen}: {reason}. {remedy}") from error
        self._stack.callback(self._listener.close)
        self._stack.callback(asyncio.create_task(self._connections.watch()).cancel)
        self._stack.callback(asyncio.create_task(self._access.watch()).cancel)

    async def stop(self) -> None:
        """Stop listening. Requests in progress are answered, within ``SHUTDOWN_S``."""
        await self._stack.aclose()
        self._searcher.shutdown(wait=False, cancel_futures=True)

    def _application(self) -> web.Application:
        middlewares = [_errors_as_json, self._guard]
        application = web.Application(client_max_size=BODY_MAX_BYTES, middlewares=middlewares)
        pages: dict[str, _Handler] = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._metrics_page}
        pages |= {"/status": self._status, "/": self._root}
        for path, handler in pages.items():
            application.router.add_get(path, handler, expect_handler=_expect)
        others = self._registry_api
        if self._registry is None:

            async def others(request: web.Request) -> web.StreamResponse:
                raise web.HTTPMethodNotAllowed(request.method, _READ) if request.path in pages else web.HTTPNotFound

        application.router.add_route("*", "/{path:.*}", others, expect_handler=_expect)
        application.on_response_prepare.append(_add_headers)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuse requests without the token, and forged requests of web pages (DNS rebinding and cross-site POSTs)."""
        if not self._hosts.allow(request.headers.get("Host", "")):
            raise web.HTTPMisdirectedRequest(reason="Misdirected Request: this name is not in http.allowed_hosts")
        if request.method == "POST" and _is_from_another_site(request):
            raise web.HTTPForbidden(reason="Forbidden to other web sites")
        if request.path not in _PROBES and not self._access.allows(request.headers.get("Authorization", "")):
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": _CHALLENGE})
        with self._connections.answering(request.protocol):
            return await handler(request)

    async def _livez(self, _: web.Request) -> web.Response:
        return _verdict(self._health.live())

    async def _readyz(self, request: web.Request) -> web.Response:
        try:
            role = Role(request.query.get("role", Role.ANY))
        except ValueError:
            raise web.HTTPBadRequest(reason=f"role is one of {', '.join(Role)}") from None
        return _verdict(self._health.ready(role))

    async def _metrics_page(self, request: web.Request) -> web.Response:
        # choose_encoder() fails if the Accept header has unusual parameters, so it gets only the type.
        open_metrics = _OPEN_METRICS in request.headers.get("Accept", "")
        encode, content_type = choose_encoder(_OPEN_METRICS if open_metrics else "")
        return web.Response(body=encode(self._metrics), headers={"Content-Type": content_type})

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(self._health.status())

    async def _root(self, request: web.Request) -> web.StreamResponse:
        """Show the status to people. Clients that want JSON get the answer of Confluent's registry for this path."""
        accept = request.headers.get("Accept", "")
        if self._registry is not None and "json" in accept and "text/html" not in accept:
            return await self._registry_api(request)
        return web.Response(text=page.status_page(self._health), content_type="text/html", headers=page.HEADERS)

    async def _registry_api(self, request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await self._registry_answer(request)
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        headers = {"Allow": ", ".join(found.allow)} if found.allow else {}
        body = await self._encoded(request, found.body)
        return web.Response(status=found.status, body=body, content_type=api.CONTENT_TYPE, headers=headers)

    async def _encoded(self, request: web.Request, body: object) -> bytes:
        """Return an answer as JSON. Answers are created one after the other.

        If the answer is large, close connections to make room for it. Then let other tasks run, which also frees the
        answers of closed connections.
        """
        async with self._encoding:
            encoded = json.dumps(body).encode()
            if len(encoded) > LARGE_BYTES:
                self._connections.make_room(request.protocol, len(encoded))
                await asyncio.sleep(0)
        return encoded

    async def _registry_answer(self, request: web.Request) -> api.Answer:
        assert self._registry is not None, "called only if there is a registry"
        method, path, query = request.method, request.rel_url.raw_path, request.query
        if request.can_read_body:
            async with self._bodies:
                body = await _body(request)
                return await self._complete(api.answer(self._registry, method, path, query, body))
        for _ in range(EARLY_LOOKS):
            found = await self._complete(api.answer(self._registry, method, path, query, b""))
            if not found.early:
                break
            await asyncio.sleep(EARLY_LOOK_S)
        return found

    async def _complete(self, found: api.Answer | api.Search) -> api.Answer:
        """Return the answer. Searches run in a thread, one at a time."""
        if isinstance(found, api.Answer):
            return found
        return await asyncio.get_running_loop().run_in_executor(self._searcher, found)


async def _add_headers(_request: web.Request, answer: web.StreamResponse) -> None:
    """Forbid browsers from guessing the content type of an answer."""
    answer.headers["X-Content-Type-Options"] = "nosniff"


async def _expect(request: web.Request) -> None:
    """Answer the Expect header. The library's own answer quotes the header, and fails if the header is not UTF-8."""
    if request.headers["Expect"].lower() != "100-continue":
        raise web.HTTPExpectationFailed
    if request.version == HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # aiohttp must not think that the answer has begun


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Return errors in the form of Confluent's API, even the errors of requests that are not for that API."""
    try:
        return await handler(request)
    except web.HTTPClientError as error:
        kept = {name: error.headers[name] for name in ("Allow", "WWW-Authenticate") if name in error.headers}
        body = {"error_code": error.status, "message": f"HTTP {error.status} {error.reason}"}
        return web.json_response(body, status=error.status, headers=kept)


async def _body(request: web.Request) -> bytes:
    """Return the body. Refuse a compressed body: its real size is known too late, and no client sends one."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise web.HTTPUnsupportedMediaType
    return await request.read()


def _is_from_another_site(request: web.Request) -> bool:
    """Return whether a web page of another site made a browser send this request.

    Programs other than browsers send neither Sec-Fetch-Site nor Origin. Both headers are checked, because browsers
    leave out Sec-Fetch-Site on an unencrypted connection, unless the address is a loopback address.
    """
    site, origin = request.headers.get("Sec-Fetch-Site", "none"), request.headers.get("Origin")
    other_origin = origin is not None and origin.partition("://")[2] != request.headers.get("Host")
    return other_origin or site not in {"none", "same-origin"}


def _verdict(reason: str | None) -> web.Response:
    if reason is None:
        return web.Response(text="ok\n")
    return web.Response(text=f"{printable(reason)}\n", status=503)


def _reason(error: OSError) -> str:
    """Return the system's reason why listening failed. The text of asyncio's error is longer."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _parse_address(listen: str) -> tuple[str | None, int]:
    """Split ``host:port``. IPv6 hosts are in brackets. An empty host means every address."""
    match = _ADDRESS.fullmatch(listen)
    if match is None or int(match["port"]) > _PORT_MAX:
        raise ConfigError(f"http.listen: {listen!r} is not an address (expected host:port, like 127.0.0.1:8080).")
    return match["ipv6"] or match["host"] or None, int(match["port"])
