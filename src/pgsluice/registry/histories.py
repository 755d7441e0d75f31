"""Keeps the field names and keys of former versions of tables in memory.

The registries use it. A user of the database can create any number of versions of a table, and each new version needs
the names and keys of the former versions. So each version is read only once, and the cost of the next version depends
only on its own size.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from pgsluice.avro.wire import Schema
from pgsluice.registry.store import SchemaStore

KEPT_NAMES_MAX: Final = 200_000
"""At most this many names are kept for all subjects together. This is enough for 10,000 tables with 20 columns. Each
name takes half a kilobyte. The least recently used subjects are dropped first, and read again when they are needed."""


class History(Protocol):
    """The names or the keys in all schemas of one table."""

    def learn(self, schema: Schema) -> None:
        """Add the names or the keys in the next schema."""

    def __len__(self) -> int:
        """Return the number of names that this history keeps."""


H = TypeVar("H", bound=History)


@dataclass(slots=True)
class _Known(Generic[H]):
    """The histories of a subject, up to ``version``.

    There is one history for each table, because a rule may send several tables to one topic.
    """

    rearranged: int
    version: int = 0
    names: int = 0
    tables: dict[str, H] = field(default_factory=dict)
    """The histories by the namespace of their records."""


class Histories(Generic[H]):
    """The histories of the tables in ``store``. ``make`` returns an empty history."""

    def __init__(self, store: SchemaStore, make: Callable[[], H]) -> None:
        self._store = store
        self._make = make
        self._known: OrderedDict[str, _Known[H]] = OrderedDict()
        """By subject, with the most recently used subject at the end."""
        self._names = 0

    async def of(self, subject: str, namespace: str) -> H:
        """Return the history of one table in the versions of ``subject``.

        Use the result before anything else is registered, because registrations change it. Other tasks of the event
        loop run after every version that is read.
        """
        known = self._known.pop(subject, _Known[H](self._store.rearranged(subject)))
        self._names -= known.names
        known = await self._caught_up(subject, known)
        self._keep(subject, known)
        found = known.tables.get(namespace)
        return self._make() if found is None else found

    async def _caught_up(self, subject: str, known: _Known[H]) -> _Known[H]:
        while True:
            rearranged = self._store.rearranged(subject)
            if known.rearranged != rearranged:
                known = _Known(rearranged)  # the order of versions matters, so begin again
            versions = self._store.versions(subject, known.version)
            if not versions:
                return known
            for entry in versions:
                self._learn(known, json.loads(entry.schema))
                known.version = entry.version
                await asyncio.sleep(0)

    def _learn(self, known: _Known[H], schema: Schema) -> None:
        namespace = schema.get("namespace") if isinstance(schema, dict) else None
        if isinstance(namespace, str):
            if namespace not in known.tables:
                known.tables[namespace] = self._make()
            history = known.tables[namespace]
            before = len(history)
            history.learn(schema)
            known.names += len(history) - before

    def _keep(self, subject: str, known: _Known[H]) -> None:
        """Keep the histories of ``subject``. If there are too many, drop those of other subjects."""
        former = self._known.pop(subject, None)  # another task may have read the same subject meanwhile
        self._names += known.names - (0 if former is None else former.names)
        self._known[subject] = known
        while self._names > KEPT_NAMES_MAX and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._names -= oldest.names
