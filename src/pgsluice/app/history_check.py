"""The part of ``pgsluice check`` that finds out whether ``run`` could continue from the last checkpoint.

This module gathers the same facts as ``run``, and calls the same function to decide.

``tests/integration/test_cli.py`` covers this module.
"""

import asyncio
from functools import partial
from typing import Final

from pgsluice.app.wiring import pipeline_options, registry_options, source_options
from pgsluice.avro.records import record_reader
from pgsluice.avro.schema import cut_schema
from pgsluice.config import Settings
from pgsluice.errors import HistoryError, PgsluiceError, RetryableError, SlotInUse
from pgsluice.finding import Finding, Verdict
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.past import PastInKafka, read_past
from pgsluice.lsn import format_lsn
from pgsluice.pipeline.startup import Past, examine
from pgsluice.postgres.source import PostgresSource
from pgsluice.registry.follower import SCHEMAS, SchemaFollower
from pgsluice.registry.store import SchemaStore

_NAME: Final = "history"


async def check_history(settings: Settings, client: ClientOptions) -> list[Finding]:
    """Check whether slot, server, checkpoints and topics match. If PostgreSQL cannot be used, return no findings."""
    try:
        source = await PostgresSource.open(source_options(settings))
    except PgsluiceError:
        return []  # the findings on PostgreSQL have the reason
    try:
        past = await _read_past(settings, client)
        if past.changes is not None and settings.kafka.topics.changed == "stop":
            raise HistoryError(past.changes)
        is_atomic = settings.delivery.mode == "exactly_once"
        known = Past(past.checkpoints, past.recorded, is_atomic)
        checkpoint = await examine(pipeline_options(settings, adopt_slot=False), source, known)
    except SlotInUse:
        return [Finding(_NAME, Verdict.OK, "a process is streaming already; another process would be its standby")]
    except RetryableError as error:
        return [Finding(_NAME, Verdict.WARN, str(error), "run would wait until this is solved.", error.exit_code)]
    except PgsluiceError as error:
        remedy = "See docs/runbook.md." if isinstance(error, HistoryError) else ""
        return [Finding(_NAME, Verdict.FAIL, str(error), remedy, error.exit_code)]
    finally:
        await source.close()
    if checkpoint is None:
        return [Finding(_NAME, Verdict.OK, "nothing was delivered yet; run would begin with a new slot")]
    detail = f"run would continue at {format_lsn(checkpoint.end_lsn)}, after cut {checkpoint.cut}"
    return [Finding(_NAME, Verdict.OK, f"{detail} of epoch {checkpoint.epoch}")]


async def _read_past(settings: Settings, client: ClientOptions) -> PastInKafka:
    prefix, is_atomic = settings.kafka.topic_prefix, settings.delivery.mode == "exactly_once"
    follower = SchemaFollower(registry_options(settings, client.errors), [prefix + SCHEMAS], SchemaStore())
    try:
        await follower.start()
        subject = f"{prefix}.transactions-value"

        def text_of(identifier: int) -> str | None:
            return next((one.schema for one in follower.store.uses(identifier) if one.subject == subject), None)

        return await asyncio.to_thread(
            partial(
                read_past,
                client,
                f"{prefix}.checkpoint",
                f"{prefix}.transactions",
                settings.name,
                record_reader(cut_schema(prefix), text_of),
                is_atomic=is_atomic,
            )
        )
    finally:
        await follower.close()
