"""``pgsluice check``: checks that PostgreSQL, Kafka and the registry have what ``run`` needs, and changes nothing.

``tests/integration/test_cli.py`` covers this module.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from pgsluice.app.history_check import check_history
from pgsluice.app.wiring import (
    client_installed,
    client_options,
    connection_options,
    primary_options,
    rest_options,
    sink_options,
    source_options,
    tables_of,
    type_options,
)
from pgsluice.avro.schema import cut_schema
from pgsluice.config import Settings, certificates
from pgsluice.errors import PgsluiceError, TableRefused
from pgsluice.finding import Finding, Verdict
from pgsluice.identity import Identity, one_identity_fits
from pgsluice.kafka import checks as kafka_checks
from pgsluice.kafka.options import SinkOptions
from pgsluice.kafka.topic_spec import TopicSpec
from pgsluice.pipeline.encoders import refusals
from pgsluice.pipeline.keys import differing_identities
from pgsluice.postgres import checks as postgres_checks
from pgsluice.postgres import snapshot_checks
from pgsluice.postgres.catalog import Catalog
from pgsluice.printable import quoted
from pgsluice.registry.subjects import subject_name
from pgsluice.spool import directory
from pgsluice.spool.disk import Disk
from pgsluice.tables import TablePolicy, Tables

REFUSED_SHOWN: Final = 20
"""The maximum number of findings about tables that cannot be published. One more finding says how many are left out."""


def check(settings: Settings) -> list[Finding]:
    """Examine everything that ``run`` uses, and return the findings."""
    return asyncio.run(_check(settings))


async def _check(settings: Settings) -> list[Finding]:
    source = source_options(settings)
    client = client_options(settings, "check")
    postgres, kafka, registry = await asyncio.gather(
        postgres_checks.check(
            source.connection,
            source.slot,
            source.publications,
            source.stream,
            create_slot=settings.postgres.create_slot,
        ),
        asyncio.to_thread(
            kafka_checks.check,
            sink_options(settings, client),
            has_schemas=settings.schema_registry.type == "builtin",
        ),
        _check_registry(settings),
    )
    tables = await _check_tables(settings, sink_options(settings, client))
    snapshots = await _check_snapshots(settings)
    # If a server or the topics cannot be read, the history cannot be checked. The other findings have the reason.
    failed = [one.name for one in (*postgres, *kafka) if one.verdict is Verdict.FAIL]
    is_readable = not any(name.endswith("reachable") or name.startswith("topic ") for name in failed)
    history = await check_history(settings, client) if is_readable else []
    spill_dir = await directory.check(settings.buffer.spill_dir, Disk())
    expiring = await asyncio.to_thread(certificates.check, settings)
    return [*postgres, *tables, *snapshots, *kafka, *registry, *history, *expiring, spill_dir]


async def _check_tables(settings: Settings, sink: SinkOptions) -> list[Finding]:
    """Check whether these settings allow the tables of the publications to be delivered."""
    tables = tables_of(settings)
    try:
        async with Catalog(connection_options(settings)) as catalog:
            published = await catalog.published_names(settings.postgres.publications)
            asking = partial(catalog.published_relations, settings.postgres.publications), catalog.describe_types
            refused = await refusals(tables, type_options(settings), published, *asking)
            refused += _without_one_identity(await catalog.partition_identities(settings.postgres.publications), tables)
    except PgsluiceError:
        return []  # the findings on PostgreSQL have the reason
    names = [(table.namespace, table.name) for table in published]
    specs = await asyncio.to_thread(_topic_specs, tables, names)
    sentences = [*map(str, refused), *map(str, tables.collisions(names))]
    sentences += await asyncio.to_thread(kafka_checks.refused_tables, sink, specs)
    if not sentences:
        return [Finding("tables", Verdict.OK, f"all {len(specs)} tables can be published with these settings")]
    return _refused_tables(sentences, stops=settings.tables.refused == "stop")


def _without_one_identity(found: Sequence[tuple[Identity, Identity]], tables: Tables) -> list[TableRefused]:
    """Return an error for each partitioned table that is refused because its partitions' replica identities differ."""
    roots: dict[tuple[str, str], tuple[Identity, list[frozenset[str]]]] = {}
    for root, partition in found:
        _, of_partitions = roots.setdefault((root.schema, root.table), (root, []))
        of_partitions += [partition.key] if partition.key else []
    return [
        differing_identities(quoted(*name))
        for name, (root, keys) in roots.items()
        if not one_identity_fits(root.key, keys, root.unique) and _is_published(tables, *name)
    ]


def _is_published(tables: Tables, schema: str, table: str) -> bool:
    with suppress(TableRefused):  # a refused table has its own finding
        return tables.policy(schema, table) is not None
    return False


async def _check_snapshots(settings: Settings) -> list[Finding]:
    """Check whether the existing rows of the published tables can be read.

    If the settings exclude loads, check nothing.
    """
    if settings.snapshot.mode == "never":
        return []
    tables = tables_of(settings)

    def policy_of(schema: str, table: str) -> TablePolicy | None:
        with suppress(TableRefused):
            return tables.policy(schema, table)
        return None

    stream, primary = connection_options(settings), primary_options(settings)
    try:
        if primary is not None and (found := await snapshot_checks.check_primary(stream, primary)):
            return found
        publications = settings.postgres.publications
        async with Catalog(primary or stream) as catalog:
            found = await snapshot_checks.check(
                catalog,
                publications,
                policy_of,
                without_key_max=settings.snapshot.without_key_max.bytes,
                rows_per_s=settings.snapshot.max_rows_per_second,
            )
        return [*found, *await snapshot_checks.check_conditions(primary or stream, publications, policy_of)]
    except PgsluiceError:
        return []  # the findings on PostgreSQL have the reason


def _topic_specs(tables: Tables, names: Sequence[tuple[str, str]]) -> list[TopicSpec]:
    """Return the topics of the tables that are published.

    Whether a table has a key is not checked here, because only the table's first row in the stream shows that.
    """
    specs = []
    for schema, table in names:
        with suppress(TableRefused):
            if (policy := tables.policy(schema, table)) is not None:
                specs.append(TopicSpec.of(policy, keyed=True))
    return specs


def _refused_tables(sentences: Sequence[str], *, stops: bool) -> list[Finding]:
    verdict = Verdict.FAIL if stops else Verdict.WARN
    remedy = (
        "pgsluice stops at the first change of such a table (tables.refused)."
        if stops
        else "Such a table goes into quarantine: a dead letter replaces each of its changes (tables.refused)."
    )
    found = [Finding("tables", verdict, sentence, remedy) for sentence in sentences[:REFUSED_SHOWN]]
    if more := len(sentences) - len(found):
        found.append(Finding("tables", verdict, f"{more} more tables cannot be published with these settings", remedy))
    return found


async def _check_registry(settings: Settings) -> list[Finding]:
    if settings.schema_registry.type == "builtin":
        return []  # the registry is a topic, which the findings on Kafka cover
    with client_installed():
        from pgsluice.registry import checks  # noqa: PLC0415 - as in wiring.schema_registry
    chosen, prefix = settings.schema_registry, settings.kafka.topic_prefix
    schema = cut_schema(prefix)
    subject = subject_name(chosen.subject_name_strategy, f"{prefix}.transactions-value", schema)
    return await checks.check(rest_options(settings), chosen.on_incompatible, subject, schema)
