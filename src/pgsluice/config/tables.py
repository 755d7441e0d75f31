"""The settings of the tables to deliver: ``[tables]`` and ``[[tables.rules]]``."""

from typing import Annotated, Literal

from pydantic import Field

from pgsluice.commands import WHERE_MAX
from pgsluice.config.section import Section
from pgsluice.config.units import NumericAs
from pgsluice.config.values import (
    ColumnTypes,
    Count,
    Flag,
    Glob,
    Names,
    OnTruncate,
    ReplicationFactor,
    Template,
    Text,
    TopicConfig,
)


class Rule(Section):
    """Different settings for some tables. The first rule that matches a table applies."""

    match: Glob = Field(description="Pattern over schema.table.", examples=["public.orders"])
    keys: Names | None = Field(
        default=None,
        description="Columns of the record's key, instead of the replica identity or primary key.",
        examples=[["tenant", "id"]],
    )
    topic: Template | None = Field(
        default=None,
        description="Name of the topic. It replaces kafka.topics.name for these tables. If it gives several tables the "
        "same name, they share the topic.",
        examples=["{prefix}.orders"],
    )
    partitions: Count | None = Field(
        default=None, description="Replaces kafka.topics.partitions for these tables.", examples=[12]
    )
    replication_factor: ReplicationFactor | None = Field(
        default=None, description="Replaces kafka.topics.replication_factor for these tables.", examples=[3]
    )
    config: TopicConfig = Field(
        default={},
        description="Topic configuration, added to kafka.topics.config.",
        examples=[{"retention.ms": "-1"}],
    )
    tombstones: Flag | None = Field(
        default=None, description="Replaces tables.tombstones for these tables.", examples=[True]
    )
    truncate: OnTruncate | None = Field(
        default=None, description="Replaces tables.truncate for these tables.", examples=["skip"]
    )
    snapshot: Literal["skip"] | None = Field(
        default=None,
        description='"skip": existing rows of the table are not read, whatever snapshot.mode is.',
        examples=["skip"],
    )
    where: Annotated[Text, Field(max_length=WHERE_MAX)] | None = Field(
        default=None,
        description="SQL condition on the table's columns. Only existing rows that meet the condition are read. "
        "Changes are delivered whether they meet it or not.",
        examples=["placed_at >= '2026-01-01'"],
    )
    types: ColumnTypes = Field(
        default={},
        description="Avro types that replace the default types, by patterns of column names. See types.md.",
        examples=[{"amount": "decimal(38,9)", "*_at": "timestamp-millis"}],
    )


class Tables(Section):
    """Which tables of the publications are delivered, and how. Patterns are globs over schema.table."""

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
        description="What happens to a table that cannot be published with these settings, for example because another "
        'table has its topic. "quarantine": a dead letter replaces each of its changes, and all other tables are '
        'delivered. "stop": pgsluice stops.',
    )
    time_range: Literal["common", "full"] = Field(
        default="common",
        description="Range of the dates and timestamps that become typed values. common: the years 1 to 9999, which "
        "most readers can represent. full: the whole range of PostgreSQL. A value outside the range is delivered as "
        "text, in the envelope's field raw.",
    )
    numeric: NumericAs = Field(
        default=NumericAs(),
        description='Type of numeric without precision: "string", or a decimal like "decimal(38,9)".',
    )
    rules: list[Rule] = Field(default=[], description="Different settings for some tables.")
