"""The settings as a whole: all TOML tables of the file, and the checks that involve more than one of them.

Each table has a module in this package, with the type, default, limits and meaning of every key. The documentation is
generated from these modules. ``sources`` reads the values, and ``app.wiring`` maps them to the options of all other
packages. If two keys have to agree, the check belongs to the key that comes later in the file.

https://docs.pydantic.dev/latest/concepts/pydantic_settings/
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from pgsluice.config import libpq
from pgsluice.config.http import Http
from pgsluice.config.kafka import Delivery, Kafka
from pgsluice.config.naming import SLOT_PREFIX
from pgsluice.config.postgres import Postgres
from pgsluice.config.problems import KeyProblems, Path
from pgsluice.config.process import Buffer, Log, Shutdown
from pgsluice.config.schema_registry import SchemaRegistry
from pgsluice.config.snapshot import Snapshot
from pgsluice.config.tables import Tables
from pgsluice.config.values import PipelineName
from pgsluice.tables import SERVICE_TOPICS


class Settings(BaseSettings):
    """All settings of one pipeline."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    layers: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Values to merge. The first layer takes precedence. ``loading`` sets them in a subclass."""

    version: Literal[1] = Field(description="Version of the file's layout.", examples=[1])
    name: PipelineName = Field(
        description="Name of the pipeline: lower-case letters, digits and underscores. It is part of the names of the "
        "slot and the clients, and of the transactional id with which Kafka fences former owners.",
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
        found = [*_taken_topics(tables, kafka), *_lost_truncates(tables, kafka)] if kafka else []
        if found:
            raise KeyProblems(found)
        return tables

    @property
    def slot_name(self) -> str:
        """The name of the slot: ``postgres.slot``, or by default ``pgsluice_`` and the pipeline's name."""
        return self.postgres.slot or f"{SLOT_PREFIX}{self.name}"

    def primary_parameters(self) -> dict[str, str] | None:
        """Return the parameters for a connection to ``snapshot.primary``, or None if it is not set."""
        primary = self.snapshot.primary
        if primary is None:
            return None
        return libpq.of_primary(self.postgres.libpq_parameters(), primary.get_secret_value())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings needs it
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use our layers, which keep the origin of each value. The library's own sources lose it."""
        return (init_settings, *(InitSettingsSource(settings_cls, layer) for layer in cls.layers))


def _taken_topics(tables: Tables, kafka: Kafka) -> Iterator[tuple[Path, str]]:
    taken = {f"{kafka.topic_prefix}.{name}" for name in SERVICE_TOPICS}
    for number, rule in enumerate(tables.rules):
        topic = (rule.topic or "{table}").replace("{prefix}", kafka.topic_prefix)
        if "{" not in topic and topic in taken:
            yield ("rules", number, "topic"), f"{topic} is one of pgsluice's own topics: choose another name"


def _lost_truncates(tables: Tables, kafka: Kafka) -> Iterator[tuple[Path, str]]:
    sentence = 'a compacted topic cannot have records of TRUNCATE, because they have no key: set truncate to "skip"'
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
