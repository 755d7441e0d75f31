"""The settings: every key with its type, default, limits and meaning. The documentation is generated from here.

The daemon maps settings to the options of the shell packages. ``sources`` reads the values. If two keys have to agree,
this is checked at the one that comes later here.

https://docs.pydantic.dev/latest/concepts/pydantic_settings/
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from pgsluice.commands import WHERE_MAX
from pgsluice.config import libpq
from pgsluice.config.naming import (
    SLOT_PREFIX,
    check_address,
    missing_placeholders,
)
from pgsluice.config.problems import KeyProblems, Path
from pgsluice.config.units import Duration, ListenAddress, NumericAs, Size, Within
from pgsluice.config.values import (
    COMPRESSION,
    ClientProperties,
    ColumnTypes,
    Count,
    Flag,
    Glob,
    HostName,
    Names,
    OnTruncate,
    Parameters,
    PipelineName,
    Port,
    ReplicationFactor,
    Secret,
    SlotName,
    Template,
    Text,
    TopicConfig,
    TopicPrefix,
    no_uri,
    no_user,
    reveal,
)
from pgsluice.errors import ConfigError
from pgsluice.tables import SERVICE_TOPICS

_STATUS_INTERVALS_PER_TIMEOUT = 3
"""With three updates per timeout, one that is lost or late does not end the connection."""


class Section(BaseModel):
    """A table of the file. Unknown keys are errors, and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)


class Postgres(Section):
    """The server, the slot and the publications.

    A connection key that is not set is left to libpq: its PG* variables, password file and service
    file work as in every client.
    """

    dsn: Secret | None = Field(
        default=None,
        description="Connection string or URI of libpq. The keys below take precedence over its parts.",
        examples=["postgresql://pgsluice@db.example.com:5432/shop"],
    )
    host: Annotated[Text, AfterValidator(no_uri)] | None = Field(
        default=None,
        description="Host name, address, or directory of the Unix socket.",
        examples=["db.example.com"],
    )
    port: Port | None = Field(default=None, description="TCP port.", examples=[5432])
    dbname: Text | None = Field(
        default=None, description="Database. A slot belongs to one database.", examples=["shop"]
    )
    user: Text | None = Field(default=None, description="Role with the REPLICATION attribute.", examples=["pgsluice"])
    password: Secret | None = Field(
        default=None,
        description="Password. A secret file or the environment is a better place for it than this file.",
        examples=["secret"],
    )
    password_file: Text | None = Field(
        default=None,
        description="File whose first line is the password. It is read again for every connection.",
        examples=["/run/secrets/postgres-password"],
    )
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] | None = Field(
        default=None,
        description="Whether TLS is used, and what is verified of the server's certificate.",
        examples=["verify-full"],
    )
    sslrootcert: Text | None = Field(
        default=None,
        description='File of the certificate authorities that are trusted for the server\'s certificate, or "system".',
        examples=["/etc/pgsluice/ca.crt"],
    )
    sslcert: Text | None = Field(
        default=None, description="File of the client's certificate.", examples=["/etc/pgsluice/client.crt"]
    )
    sslkey: Text | None = Field(
        default=None, description="File of the client's private key.", examples=["/etc/pgsluice/client.key"]
    )
    parameters: Parameters = Field(
        default={},
        description="Any other connection parameter of libpq.",
        examples=[{"target_session_attrs": "read-write"}],
    )
    slot: SlotName | None = Field(
        default=None,
        description="Logical replication slot. If it is not set, the name is pgsluice_ and the pipeline's name.",
        examples=["pgsluice_shop"],
    )
    publications: Names = Field(default=["pgsluice"], description="Publications to follow. They have to exist.")
    create_slot: Flag = Field(default=True, description="Create the slot when it does not exist yet.")
    streaming: Literal["off", "on", "parallel"] = Field(
        default="on",
        description="Whether the server sends large transactions while they are in progress, if it can (on from "
        "PostgreSQL 14, parallel from 16).",
    )
    two_phase: Flag = Field(
        default=False,
        description="Receive prepared transactions at PREPARE TRANSACTION, and publish them at COMMIT PREPARED "
        "(from PostgreSQL 15). Once it is on, a slot keeps it on for ever.",
    )
    binary: Flag = Field(
        default=False,
        description="Receive values in binary format (from PostgreSQL 14). The events are the same, see events.md.",
    )
    messages: Flag = Field(
        default=False,
        description="Also publish messages of pg_logical_emit_message (from PostgreSQL 14). This switches streaming "
        "off.",
    )
    origin: Literal["any", "none"] = Field(
        default="any",
        description="Changes to publish: all (any), or only those that were made on this server (none, from "
        "PostgreSQL 16).",
    )
    failover: Flag = Field(
        default=False, description="Create a slot that survives a failover to a standby (from PostgreSQL 17)."
    )
    wal_sender_timeout: Annotated[Duration, Within("1s", "1h")] = Field(
        default=Duration.parse("15s"),
        description="Time after which the server drops the connection of a pgsluice that does not answer, and frees "
        "the slot for another one. pgsluice sets it for its session, from PostgreSQL 12 on.",
    )
    status_interval: Annotated[Duration, Within("100ms", "10s")] = Field(
        default=Duration.parse("5s"),
        description="Interval at which progress is reported to the server, at most a third of wal_sender_timeout.",
    )

    @field_validator("dsn")
    @classmethod
    def _check_dsn(cls, dsn: SecretStr | None) -> SecretStr | None:
        if dsn is not None:
            libpq.check_dsn(dsn.get_secret_value())
        return dsn

    @field_validator("origin")
    @classmethod
    def _check_origin(cls, origin: str, info: ValidationInfo) -> str:
        if origin == "none" and info.data.get("two_phase"):
            raise ValueError(
                'is "none" together with two_phase = true: PostgreSQL can then lose track of prepared transactions'
            )
        return origin

    @field_validator("password_file")
    @classmethod
    def _check_password_file(cls, password_file: str | None, info: ValidationInfo) -> str | None:
        if password_file is None:
            return None
        if info.data.get("password") is not None:
            raise ValueError("is set together with postgres.password: keep one of the two")
        libpq.read_password_file(password_file)
        return password_file

    @field_validator("status_interval")
    @classmethod
    def _check_status_interval(cls, interval: Duration, info: ValidationInfo) -> Duration:
        timeout = info.data.get("wal_sender_timeout")
        if timeout is None:
            return interval
        most = Duration(timeout.milliseconds // _STATUS_INTERVALS_PER_TIMEOUT)
        if interval > most:
            raise ValueError(
                f"is {interval}, more than a third of wal_sender_timeout ({timeout}): set it to {most} or less"
            )
        return interval

    def libpq_parameters(self) -> dict[str, str]:
        """Return the parameters for one connection. The password file is read; ConfigError if that fails."""
        parameters = libpq.parse_dsn(self.dsn.get_secret_value()) if self.dsn else {}
        own = {name: getattr(self, name) for name in libpq.OWN_KEYS if name != "password"}
        parameters |= {name: str(value) for name, value in own.items() if value is not None}
        if self.password is not None:
            parameters["password"] = self.password.get_secret_value()
        if self.password_file is not None:
            try:
                parameters["password"] = libpq.read_password_file(self.password_file)
            except ValueError as error:
                raise ConfigError(f"postgres.password_file: {error}") from None
        return parameters | reveal(self.parameters)


class Topics(Section):
    """How topics are named and created, unless a rule says otherwise."""

    name: Template = Field(
        default="{prefix}.{schema}.{table}",
        description="Name of a table's topic. Characters that Kafka does not allow are escaped as _xHHHH_.",
    )
    partitions: Count = Field(default=3, description="Partitions of a new topic.")
    replication_factor: ReplicationFactor = Field(
        default=-1, description="Replicas of a new topic. -1 means the broker's default."
    )
    config: TopicConfig = Field(
        default={},
        description="Topic configuration of a new topic, with Kafka's names.",
        examples=[{"min.insync.replicas": "2"}],
    )
    max: Count = Field(
        default=10_000,
        description="How many topics of tables there may be, so that people who may create tables cannot fill the "
        "cluster with partitions. A new table beyond this number gets no topic, and is handled as tables.refused says.",
    )
    changed: Literal["stop", "accept"] = Field(
        default="stop",
        description="What happens if somebody else deletes, re-creates or empties a topic, or changes its partitions: "
        "stop, or go on with the topic as it is.",
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if missing := missing_placeholders(name, "*.*"):
            raise ValueError(f"lacks {' and '.join(missing)}: every table needs a topic of its own")
        return name


class Kafka(Section):
    """The Kafka cluster."""

    bootstrap_servers: Annotated[Text, AfterValidator(no_user)] = Field(
        description="Brokers to connect to first, host:port, separated by commas.", examples=["127.0.0.1:9092"]
    )
    topic_prefix: TopicPrefix = Field(
        description="First part of every topic's name. Only one pipeline may use it.", examples=["shop"]
    )
    timestamp: Literal["produce", "commit"] = Field(
        default="produce",
        description="Timestamp of records: the time at which they were produced, or at which the change was "
        "committed. With commit, retention can delete a backlog as soon as it arrives, and brokers refuse records if "
        "the database server's clock is ahead.",
    )
    client: ClientProperties = Field(
        default={**COMPRESSION},
        description="Any property of librdkafka (security.protocol, sasl.*, ssl.*, linger.ms, ...), except those that "
        "exactly-once delivery depends on.",
        examples=[{"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}],
    )
    topics: Topics = Topics()

    def librdkafka_properties(self) -> dict[str, str]:
        """Return the properties of every client of the cluster."""
        return {"bootstrap.servers": self.bootstrap_servers, **reveal(self.client)}


class Delivery(Section):
    """Cuts: the Kafka transactions in which changes are delivered."""

    mode: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="exactly_once: every cut is a Kafka transaction. at_least_once: there are no transactions. After a "
        "crash, changes after the last checkpoint come again with the same epoch, lsn and seq.",
    )
    transaction_timeout: Annotated[Duration, Within("1s", "1d")] = Field(
        default=Duration.parse("15min"),
        description="The longest time that a Kafka transaction may last. If the brokers' transaction.max.timeout.ms "
        "(15 minutes by default) is smaller, it holds instead. In mode at_least_once: if Kafka accepts nothing for "
        "this time, the session ends, and the next one sends the records again.",
    )
    cut_interval: Annotated[Duration, Within("1ms", "1min")] = Field(
        default=Duration.parse("50ms"),
        description="How long a cut stays open while changes keep coming. It closes at once when they pause.",
    )
    cut_bytes: Annotated[Size, Within("1KiB", "64GiB")] = Field(
        default=Size.parse("8MiB"),
        description="Size from which on a cut is closed at the next commit.",
    )
    inflight_max: Annotated[Size, Within("64KiB", "1TiB")] = Field(
        default=Size.parse("32MiB"),
        description="Encoded changes that may be in memory until Kafka has them, at least cut_bytes.",
    )
    poison: Literal["stop", "dead_letter"] = Field(
        default="stop",
        description="What happens to a change that Kafka or Avro cannot take (a record that is too large, a key with a "
        "value that a key cannot hold): stop, or write a dead letter in its place and go on.",
    )
    heartbeat: Annotated[Duration, Within("100ms", "1min")] = Field(
        default=Duration.parse("10s"),
        description="Interval at which an idle pipeline writes an empty cut, so that PostgreSQL can remove WAL. If the "
        "server's WAL does not grow either, it writes one every minute.",
    )

    @field_validator("inflight_max")
    @classmethod
    def _check_inflight_max(cls, inflight: Size, info: ValidationInfo) -> Size:
        cut = info.data.get("cut_bytes", inflight)
        if inflight < cut:
            raise ValueError(f"is {inflight}, less than cut_bytes: set it to {cut} or more")
        return inflight


class Buffer(Section):
    """The buffer for rows of streamed and prepared transactions, which wait for their commit."""

    memory_max: Annotated[Size, Within("1MiB", "1TiB")] = Field(
        default=Size.parse("32MiB"), description="Memory for the rows of all transactions. Further rows go to disk."
    )
    spill_dir: Text = Field(
        default="/var/lib/pgsluice/spill",
        description="Directory on a local disk. Nothing in it outlives the process.",
    )
    spill_max: Annotated[Size, Within("1MiB", "1024TiB")] = Field(
        default=Size.parse("20GiB"), description="Disk space for the rows of all transactions."
    )


class Snapshot(Section):
    """Rows that are older than the slot: whether and how tables are read while their changes are streamed."""

    mode: Literal["never", "initial", "when_needed"] = Field(
        default="initial",
        description='"initial": the rows of every published table are read once, also if the table is published '
        'later. "when_needed": they are read again in each new epoch, because changes may be missing before it. '
        '"never": only the tables that `pgsluice snapshot start` names are read. If it is not set, tables that were '
        "delivered by a version without this default count as loaded.",
    )
    on_alter: Literal["load", "warn"] = Field(
        default="load",
        description="What happens if a loaded table is altered so that its rows have values that were not sent, for "
        'example by a new column with a default. "load": the table is loaded again, unless mode is "never". "warn": '
        "the log and the status report it.",
    )
    chunk_rows: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = Field(
        default=20_000,
        description="The most rows that are read at once. Changes and ALTER TABLE wait in the meantime. If changes "
        "wait for more than 50 ms, fewer rows are read at once, but at least 1,000.",
    )
    chunk_bytes: Annotated[Size, Within("64KiB", "1GiB")] = Field(
        default=Size.parse("8MiB"), description="The most bytes that are read at once, in PostgreSQL's text format."
    )
    without_key_max: Annotated[Size, Within("0B", "1TiB")] = Field(
        default=Size.parse("1GiB"),
        description="The largest table without a key that is read. Such a table is read in one piece, and all changes "
        "wait in the meantime.",
    )
    max_rows_per_second: Count | None = Field(
        default=None,
        description="Rows of all tables that are read in a second, on average. If it is not set, rows are read as fast "
        "as possible.",
        examples=[10_000],
    )
    primary: Secret | None = Field(
        default=None,
        description="Server from which rows are read if [postgres] is a standby: connection string or URI of libpq "
        "that names its primary. Parameters that are not in it, except host and port, are those of [postgres].",
        examples=["host=db-primary.example.com"],
    )

    @field_validator("primary")
    @classmethod
    def _check_primary(cls, primary: SecretStr | None) -> SecretStr | None:
        if primary is not None:
            libpq.check_primary(primary.get_secret_value())
        return primary


class Rule(Section):
    """Different settings for some tables. The first rule that matches a table holds."""

    match: Glob = Field(description="Pattern over schema.table.", examples=["public.orders"])
    keys: Names | None = Field(
        default=None,
        description="Columns of the record's key, instead of the replica identity or primary key.",
        examples=[["tenant", "id"]],
    )
    topic: Template | None = Field(
        default=None, description="Name of the topic, as kafka.topics.name.", examples=["{prefix}.orders"]
    )
    partitions: Count | None = Field(default=None, description="As kafka.topics.partitions.", examples=[12])
    replication_factor: ReplicationFactor | None = Field(
        default=None, description="As kafka.topics.replication_factor.", examples=[3]
    )
    config: TopicConfig = Field(
        default={},
        description="Topic configuration, added to kafka.topics.config.",
        examples=[{"retention.ms": "-1"}],
    )
    tombstones: Flag | None = Field(default=None, description="As tables.tombstones.", examples=[True])
    truncate: OnTruncate | None = Field(default=None, description="As tables.truncate.", examples=["skip"])
    snapshot: Literal["skip"] | None = Field(
        default=None,
        description='"skip": the rows that the table already has are not read, whatever snapshot.mode is.',
        examples=["skip"],
    )
    where: Annotated[Text, Field(max_length=WHERE_MAX)] | None = Field(
        default=None,
        description="SQL condition on the table's columns. Of the rows that the table already has, only those that "
        "fulfil it are read. All changes are delivered nevertheless.",
        examples=["placed_at >= '2026-01-01'"],
    )
    types: ColumnTypes = Field(
        default={},
        description="Avro types that replace the usual ones, by patterns of column names. See types.md.",
        examples=[{"amount": "decimal(38,9)", "*_at": "timestamp-millis"}],
    )

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, topic: str | None, info: ValidationInfo) -> str | None:
        match = info.data.get("match")
        if topic is not None and match is not None and (missing := missing_placeholders(topic, match)):
            raise ValueError(f"lacks {' and '.join(missing)}: every table that matches needs a topic of its own")
        return topic


class Tables(Section):
    """The tables of the publications that are delivered, and how. Patterns are globs over schema.table."""

    include: Annotated[list[Glob], Field(min_length=1)] = Field(default=["*.*"], description="Tables to deliver.")
    exclude: list[Glob] = Field(
        default=[], description="Tables to leave out, even if they are included.", examples=[["public.audit_*"]]
    )
    tombstones: Flag = Field(
        default=False, description="Write a record without a value after every delete, for compacted topics."
    )
    truncate: OnTruncate = Field(default="emit", description="Whether a TRUNCATE becomes a record.")
    refused: Literal["quarantine", "stop"] = Field(
        default="quarantine",
        description="What happens to a table that cannot be published with these settings (a type that a column cannot "
        'have, a topic that is taken). "quarantine": a dead letter replaces each of its changes, and all other tables '
        'go on. "stop": pgsluice stops.',
    )
    time_range: Literal["common", "full"] = Field(
        default="common",
        description="Dates and timestamps that become typed values: years 1 to 9999, which most readers can "
        "hold (common), or all that PostgreSQL has (full). The text of all others is in the envelope's field raw.",
    )
    numeric: NumericAs = Field(
        default=NumericAs(),
        description='Type of numeric without precision: "string", or a decimal like "decimal(38,9)".',
    )
    rules: list[Rule] = Field(default=[], description="Different settings for some tables.")


class SchemaRegistry(Section):
    """The schema registry, which gives ids to schemas, and from which consumers get them by id.

    The keys after type are for a registry server: with type confluent, and for `pgsluice registry export`.
    """

    type: Literal["builtin", "confluent"] = Field(
        default="builtin",
        description="builtin: pgsluice keeps schemas in Kafka and serves the registry's read API itself. confluent: a "
        "server that speaks the API of Confluent's Schema Registry.",
    )
    url: Text | None = Field(
        default=None,
        description="Addresses of the server, separated by commas. They are tried one after the other.",
        examples=["http://registry-1:8081,http://registry-2:8081"],
    )
    username: Text | None = Field(default=None, description="User, for basic authentication.", examples=["pgsluice"])
    password: Secret | None = Field(
        default=None,
        description="Password. A secret file or the environment is a better place for it than this file.",
        examples=["secret"],
    )
    password_file: Text | None = Field(
        default=None,
        description="File whose first line is the password. It is read again for every connection.",
        examples=["/run/secrets/registry-password"],
    )
    token: Secret | None = Field(
        default=None, description="Bearer token, instead of user and password.", examples=["secret"]
    )
    token_file: Text | None = Field(
        default=None,
        description="File whose first line is the token. It is read again for every connection.",
        examples=["/run/secrets/registry-token"],
    )
    ca_file: Text | None = Field(
        default=None,
        description="File or directory of the certificate authorities that are trusted for the server's certificate. "
        "If it is not set, the public authorities are trusted.",
        examples=["/etc/pgsluice/registry-ca.crt"],
    )
    cert_file: Text | None = Field(
        default=None, description="File of the client's certificate.", examples=["/etc/pgsluice/registry-client.crt"]
    )
    key_file: Text | None = Field(
        default=None,
        description="File of the client's private key, not encrypted, if it is not in cert_file.",
        examples=["/etc/pgsluice/registry-client.key"],
    )
    timeout: Annotated[Duration, Within("100ms", "5min")] = Field(
        default=Duration.parse("10s"), description="How long one address may take to answer."
    )
    subject_name_strategy: Literal["topic", "record", "topic-record"] = Field(
        default="topic",
        description="Subjects of schemas: topic-value, the record's full name, or topic and full name. Consumers that "
        "look up subjects need the same strategy.",
    )
    on_incompatible: Literal["stop", "force"] = Field(
        default="stop",
        description="What happens if the server refuses a schema as incompatible: stop, or set the subject's "
        "compatibility to NONE for this one registration.",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None and info.data.get("type") == "confluent":
            raise ValueError('is needed with type = "confluent"')
        for address in url.split(",") if url is not None else ():
            check_address(address.strip())
        return url

    @field_validator("username")
    @classmethod
    def _check_username(cls, username: str | None) -> str | None:
        if username is not None and ":" in username:
            raise ValueError("has a colon, but in basic authentication a colon ends the user's name")
        return username

    @field_validator("password", "password_file")
    @classmethod
    def _check_password(cls, password: SecretStr | str | None, info: ValidationInfo) -> SecretStr | str | None:
        if password is not None and info.data.get("username", "") is None:
            raise ValueError("needs schema_registry.username: without it, no password is sent")
        return password

    @field_validator("password_file", "token_file")
    @classmethod
    def _check_file(cls, file: str | None, info: ValidationInfo) -> str | None:
        if file is None:
            return None
        key = str(info.field_name).removesuffix("_file")
        if info.data.get(key) is not None:
            raise ValueError(f"is set together with schema_registry.{key}: keep one of the two")
        libpq.read_password_file(file)
        return file

    @field_validator("key_file")
    @classmethod
    def _check_key_file(cls, file: str | None, info: ValidationInfo) -> str | None:
        if file is not None and info.data.get("cert_file") is None:
            raise ValueError("needs the certificate that it belongs to: set cert_file")
        return file

    @field_validator("token", "token_file")
    @classmethod
    def _check_token(cls, token: SecretStr | str | None, info: ValidationInfo) -> SecretStr | str | None:
        if token is not None and info.data.get("username") is not None:
            raise ValueError("is set together with schema_registry.username: keep one of the two")
        return token

    def secret(self, name: Literal["password", "token"]) -> str | None:
        """Return the password or token for one connection. Its file is read; ConfigError if that fails."""
        value, file = getattr(self, name), getattr(self, f"{name}_file")
        if file is None:
            return None if value is None else str(value.get_secret_value())
        try:
            return libpq.read_password_file(file)
        except ValueError as error:
            raise ConfigError(f"schema_registry.{name}_file: {error}") from None


class Http(Section):
    """The HTTP server: health, metrics, status and the schema registry's read API."""

    listen: ListenAddress = Field(
        default=ListenAddress.parse("127.0.0.1:8080"), description="Address and port to listen on."
    )
    allowed_hosts: list[HostName] = Field(
        default=[],
        description="Host names that clients may use in their Host header, besides localhost and IP addresses. If it "
        "is empty, every name is allowed, but none if `listen` is a loopback address.",
        examples=[["pgsluice.example.com"]],
    )


class Log(Section):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The lowest level that is logged."
    )
    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto: console on a terminal, and otherwise json, with one object per line."
    )


class Shutdown(Section):
    """The end of the process."""

    drain_timeout: Annotated[Duration, Within("100ms", "1h")] = Field(
        default=Duration.parse("20s"),
        description="Time for the cut in flight to finish after SIGTERM.",
    )


class Settings(BaseSettings):
    """All settings of one pipeline."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    layers: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Values to merge. The first layer takes precedence. ``loading`` sets them in a subclass."""

    version: Literal[1] = Field(description="Version of the file's layout.", examples=[1])
    name: PipelineName = Field(
        description="Name of the pipeline: lower-case letters, digits and underscores. The slot, the clients "
        "and the fencing of former owners are named after it.",
        examples=["shop"],
    )
    postgres: Postgres = Postgres()
    kafka: Kafka
    delivery: Delivery = Delivery()
    buffer: Buffer = Buffer()
    snapshot: Snapshot = Snapshot()
    tables: Tables = Tables()
    schema_registry: SchemaRegistry = SchemaRegistry()
    http: Http = Http()
    log: Log = Log()
    shutdown: Shutdown = Shutdown()

    @field_validator("tables")
    @classmethod
    def _check_tables(cls, tables: Tables, info: ValidationInfo) -> Tables:
        kafka = info.data.get("kafka")
        found = [*_shared_topics(tables, kafka), *_lost_truncates(tables, kafka)] if kafka else []
        if found:
            raise KeyProblems(found)
        return tables

    @property
    def slot_name(self) -> str:
        """The name of the slot: ``postgres.slot``, or by default a name from that of the pipeline."""
        return self.postgres.slot or f"{SLOT_PREFIX}{self.name}"

    def primary_parameters(self) -> dict[str, str] | None:
        """Return the parameters for a connection to ``snapshot.primary``; None if it is not set."""
        primary = self.snapshot.primary
        if primary is None:
            return None
        return libpq.of_primary(self.postgres.libpq_parameters(), primary.get_secret_value())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the names are pydantic-settings'
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use our layers, which were read with the place of each value. The library's own sources know no places."""
        return (init_settings, *(InitSettingsSource(settings_cls, layer) for layer in cls.layers))


def _shared_topics(tables: Tables, kafka: Kafka) -> Iterator[tuple[Path, str]]:
    taken = {f"{kafka.topic_prefix}.{name}": "pgsluice itself" for name in SERVICE_TOPICS}
    for number, rule in enumerate(tables.rules):
        topic = (rule.topic or "{table}").replace("{prefix}", kafka.topic_prefix)
        if "{" not in topic and topic in taken:
            yield ("rules", number, "topic"), f"{topic} is the topic of {taken[topic]}: choose another name"
        taken[topic] = f"another rule, for {rule.match}"


def _lost_truncates(tables: Tables, kafka: Kafka) -> Iterator[tuple[Path, str]]:
    sentence = 'a compacted topic cannot hold truncates, because they have no key: set it to "skip"'
    if tables.truncate == "emit" and _is_compacted(kafka.topics.config):
        yield ("truncate",), sentence
    for number, rule in enumerate(tables.rules):
        own = rule.truncate == "emit" or "cleanup.policy" in rule.config
        if (
            own
            and (rule.truncate or tables.truncate) == "emit"
            and _is_compacted({**kafka.topics.config, **rule.config})
        ):
            yield ("rules", number, "truncate"), sentence


def _is_compacted(config: Mapping[str, str]) -> bool:
    return "compact" in config.get("cleanup.policy", "")
