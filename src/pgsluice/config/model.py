"""The settings: every key, its type, default, limits and meaning; the documentation is generated from here.

Used by whoever needs a setting (through the daemon). What one key cannot say alone is checked in
``rules``; where values come from is the business of ``sources``.

https://docs.pydantic.dev/latest/concepts/pydantic_settings/
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from pgsluice.config.units import Duration, ListenAddress, NumericAs, Size

Count = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]


class Section(BaseModel):
    """A table of the file: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Postgres(Section):
    """The server, the slot and the publications to follow."""

    dsn: SecretStr | None = None
    host: str | None = None
    port: Count | None = None
    dbname: str | None = None
    user: str | None = None
    password: SecretStr | None = None
    password_file: str | None = None
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] | None = None
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None
    parameters: dict[str, str] = {}
    slot: str | None = None
    publications: list[str] = ["pgsluice"]
    create_slot: Flag = True
    status_interval: Duration = Duration.parse("5s")
    wal_sender_timeout: Duration = Duration.parse("15s")


class Topics(Section):
    """How topics are named and created."""

    name: str = "{prefix}.{schema}.{table}"
    partitions: Count = 3
    replication_factor: int = -1
    config: dict[str, str] = {}


class Kafka(Section):
    """The Kafka cluster."""

    bootstrap_servers: str
    topic_prefix: str
    client: dict[str, str | SecretStr] = {"compression.type": "lz4"}
    topics: Topics = Topics()


class Delivery(Section):
    """Cuts and transactions."""

    transaction_timeout: Duration = Duration.parse("15min")
    cut_interval: Duration = Duration.parse("50ms")
    cut_bytes: Size = Size.parse("16MiB")
    inflight_max: Size = Size.parse("64MiB")
    heartbeat: Duration = Duration.parse("10s")


class Rule(Section):
    """What is different for the tables that match."""

    match: str
    keys: list[str] | None = None
    topic: str | None = None
    partitions: Count | None = None
    replication_factor: int | None = None
    config: dict[str, str] = {}
    tombstones: Flag | None = None
    truncate: Literal["emit", "skip"] | None = None


class Tables(Section):
    """Which tables are published, and how."""

    include: list[str] = ["*.*"]
    exclude: list[str] = []
    tombstones: Flag = False
    truncate: Literal["emit", "skip"] = "emit"
    time_range: Literal["common", "full"] = "common"
    numeric: NumericAs = NumericAs()
    rules: list[Rule] = []


class SchemaRegistry(Section):
    """Where the schemas live."""

    type: Literal["builtin"] = "builtin"


class Http(Section):
    """The HTTP server."""

    listen: ListenAddress = ListenAddress.parse("127.0.0.1:8080")


class Log(Section):
    """The log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class Shutdown(Section):
    """The end of the process."""

    drain_timeout: Duration = Duration.parse("20s")


class Settings(BaseSettings):
    """All settings of one pipeline."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, validate_default=True)

    version: Literal[1]
    name: str
    postgres: Postgres = Postgres()
    kafka: Kafka
    delivery: Delivery = Delivery()
    tables: Tables = Tables()
    schema_registry: SchemaRegistry = SchemaRegistry()
    http: Http = Http()
    log: Log = Log()
    shutdown: Shutdown = Shutdown()

    @property
    def slot_name(self) -> str:
        """The slot: ``postgres.slot``, by default named after the pipeline."""
        return self.postgres.slot or f"pgsluice_{self.name}"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the five names are pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read nothing by itself: ``load`` brings the sources, which remember where a value stood."""
        return (init_settings,)
