"""The settings for reading the existing rows of tables: ``[snapshot]``."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator

from pgsluice.config import libpq
from pgsluice.config.section import Section
from pgsluice.config.units import Size, Within
from pgsluice.config.values import Count, Secret


class Snapshot(Section):
    """The existing rows of tables: whether and how they are read while changes are streamed."""

    mode: Literal["never", "initial", "when_needed"] = Field(
        default="initial",
        description='"initial": the rows of every published table are read once, also those of tables that are '
        'published later. "when_needed": the rows are also read again in each new epoch (which begins with '
        '--adopt-slot), because changes before the epoch may be missing. "never": only the tables that `pgsluice '
        "snapshot start` names are read. If mode is not set, some tables count as loaded: those whose changes were "
        "delivered by an older version of pgsluice that loaded no table by default.",
    )
    on_alter: Literal["load", "warn"] = Field(
        default="load",
        description="What happens if a loaded table is altered in such a way that its rows have values that were not "
        'sent, for example by a new column with a default. "load": the table is loaded again, unless mode is "never". '
        '"warn": the log and the status report the table.',
    )
    chunk_rows: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = Field(
        default=20_000,
        description="Maximum number of rows in one chunk. While a chunk is read, pgsluice delivers no changes, and "
        "ALTER TABLE of the table waits for a lock. If reading a chunk takes more than 50 ms, the chunks get smaller, "
        "but not below 1,000 rows.",
    )
    chunk_bytes: Annotated[Size, Within("64KiB", "1GiB")] = Field(
        default=Size.parse("8MiB"), description="Maximum size of the rows in one chunk, in PostgreSQL's text format."
    )
    without_key_max: Annotated[Size, Within("0B", "1TiB")] = Field(
        default=Size.parse("1GiB"),
        description="Maximum size of a table without a key. Such a table is read as a whole, and no changes of any "
        "table are delivered in the meantime. A larger table is not loaded.",
    )
    max_rows_per_second: Count | None = Field(
        default=None,
        description="Maximum number of rows that are read per second, as an average, and as a sum over all tables. If "
        "it is not set, rows are read as fast as possible.",
        examples=[10_000],
    )
    primary: Secret | None = Field(
        default=None,
        description="Server from which rows are read if [postgres] is a standby: a connection string or URI of libpq "
        "that names the standby's primary. Parameters that it leaves out, except host and port, are those of "
        "[postgres].",
        examples=["host=db-primary.example.com"],
    )

    @field_validator("primary")
    @classmethod
    def _check_primary(cls, primary: SecretStr | None) -> SecretStr | None:
        if primary is not None:
            libpq.check_primary(primary.get_secret_value())
        return primary
