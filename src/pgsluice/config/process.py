"""The settings of the process: ``[buffer]``, ``[log]`` and ``[shutdown]``."""

from typing import Annotated, Literal

from pydantic import Field

from pgsluice.config.section import Section
from pgsluice.config.units import Duration, Size, Within
from pgsluice.config.values import Text


class Buffer(Section):
    """The buffer for rows of streamed and prepared transactions, which wait for their commit."""

    memory_max: Annotated[Size, Within("1MiB", "1TiB")] = Field(
        default=Size.parse("32MiB"),
        description="Maximum memory for the rows of all transactions. Further rows are written to disk.",
    )
    spill_dir: Text = Field(
        default="/var/lib/pgsluice/spill",
        description="Directory on a local disk. Nothing in it is needed after the process has ended.",
    )
    spill_max: Annotated[Size, Within("1MiB", "1024TiB")] = Field(
        default=Size.parse("20GiB"),
        description="Maximum disk space for the rows of all transactions. If the rows need more, pgsluice stops.",
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
    """How the process stops."""

    drain_timeout: Annotated[Duration, Within("100ms", "1h")] = Field(
        default=Duration.parse("20s"),
        description="How long the current cut may take to finish after SIGTERM.",
    )
