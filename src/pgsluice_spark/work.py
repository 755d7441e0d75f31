"""The work for one table in a piece of a batch, and its result.

:mod:`.job` and :mod:`.audit` create the work. :mod:`.mirror`, :mod:`.changelog` and :mod:`.tail` do it.

``tests/spark/test_query.py`` covers this module.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pgsluice_spark.cuts import Cut, Mark, Position
from pgsluice_spark.lives import POSITION
from pgsluice_spark.loads import TableState
from pgsluice_spark.reading import TopicReading

_SEQ_MAX: Final = 2**63 - 1


@dataclass(frozen=True)
class Work:
    """The changes of one table in some cuts. ``records`` reads the records of these cuts in the topic."""

    app: str
    table: str
    cuts: Sequence[Cut]
    marks: Sequence[Mark]
    state: TableState
    reading: TopicReading
    declared: Mapping[str, int]
    """The number of events of each op that the cuts declare for the whole topic, which several tables may share."""
    records: Callable[[], DataFrame]
    distinct: bool = False
    """Whether to drop duplicates. In at-least-once mode, records may be in the topic twice after a crash."""
    since: Position | None = None
    """The position before which changes are only counted, because the copy begins again with a load there."""

    @cached_property
    def events(self) -> DataFrame:
        """The changes of the table."""
        changes = self.reading.changes(self.records())
        if not self.distinct:
            return changes
        return changes.dropDuplicates([*POSITION, "partition"])  # a truncate has one record in each partition

    @property
    def row_type(self) -> StructType:
        """The columns of the table, including former columns."""
        kind = self.events.schema["after"].dataType
        assert isinstance(kind, StructType), "a row is a struct"
        return kind

    @property
    def repeated(self) -> Position | None:
        """The position up to which these cuts repeat changes that were applied before, or None if they repeat none.

        Cuts are repeated only in at-least-once mode.
        """
        if not self.cuts or self.cuts[0].number > self.state.cut:
            return None
        return Position(self.state.epoch, self.state.end_lsn - 1, _SEQ_MAX)

    def is_repeated(self, place: Position) -> bool:
        """Return whether the change at this position was applied before."""
        return self.repeated is not None and place <= self.repeated


@dataclass(frozen=True, slots=True)
class Prepared:
    """Changes that were read and counted, but not committed yet.

    ``commit`` commits them, and returns the table's state and the commit's number. The number is None if no commit was
    necessary.
    """

    counts: Mapping[str, int]
    commit: Callable[[], tuple[TableState, int | None]]
