"""The quarantine for tables that cannot be published with the present settings. All other tables continue.

Everybody who may create tables can create one that cannot be published, for example because its columns contradict a
rule, or because its topic would have the same name as another table's topic. Such a table must not stop the pipeline.
So a dead letter replaces each of its changes.
"""

from typing import TYPE_CHECKING

import structlog

from pgsluice.avro.schema import dead_letter_schema
from pgsluice.dead_letter import DeadLetter, Reason
from pgsluice.envelope import DeadLetters
from pgsluice.metrics import Metrics
from pgsluice.record import Target
from pgsluice.relation import Relation
from pgsluice.tables import TablePattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgsluice.envelope import Stamp
    from pgsluice.pipeline.ends import Registry
    from pgsluice.record import Pending

log = structlog.get_logger(__name__)

LISTED_MAX = 100
"""The status and the metric cover at most this many tables: those that were refused last."""

_OPS = {b"I": "c", b"U": "u", b"D": "d", b"T": "t"}


async def open_dead_letters(registry: "Registry", prefix: str, say: "Callable[[DeadLetter], None]") -> DeadLetters:
    """Register the schemas of ``<prefix>.dead_letters``, and return the writer of dead letters.

    ``say`` is called for each dead letter.
    """
    topic = f"{prefix}.dead_letters"
    value_id = await registry.register(f"{topic}-value", dead_letter_schema(prefix))
    key_id = await registry.register(f"{topic}-key", "string")
    return DeadLetters(Target(topic, value_id, key_id), say)


class Quarantine:
    """The tables in quarantine, with the reasons. All sessions of a pipeline share this object."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._reasons: dict[str, str] = {}

    def add(self, relation: Relation, reason: str) -> None:
        """Note and log that the table cannot be published."""
        table = _name(relation)
        if self._reasons.pop(table, None) != reason:
            log.error("table in quarantine", table=table, reason=reason)
        self._reasons[table] = reason
        if len(self._reasons) > LISTED_MAX:
            del self._reasons[next(iter(self._reasons))]
        self._metrics.quarantined_tables.set(len(self._reasons))

    def remove(self, relation: Relation) -> None:
        """Note and log that the table is published again."""
        if self._reasons.pop(_name(relation), None) is not None:
            log.warning("table released from quarantine", table=_name(relation))
            self._metrics.quarantined_tables.set(len(self._reasons))

    @property
    def tables(self) -> list[dict[str, str]]:
        """Return the tables and the reasons, for the status."""
        return [{"table": table, "reason": reason} for table, reason in self._reasons.items()]


class RefusedRows:
    """Replaces the changes of a table in quarantine with dead letters.

    The session uses it like :class:`pgsluice.rows.Rows`, because it has the same methods.
    """

    def __init__(self, relation: Relation, topic: str, detail: str, dead_letters: DeadLetters) -> None:
        self.relation = relation
        self._topic = topic
        self._detail = detail
        self._dead_letters = dead_letters

    def add(self, message: bytes, stamp: "Stamp", pending: "Pending", *, is_streamed: bool) -> None:  # noqa: ARG002
        """Add the dead letter that replaces this change."""
        seq = stamp.next_seq
        stamp.next_seq = seq + 1
        origin = stamp.origin_of(self.relation, _OPS[message[:1]], seq)
        letter = DeadLetter(origin, self._topic, Reason.TABLE_REFUSED, self._detail)
        pending.add([self._dead_letters.record(letter, stamp.timestamp_ms)])


def _name(relation: Relation) -> str:
    """Return the table's name as a pattern, which is unique."""
    return str(TablePattern(relation.namespace, relation.name))
