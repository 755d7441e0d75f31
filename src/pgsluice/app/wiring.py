"""Turns settings into the options of all other packages. This module makes no connections."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from pgsluice.app.http.access import AccessFiles
from pgsluice.avro.types import TypeOptions
from pgsluice.config import Settings
from pgsluice.errors import ConfigError
from pgsluice.kafka.client import ClientErrors, ClientOptions
from pgsluice.kafka.commands import CommandClient, CommandTopics
from pgsluice.kafka.msk import token_callback
from pgsluice.kafka.options import SinkOptions
from pgsluice.kafka.producer import ProducerOptions
from pgsluice.kafka.topic_spec import TopicSpec
from pgsluice.metrics import Metrics
from pgsluice.pipeline.options import PipelineOptions
from pgsluice.pipeline.outbox import Limits
from pgsluice.pipeline.reading import LoadOptions
from pgsluice.pipeline.session import SessionOptions
from pgsluice.postgres.options import ConnectionOptions, StreamOptions
from pgsluice.postgres.source import SourceOptions
from pgsluice.registry.builtin import BuiltinRegistry
from pgsluice.registry.client import RegistryOptions
from pgsluice.tables import TableRule, Tables

if TYPE_CHECKING:
    from pgsluice.registry.confluent import ConfluentRegistry
    from pgsluice.registry.rest import RestOptions

log = structlog.get_logger(__name__)

SELECTION_DIGITS: Final = 16
"""The number of hexadecimal digits that :func:`_selection` keeps, which is enough to tell all configurations apart."""

QUEUE_FACTOR: Final = 2
"""librdkafka's queue may hold QUEUE_FACTOR times delivery.inflight_max. A record must fit into the queue."""


def access_files(settings: Settings) -> AccessFiles:
    """Return the files of the HTTP server: certificate, key and token."""
    http = settings.http
    return AccessFiles(http.tls_cert_file, http.tls_key_file, http.token_file)


def client_options(settings: Settings, purpose: str = "", errors: ClientErrors | None = None) -> ClientOptions:
    """Return the options of Kafka clients. Their client id consists of the pipeline's name and ``purpose``."""
    kafka = settings.kafka
    changing = kafka.password_file is not None or kafka.password_command is not None
    if errors is None:
        errors = ClientErrors(credentials_change=changing)
    callback = None if kafka.aws_msk_region is None else token_callback(kafka.aws_msk_region, errors)

    def credentials() -> dict[str, Any]:
        password = kafka.password()
        found = {"sasl.password": password, "oauth_cb": callback}
        return {name: value for name, value in found.items() if value is not None}

    name = f"pgsluice-{settings.name}-{purpose}".rstrip("-")
    return ClientOptions(kafka.librdkafka_properties(), name, errors, credentials)


def command_client(settings: Settings) -> CommandClient:
    """Return a client that sends commands to the running pipeline and reads the answers. It does not connect yet."""
    prefix = settings.kafka.topic_prefix
    topics = CommandTopics(
        settings.name,
        f"{prefix}.commands",
        f"{prefix}.checkpoint",
        f"{prefix}.snapshots",
        is_atomic=settings.delivery.mode == "exactly_once",
    )
    return CommandClient(client_options(settings, "command"), topics)


def connection_options(settings: Settings) -> ConnectionOptions:
    """Return the connection options of the server that pgsluice streams from."""
    postgres = settings.postgres
    return ConnectionOptions(
        postgres.libpq_parameters(),
        application_name=f"pgsluice-{settings.name}",
        wal_sender_timeout_ms=postgres.wal_sender_timeout.milliseconds,
        status_interval_s=postgres.status_interval.seconds,
        password=postgres.secret,
    )


def primary_options(settings: Settings) -> ConnectionOptions | None:
    """Return the connection options of ``snapshot.primary``, from which rows are read.

    Return None if it is not set. Rows are then read from the server of the stream.
    """
    parameters = settings.primary_parameters()
    if parameters is None:
        return None
    options = replace(connection_options(settings), parameters=parameters)
    return replace(options, password=lambda: None) if "password" in parameters else options


def type_options(settings: Settings) -> TypeOptions:
    """Return the Avro types that the settings choose for types of PostgreSQL."""
    tables = settings.tables
    return TypeOptions(tables.numeric.decimal or "string", tables.time_range, binary=settings.postgres.binary)


def source_options(settings: Settings) -> SourceOptions:
    """Return the options of the source."""
    postgres = settings.postgres
    stream = StreamOptions(
        streaming=postgres.streaming,
        two_phase=postgres.two_phase,
        binary=postgres.binary,
        messages=postgres.messages,
        origin=postgres.origin,
    )
    if postgres.messages and postgres.streaming != "off":
        log.info(
            "streaming is off, because messages are published: streams would include messages of rolled-back savepoints"
        )
    return SourceOptions(
        connection_options(settings),
        settings.slot_name,
        postgres.publications,
        stream,
        postgres.failover,
        primary_options(settings),
    )


def registry_options(settings: Settings, errors: ClientErrors | None = None) -> RegistryOptions:
    """Return the options of the topic of schemas: how to reach it, and how to create it if it does not exist."""
    return RegistryOptions(
        client_options(settings, "schemas", errors),
        replication_factor=settings.kafka.topics.replication_factor,
        topic_config=_service_topic_config(settings),
    )


def schema_registry(
    settings: Settings, builtin: BuiltinRegistry, metrics: Metrics
) -> "BuiltinRegistry | ConfluentRegistry":
    """Return the registry that assigns ids to schemas: the builtin registry, or a registry server.

    With a registry server, the builtin registry is used as well. It records the ids that the server assigns.
    """
    chosen = settings.schema_registry
    if chosen.type == "builtin":
        return builtin
    with client_installed():
        from pgsluice.registry.confluent import ConfluentOptions, ConfluentRegistry  # noqa: PLC0415 - takes 0.6 s, 15 MB
    rest = rest_options(settings, metrics.count_request)
    options = ConfluentOptions(rest, chosen.subject_name_strategy, chosen.on_incompatible)
    return ConfluentRegistry(options, builtin)


def rest_options(
    settings: Settings, answered: Callable[[str, float], None] = lambda _result, _seconds: None
) -> "Callable[[], RestOptions]":
    """Return a function that returns the connection options of the registry server, with the current password."""
    with client_installed():
        from pgsluice.registry.rest import RestOptions  # noqa: PLC0415 - as in schema_registry
    chosen = settings.schema_registry
    if chosen.url is None:
        raise ConfigError("schema_registry.url is not set: name the addresses of the schema registry.")
    constant = RestOptions(
        chosen.url,
        username=chosen.username,
        ca_file=chosen.ca_file,
        cert_file=chosen.cert_file,
        key_file=chosen.key_file,
        timeout_s=chosen.timeout.seconds,
        answered=answered,
    )
    return lambda: replace(constant, password=chosen.secret("password"), token=chosen.secret("token"))


@contextmanager
def client_installed() -> Iterator[None]:
    """Raise ConfigError if the block imports a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"A schema registry server needs Python's module {error.name}: pip install 'pgsluice[confluent]'."
        ) from None


def _service_topic_config(settings: Settings) -> dict[str, str]:
    """Return the durability settings in kafka.topics.config, which apply to service topics as well."""
    name = "min.insync.replicas"
    config = settings.kafka.topics.config
    return {name: config[name]} if name in config else {}


def sink_options(settings: Settings, client: ClientOptions) -> SinkOptions:
    """Return the options of the sink."""
    prefix, factor = settings.kafka.topic_prefix, settings.kafka.topics.replication_factor
    common = _service_topic_config(settings)
    return SinkOptions(
        ProducerOptions(
            client,
            f"pgsluice-{prefix}-{settings.name}",
            QUEUE_FACTOR * settings.delivery.inflight_max.bytes,
            settings.delivery.transaction_timeout.seconds,
        ),
        transactions_topic=TopicSpec(f"{prefix}.transactions", 1, factor, {**common, "cleanup.policy": "delete"}),
        checkpoint_topic=TopicSpec(f"{prefix}.checkpoint", 1, factor, {**common, "cleanup.policy": "compact"}),
        pipeline=settings.name,
        mode=settings.delivery.mode,
        dead_letters_topic=(
            TopicSpec(f"{prefix}.dead_letters", 1, factor, common)
            if settings.delivery.poison == "dead_letter"
            else None
        ),
        snapshots_topic=TopicSpec(f"{prefix}.snapshots", 1, factor, {**common, "cleanup.policy": "compact"}),
        commands_topic=TopicSpec(f"{prefix}.commands", 1, factor, {**common, "cleanup.policy": "delete"}),
        accept_changed_topics=settings.kafka.topics.changed == "accept",
        topics_max=settings.kafka.topics.max,
        reserved_topics=frozenset(tables_of(settings).reserved_topics),
    )


def pipeline_options(settings: Settings, *, adopt_slot: bool) -> PipelineOptions:
    """Return the options of the pipeline."""
    delivery = settings.delivery
    limits = Limits(
        delivery.cut_interval.seconds,
        delivery.cut_bytes.bytes,
        delivery.inflight_max.bytes,
        delivery.heartbeat.seconds,
    )
    return PipelineOptions(
        name=settings.name,
        slot=settings.slot_name,
        tables=tables_of(settings),
        types=type_options(settings),
        session=SessionOptions(limits, settings.kafka.timestamp == "commit", _load_options(settings)),
        create_slot=settings.postgres.create_slot,
        adopt_slot=adopt_slot,
        drain_timeout_s=settings.shutdown.drain_timeout.seconds,
        selection=_selection(settings),
        dead_letters=delivery.poison == "dead_letter",
        quarantine=settings.tables.refused == "quarantine",
    )


def _load_options(settings: Settings) -> LoadOptions:
    """Return how tables are loaded."""
    snapshot = settings.snapshot
    return LoadOptions(
        snapshot.chunk_rows,
        snapshot.chunk_bytes.bytes,
        snapshot.without_key_max.bytes,
        max_rows_per_s=snapshot.max_rows_per_second,
        replaces=settings.postgres.origin == "any",
        in_each_epoch=snapshot.mode == "when_needed",
        is_initial=snapshot.mode != "never",
        assumes="mode" not in snapshot.model_fields_set,
        is_altered=snapshot.on_alter == "load",
    )


def _selection(settings: Settings) -> str:
    """Return a digest of the settings that decide which changes are delivered. Every checkpoint contains it."""
    postgres, tables = settings.postgres, settings.tables
    selecting = [
        sorted(postgres.publications),
        postgres.messages,
        postgres.origin,
        list(tables.include),
        list(tables.exclude),
        tables.truncate,
        [(rule.match, rule.truncate) for rule in tables.rules],
    ]
    return hashlib.sha256(json.dumps(selecting).encode()).hexdigest()[:SELECTION_DIGITS]


def tables_of(settings: Settings) -> Tables:
    """Return which tables are published, and how."""
    topics, tables = settings.kafka.topics, settings.tables
    return Tables(
        prefix=settings.kafka.topic_prefix,
        topic=topics.name,
        partitions=topics.partitions,
        replication_factor=topics.replication_factor,
        config=topics.config,
        include=tables.include,
        exclude=tables.exclude,
        tombstones=tables.tombstones,
        truncate=tables.truncate == "emit",
        rules=[
            TableRule(
                match=rule.match,
                keys=None if rule.keys is None else tuple(rule.keys),
                topic=rule.topic,
                partitions=rule.partitions,
                replication_factor=rule.replication_factor,
                config=rule.config,
                tombstones=rule.tombstones,
                truncate=None if rule.truncate is None else rule.truncate == "emit",
                is_loaded=rule.snapshot is None,
                where=rule.where or "",
                types=rule.types,
            )
            for rule in tables.rules
        ],
    )
