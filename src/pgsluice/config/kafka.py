"""The settings for writing to Kafka: ``[kafka]``, ``[kafka.topics]`` and ``[delivery]``."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from pgsluice.config import secret_command
from pgsluice.config.secret_file import read_password_file
from pgsluice.config.section import Section, keep_one
from pgsluice.config.units import Duration, Size, Within
from pgsluice.config.values import (
    COMPRESSION,
    ClientProperties,
    Command,
    Count,
    ReplicationFactor,
    Template,
    Text,
    TopicConfig,
    TopicPrefix,
    no_user,
    reveal,
)
from pgsluice.errors import ConfigError, SinkUnavailable
from pgsluice.tables import missing_placeholders

_MSK = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
"""The properties of clients that authenticate with IAM."""


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
        description="The maximum number of topics for tables. Without a limit, people who may create tables could fill "
        "the cluster with partitions. A new table beyond this limit gets no topic, and is handled as tables.refused "
        "says.",
    )
    changed: Literal["stop", "accept"] = Field(
        default="stop",
        description="What happens if somebody else deletes, re-creates or empties a topic, or changes its partitions: "
        "stop, or continue with the topic as it is.",
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
        'committed. If it is "commit", retention can delete a backlog as soon as it arrives, and brokers refuse '
        "records if the database server's clock is ahead.",
    )
    client: ClientProperties = Field(
        default={**COMPRESSION},
        description="Any property of librdkafka (security.protocol, sasl.*, ssl.*, linger.ms, ...), except those that "
        "exactly-once delivery depends on.",
        examples=[{"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}],
    )
    password_file: Text | None = Field(
        default=None,
        description="File whose first line is sasl.password. It is read again whenever clients are created, which is "
        "at least once per session.",
        examples=["/run/secrets/kafka-password"],
    )
    password_command: Command | None = Field(
        default=None,
        description="Program and arguments. The first line that the program prints is sasl.password. The program runs "
        "whenever clients are created, without a shell, for at most 30 seconds.",
        examples=[["vault", "kv", "get", "-field=password", "secret/kafka"]],
    )
    aws_msk_region: Text | None = Field(
        default=None,
        description="Region of an Amazon MSK cluster, to authenticate with IAM. This needs pip install pgsluice[aws].",
        examples=["eu-central-1"],
    )
    topics: Topics = Topics()

    @field_validator("password_file", "password_command", "aws_msk_region")
    @classmethod
    def _check_credentials(cls, setting: object, info: ValidationInfo) -> object:
        if setting is None:
            return None
        if "sasl.password" in info.data.get("client", {}):
            raise ValueError('is set together with "sasl.password" under kafka.client: keep one of the two')
        keep_one(info, "kafka", "password_file", "password_command")
        if info.field_name == "password_file":
            read_password_file(str(setting))
        return setting

    def librdkafka_properties(self) -> dict[str, str]:
        """Return the properties of all clients. The password is left out if :meth:`password` returns it."""
        msk = {} if self.aws_msk_region is None else _MSK
        return {"bootstrap.servers": self.bootstrap_servers, **msk, **reveal(self.client)}

    def password(self) -> str | None:
        """Return the password for a client, from its file or command, or None if neither is set. This may block.

        Raise ConfigError or SinkUnavailable if the file or command fails.
        """
        if self.password_command is not None:
            return secret_command.run(self.password_command, "kafka.password_command", SinkUnavailable)
        if self.password_file is None:
            return None
        try:
            return read_password_file(self.password_file)
        except ValueError as error:
            raise ConfigError(f"kafka.password_file: {error}") from None


class Delivery(Section):
    """Cuts: the Kafka transactions in which changes are delivered."""

    mode: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="exactly_once: every cut is a Kafka transaction. at_least_once: there are no transactions. After a "
        "crash, changes after the last checkpoint are delivered again with the same epoch, lsn and seq.",
    )
    transaction_timeout: Annotated[Duration, Within("1s", "1d")] = Field(
        default=Duration.parse("15min"),
        description="The longest time that a Kafka transaction may last. If the brokers' transaction.max.timeout.ms "
        "(15 minutes by default) is smaller, it applies instead. In mode at_least_once, if Kafka accepts "
        "nothing for this time, the session ends, and the next session sends the records again.",
    )
    cut_interval: Annotated[Duration, Within("1ms", "1min")] = Field(
        default=Duration.parse("50ms"),
        description="The longest time that a cut stays open while changes keep coming. When no change is waiting, the "
        "cut is closed immediately.",
    )
    cut_bytes: Annotated[Size, Within("1KiB", "64GiB")] = Field(
        default=Size.parse("8MiB"),
        description="A cut that has reached this size is closed at the next commit.",
    )
    inflight_max: Annotated[Size, Within("64KiB", "1TiB")] = Field(
        default=Size.parse("32MiB"),
        description="Limit for encoded changes in memory that Kafka has not stored yet. It must be at least cut_bytes.",
    )
    poison: Literal["stop", "dead_letter"] = Field(
        default="stop",
        description="What happens to a change that Kafka or Avro cannot represent (for example a record that is too "
        "large): stop, or write a dead letter in its place and continue.",
    )
    heartbeat: Annotated[Duration, Within("100ms", "1min")] = Field(
        default=Duration.parse("10s"),
        description="Interval at which an idle pipeline writes an empty cut, so that PostgreSQL can remove WAL. While "
        "the server's WAL does not grow, the interval is one minute.",
    )

    @field_validator("inflight_max")
    @classmethod
    def _check_inflight_max(cls, inflight: Size, info: ValidationInfo) -> Size:
        cut = info.data.get("cut_bytes", inflight)
        if inflight < cut:
            raise ValueError(f"is {inflight}, less than cut_bytes: set it to {cut} or more")
        return inflight
