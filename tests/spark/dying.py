"""Wraps a target, so that the driver dies when it commits to one of the tables. pgsluice_spark has no failpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from pgsluice_spark.targets import Target, TargetTable


class Killed(Exception):
    """Raised instead of killing the driver."""


@dataclass(frozen=True)
class DyingTable:
    """A table that ends the driver at its next commit: after the commit if ``made`` is true, otherwise before it."""

    table: TargetTable
    made: bool

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a table
        found = getattr(self.table, name)
        return partial(self._die, found) if name in ("append", "extend", "overwrite", "merge", "delete") else found

    def _die(self, write: Callable[..., int], *arguments: object) -> None:
        if self.made:
            write(*arguments)
        raise Killed


@dataclass(frozen=True, slots=True)
class Dying:
    """A target whose driver dies when it commits to the table ``victim``."""

    target: Target
    victim: str
    made: bool

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a target
        return getattr(self.target, name)

    def table(self, spark: SparkSession, name: str, since: int | None = None) -> Any:  # noqa: ANN401 - a table of any target
        table = self.target.table(spark, name, since)
        return DyingTable(table, self.made) if name == self.victim else table
