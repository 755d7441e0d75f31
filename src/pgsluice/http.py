"""What the daemon and ``pgsluice registry`` serve over HTTP: health, metrics, status, and the registry's API.

Made by :mod:`pgsluice.daemon`. Nothing here asks PostgreSQL or Kafka: every answer comes from memory.

https://docs.aiohttp.org/en/stable/web.html
https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from pgsluice import __version__
from pgsluice.errors import ConfigError
from pgsluice.registry import api
from pgsluice.registry.store import SchemaStore

BODY_MAX_BYTES: Final = 1024 * 1024
"""A look-up carries one schema."""
HEADER_MAX_BYTES: Final = 8190
SHUTDOWN_S: Final = 1.0
"""How long requests under way may take once the server stops."""
REFRESH_S: Final = 5
EARLY_LOOKS: Final = 10
EARLY_LOOK_S: Final = 0.1
"""A consumer can have a message a moment before we have its schema; "not found" would end most consumers."""

_ADDRESS: Final = re.compile(r"(\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")
_PORT_MAX: Final = 65535

_OPEN_METRICS: Final = "application/openmetrics-text"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Role(StrEnum):
    """What ``/readyz`` is asked for: a process that does its part, or the one that owns the slot."""

    ANY = "any"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Health:
    """The process, as it sees itself. A string is the reason why not, None means yes."""

    status: Callable[[], Mapping[str, object]]
    live: Callable[[], str | None]
    ready: Callable[[Role], str | None]


class HttpServer:
    """One listening address."""

    def __init__(
        self, listen: str, health: Health, metrics: CollectorRegistry, registry: SchemaStore | None = None
    ) -> None:
        self._listen = listen
        self._address = _parse_address(listen)
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
        )

    @property
    def port(self) -> int:
        """The port it listens on, once started: of interest when ``listen`` said 0."""
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Listen; ConfigError when the address cannot be had."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, *self._address).start()
        except OSError as error:
            await self._runner.cleanup()
            reason = error.strerror or error
            raise ConfigError(f"Cannot listen on {self._listen}: {reason}. Change http.listen.") from error

    async def stop(self) -> None:
        """Let go of the address; requests under way are answered, within ``SHUTDOWN_S``."""
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=BODY_MAX_BYTES, middlewares=[_errors_as_json])
        application.router.add_get("/livez", self._livez)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics_page)
        application.router.add_get("/status", self._status)
        application.router.add_get("/", self._root)
        if self._registry is not None:
            application.router.add_route("*", "/{path:.*}", self._registry_api)
        return application

    async def _livez(self, _: web.Request) -> web.Response:
        return _verdict(self._health.live())

    async def _readyz(self, request: web.Request) -> web.Response:
        try:
            role = Role(request.query.get("role", Role.ANY))
        except ValueError:
            raise web.HTTPBadRequest(reason=f"role is one of {', '.join(Role)}") from None
        return _verdict(self._health.ready(role))

    async def _metrics_page(self, request: web.Request) -> web.Response:
        # the parameters of an accepted type are of no use here, and the library stumbles over odd ones
        open_metrics = _OPEN_METRICS in request.headers.get("Accept", "")
        encode, content_type = choose_encoder(_OPEN_METRICS if open_metrics else "")
        return web.Response(body=encode(self._metrics), headers={"Content-Type": content_type})

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(self._health.status())

    async def _root(self, request: web.Request) -> web.StreamResponse:
        """Show people the status; clients that want JSON get what Confluent's registry says here."""
        accept = request.headers.get("Accept", "")
        if self._registry is not None and "json" in accept and "text/html" not in accept:
            return await self._registry_api(request)
        return web.Response(text=status_page(self._health), content_type="text/html", headers=_PAGE_HEADERS)

    async def _registry_api(self, request: web.Request) -> web.StreamResponse:
        assert self._registry is not None, "routed only with a registry"
        body = await request.read()
        for _ in range(EARLY_LOOKS):
            found = api.answer(self._registry, request.method, request.rel_url.raw_path, request.query, body)
            if not found.early:
                break
            await asyncio.sleep(EARLY_LOOK_S)
        headers = {"Allow": ", ".join(found.allow)} if found.allow else {}
        return web.Response(
            status=found.status,
            body=json.dumps(found.body).encode(),
            content_type=api.CONTENT_TYPE,
            headers=headers,
        )


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer errors as Confluent's API does, whichever part of the server found them."""
    try:
        return await handler(request)
    except web.HTTPClientError as error:
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        body = {"error_code": error.status, "message": f"HTTP {error.status} {error.reason}"}
        return web.json_response(body, status=error.status, headers=allow)


def _verdict(reason: str | None) -> web.Response:
    if reason is None:
        return web.Response(text="ok\n")
    return web.Response(text=f"{reason}\n", status=503)


def _parse_address(listen: str) -> tuple[str | None, int]:
    """Split ``host:port``; IPv6 hosts in brackets, no host means every address."""
    match = _ADDRESS.fullmatch(listen)
    if match is None or int(match["port"]) > _PORT_MAX:
        raise ConfigError(f"http.listen: {listen!r} is not an address (expected host:port, like 127.0.0.1:8080).")
    return match["ipv6"] or match["host"] or None, int(match["port"])


_PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse }
th, td { padding: .15rem 1.2rem .15rem 0; text-align: left; vertical-align: top }
th { font-weight: 500; opacity: .7 }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
.yes { color: #2a8a3e } .no { color: #c0392b }
"""


def status_page(health: Health) -> str:
    """Return ``/status`` as a page for people; it needs nothing from elsewhere and renews itself."""
    verdicts = (
        ("live", health.live()),
        ("ready", health.ready(Role.ANY)),
        ("active", health.ready(Role.ACTIVE)),
    )
    rows = "".join(f"<tr><th>{name}</th>{_verdict_cell(reason)}</tr>" for name, reason in verdicts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}"><title>pgsluice</title>'
        f"<style>{_STYLE}</style></head>"
        f"<body><h1>pgsluice {escape(__version__)}</h1><table>{rows}</table><hr>{_cell(health.status())}"
        '<hr><p><a href="status">JSON</a> · <a href="metrics">metrics</a></p></body></html>'
    )


def _verdict_cell(reason: str | None) -> str:
    if reason is None:
        return '<td class="yes">yes</td>'
    return f'<td class="no">no: {escape(reason)}</td>'


def _cell(value: object) -> str:
    """Return any part of the status as HTML: objects are tables, lists of objects have a row for each."""
    if isinstance(value, Mapping):
        rows = (f"<tr><th>{escape(str(name))}</th><td>{_cell(part)}</td></tr>" for name, part in value.items())
        return f"<table>{''.join(rows)}</table>"
    if isinstance(value, list | tuple):
        return _list(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else escape(str(value))


def _list(values: Sequence[object]) -> str:
    if not values:
        return "-"
    if not all(isinstance(value, Mapping) for value in values):
        return "<br>".join(_cell(value) for value in values)
    objects = [value for value in values if isinstance(value, Mapping)]
    names = list(dict.fromkeys(name for value in objects for name in value))
    head = "".join(f"<th>{escape(str(name))}</th>" for name in names)
    rows = ("".join(f"<td>{_cell(value.get(name))}</td>" for name in names) for value in objects)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
