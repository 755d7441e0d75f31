"""``pgsluice registry``: serves the schemas of topic prefixes, or copies them to a registry server. No pipeline runs.

``tests/integration/test_registry_server.py`` covers this module.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog

from pgsluice import __version__
from pgsluice.app.http.health import Health
from pgsluice.app.http.server import HttpServer
from pgsluice.app.tasks import first_of, stop_on_signals
from pgsluice.app.wiring import access_files, client_installed, registry_options, rest_options
from pgsluice.config import Settings, secret_command
from pgsluice.errors import ConfigError, SinkUnavailable
from pgsluice.kafka.client import ClientErrors
from pgsluice.metrics import registry_metrics
from pgsluice.registry.follower import SCHEMAS, SchemaFollower
from pgsluice.registry.store import SchemaStore

if TYPE_CHECKING:
    from pgsluice.registry.export import Exported

log = structlog.get_logger(__name__)

_PAUSE_S: Final = 1.0
"""The pause after the schemas could not be read."""
_RENEW_S: Final = 5.0
_RENEW_MAX_S: Final = 60.0
"""The served registry checks at intervals of _RENEW_S whether it needs new Kafka clients. If it needs them again and
again, the interval grows to _RENEW_MAX_S."""


def serve_registry(settings: Settings, prefixes: Sequence[str]) -> None:
    """Serve the schemas of one or more prefixes until SIGTERM or SIGINT. Several processes can do this at once."""
    asyncio.run(_serve_registry(settings, prefixes or [settings.kafka.topic_prefix]))


def export_registry(settings: Settings, prefixes: Sequence[str]) -> "dict[str, Exported]":
    """Copy the schemas of one or more prefixes, with their ids, to a registry server. Return the result by subject."""
    return asyncio.run(_export_registry(settings, prefixes))


async def _serve_registry(settings: Settings, prefixes: Sequence[str]) -> None:
    store, stop, caught_up = SchemaStore(), asyncio.Event(), asyncio.Event()
    options = registry_options(settings)
    follower = SchemaFollower(options, [prefix + SCHEMAS for prefix in prefixes], store)
    health = Health(
        lambda: {"version": __version__, "prefixes": list(prefixes), "subjects": len(store.subjects())},
        lambda: None,
        lambda _role: None if caught_up.is_set() else "not all schemas have been read yet",
    )
    listening = settings.http
    metrics = registry_metrics(lambda: len(store.subjects()))
    http = HttpServer(str(listening.listen), health, metrics, store, listening.allowed_hosts, access_files(settings))
    await http.start()
    log.info("listening", address=str(settings.http.listen), version=__version__)
    try:
        async with stop_on_signals(stop.set):
            await first_of(_follow(follower, caught_up), _keep_current(follower), stop.wait())
    finally:
        secret_command.end_all()
        await follower.close()
        await http.stop()


async def _export_registry(settings: Settings, prefixes: Sequence[str]) -> "dict[str, Exported]":
    rest = rest_options(settings)
    with client_installed():
        from pgsluice.registry.export import export  # noqa: PLC0415 - as in wiring.schema_registry
    follower = SchemaFollower(
        registry_options(settings, ClientErrors()), [prefix + SCHEMAS for prefix in prefixes], SchemaStore()
    )
    try:
        await follower.start()
        if missing := await follower.missing():
            raise ConfigError(f"{missing} Correct --prefix, or kafka.topic_prefix; nothing was exported.")
    finally:
        await follower.close()
    return await export(follower.store, await asyncio.to_thread(rest), settings.schema_registry.subject_name_strategy)


async def _follow(follower: SchemaFollower, caught_up: asyncio.Event) -> None:
    while not caught_up.is_set():
        try:
            await follower.start()
            caught_up.set()
            if missing := await follower.missing():
                log.warning("waiting for schemas", reason=missing)
            if ambiguous := follower.store.ambiguous():
                log.warning("prefixes share ids: clients that do not name the subject are refused", ids=ambiguous[:10])
        except SinkUnavailable as error:
            log.warning("waiting for Kafka", reason=str(error))
            await asyncio.sleep(_PAUSE_S)
    await follower.follow()


async def _keep_current(follower: SchemaFollower) -> None:
    """Replace the Kafka clients whenever they are outdated.

    If the clients are outdated again and again, for example while Kafka is away, the pauses become longer.
    """
    pause_s, renewed_at = _RENEW_S, float("-inf")
    while True:
        await asyncio.sleep(pause_s)
        if not follower.is_outdated:
            if time.monotonic() - renewed_at > 2 * _RENEW_MAX_S:
                pause_s = _RENEW_S
            continue
        renewed_at = time.monotonic()
        try:
            await follower.renew()
            log.info("Kafka clients were replaced")
        except (ConfigError, SinkUnavailable) as error:  # for example if only one of two files is new
            log.warning("Kafka clients cannot be replaced now", reason=str(error))
        pause_s = min(2 * pause_s, _RENEW_MAX_S)
