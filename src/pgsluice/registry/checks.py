"""The checks of ``pgsluice check`` for a registry server: connection, rights, mode and compatibility.

The checks change nothing at the server.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/schema-evolution.html#compatibility-types
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

from pgsluice.avro.wire import Schema, normalise
from pgsluice.errors import PgsluiceError
from pgsluice.finding import Finding, Verdict
from pgsluice.registry.rest import RestClient, RestOptions

_TAKES_SCHEMAS: Final = (None, "READWRITE")

_REFUSED: Final[Mapping[str, str]] = {
    "BACKWARD": "a key that gains a column or is replaced by another key",
    "FORWARD": "a key that loses a column, and a column that becomes wider (int to bigint)",
    "FULL": "a key that gains or loses a column, and a column that becomes wider (int to bigint)",
}
"""The effects of ALTER TABLE that each compatibility level refuses. The _TRANSITIVE levels refuse the same effects."""


async def check(
    options: Callable[[], RestOptions],
    on_incompatible: Literal["stop", "force"],
    subject: str,
    schema: Schema,
) -> list[Finding]:
    """Return the findings, good and bad. ``subject`` and ``schema`` are an example of what ``run`` registers."""
    try:
        async with await RestClient.open(await asyncio.to_thread(options)) as client:
            return [
                await _guarded("schema registry reachable", lambda: _reachable(client, subject, schema)),
                await _guarded("schema registry mode", lambda: _mode(client)),
                await _guarded("schema registry compatibility", lambda: _level(client, on_incompatible)),
            ]
    except PgsluiceError as error:
        return [
            Finding(
                "schema registry reachable", Verdict.FAIL, str(error), "Correct [schema_registry].", error.exit_code
            )
        ]


async def _guarded(name: str, look: Callable[[], Awaitable[Finding]]) -> Finding:
    try:
        return await look()
    except PgsluiceError as error:
        return Finding(name, Verdict.FAIL, str(error), "Solve this, or correct [schema_registry].", error.exit_code)


async def _reachable(client: RestClient, subject: str, schema: Schema) -> Finding:
    known = await client.look_up(subject, normalise(schema))
    detail = "answers; nothing is registered yet" if known is None else f"answers; it knows our schemas (id {known})"
    return Finding("schema registry reachable", Verdict.OK, detail)


async def _mode(client: RestClient) -> Finding:
    mode = await client.mode()
    if mode in _TAKES_SCHEMAS:
        return Finding("schema registry mode", Verdict.OK, mode or "the server has no modes")
    remedy = "Set the mode to READWRITE (PUT /mode), or register each schema yourself before its first row arrives."
    return Finding("schema registry mode", Verdict.FAIL, f"{mode}: it accepts no new schemas", remedy)


async def _level(client: RestClient, on_incompatible: Literal["stop", "force"]) -> Finding:
    name, level = "schema registry compatibility", await client.level() or "NONE"
    refused = _REFUSED.get(level.removesuffix("_TRANSITIVE"))
    if refused is None:
        return Finding(name, Verdict.OK, level)
    if on_incompatible == "force":
        return Finding(name, Verdict.OK, f"{level}; {refused} is registered by force")
    remedy = 'To avoid that, set on_incompatible = "force", or set the level of these subjects to NONE.'
    verdict = Verdict.OK if level.startswith("BACKWARD") else Verdict.WARN
    return Finding(name, verdict, f"{level}; {refused} will stop pgsluice", remedy)
