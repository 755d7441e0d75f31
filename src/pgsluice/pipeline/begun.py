"""The loads that have begun: the progress of each, and the rows that have to be read again before the load ends."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from pgsluice.layout import Layout
from pgsluice.loads import Load, Loaded, assumed, moved_key
from pgsluice.pgoutput.messages import TupleData
from pgsluice.pipeline.encoders import Encoders
from pgsluice.relation import Relation, TableId

log = structlog.get_logger(__name__)

MOVED_MAX: Final = 1000
MOVED_BYTES_MAX: Final = 64 * 1024
"""The limits of one load for rows whose key changes while the table is being read: the number of these rows, and the
bytes that their keys take in a checkpoint. Such rows are read again before the load ends, and until then each
checkpoint contains their keys. Above one of the limits, the load begins again."""

ALL_MOVED_BYTES_MAX: Final = 256 * 1024
"""The limit for the bytes that the keys of all loads together take in a checkpoint. Above this limit, the load whose
keys take the most bytes begins again."""


class Begun:
    """The loads in progress, including those of former sessions, and the tables that have been loaded.

    While a table is being read, an UPDATE may change the key of a row, and PostgreSQL may not send all values of this
    row. The new keys of such rows are noted here, so that the rows are read again before the load ends.
    """

    def __init__(
        self,
        encoders: Encoders,
        epoch: int,
        loads: Iterable[Load],
        loaded: Mapping[tuple[str, str], Loaded],
    ) -> None:
        """Continue ``loads``. Loads that end from now on belong to ``epoch``."""
        self.is_changed = False
        """Whether the loads have changed since they were last recorded. The next cut with changes records them."""
        self._encoders = encoders
        self._epoch = epoch
        self._loads: dict[int, Load] = {}
        self._loaded = dict(loaded)
        for load in loads:
            self.put(load)

    def of(self, oid: int) -> Load | None:
        """Return the load of the table with this oid, or None if the load has not begun, or has to begin again."""
        return self._loads.get(oid)

    def put(self, load: Load) -> None:
        """Note the beginning or the progress of a load."""
        if load.oid not in self._loads:
            self._encoders.watch(load.oid, self._on_incomplete)
        self._loads[load.oid] = load

    def drop(self, oid: int) -> None:
        """Forget the load of the table with this oid, if there is one, because it has ended or has to begin again.

        From now on, the keys of rows that arrive without all values are not noted. So no later session may continue
        this load, even if the table gets the same shape again.
        """
        if self._loads.pop(oid, None) is not None:
            self.is_changed = True
            self._encoders.watch(oid, None)

    def keep_only(self, oids: Iterable[int]) -> None:
        """Forget the loads of all tables except these."""
        for oid in self._loads.keys() - set(oids):
            self.drop(oid)

    def finish(self, load: Load, layout: Layout | None) -> Loaded:
        """Record that all rows of the table are in the stream. ``layout`` is its layout. Return the table's record."""
        self.drop(load.oid)
        loaded = Loaded(load.id, load.schema, load.table, load.oid, load.rows, self._epoch, layout=layout)
        return self.replace(loaded)

    def replace(self, loaded: Loaded) -> Loaded:
        """Store ``loaded`` as the table's record, and return it."""
        self._loaded[loaded.schema, loaded.table] = loaded
        return loaded

    def cancel(self, relation: TableId) -> Loaded | None:
        """Record that a command has ended the load. Return the table's new record, or None if its present record stays.

        A table that was loaded before still counts as loaded, even if some of its rows were delivered again. This holds
        only for tables with a key. Without a key, new rows do not replace old ones, so copies of the table contain the
        redelivered rows twice.
        """
        load = self._loads.get(relation.oid)
        self.drop(relation.oid)
        if self.is_loaded(relation) and (load is None or load.key):
            return None
        name = relation.namespace, relation.name
        identifier, rows = ("", 0) if load is None else (load.id, load.rows)
        return self.replace(Loaded(identifier, *name, relation.oid, rows, self._epoch, state="cancelled"))

    def assume(self, relations: Iterable[TableId]) -> list[Loaded]:
        """Treat each table without a record as loaded. Return the new records."""
        tables = {(one.namespace, one.name): one.oid for one in relations}
        found = assumed(tables, self._loads.values(), self._loaded, self._epoch)
        self._loaded |= {(one.schema, one.table): one for one in found}
        return found

    def is_loaded(self, relation: TableId) -> bool:
        """Return whether this table needs no load, because it was loaded before, or a command has cancelled its load.

        The record of an earlier table with the same name does not count.
        """
        loaded = self.loaded(relation)
        return loaded is not None and loaded.state != "stale"

    def complete(self, relation: TableId) -> Loaded | None:
        """Return the record of the table if, as far as we know, the topic has all its rows and changes.

        A record of an earlier table with the same name does not count.
        """
        loaded = self.loaded(relation)
        return loaded if loaded is not None and _is_complete(loaded) else None

    def all_complete(self) -> list[Loaded]:
        """Return the records of all tables that are complete, as in :meth:`complete`."""
        return [one for one in self._loaded.values() if _is_complete(one)]

    @property
    def has_loaded(self) -> bool:
        """Return whether any table is complete, or was complete before it became stale."""
        return any(one.state != "cancelled" for one in self._loaded.values())

    def loaded(self, relation: TableId) -> Loaded | None:
        """Return the table's record, if it has one. A record of an earlier table with the same name does not count."""
        loaded = self._loaded.get((relation.namespace, relation.name))
        return loaded if loaded is not None and loaded.oid == relation.oid else None

    def all(self) -> list[Load]:
        """Return the loads in progress, which the next checkpoint contains."""
        self.is_changed = False
        return list(self._loads.values())

    def _on_incomplete(self, relation: Relation, new: TupleData) -> None:
        """Note the key of a row that arrived without all values, because this row has to be read again."""
        load = self._loads[relation.oid]
        if not load.last:
            return  # nothing has been read yet, so the row will be read whatever key it has
        self.is_changed = True
        names = [column.name for column in relation.columns]
        key = moved_key([new[names.index(one)] for one in load.key]) if set(load.key) <= set(names) else None
        moved = load.moved if key is None or key in load.moved else (*load.moved, key)
        load = replace(load, moved=moved)
        if key is None:
            self._begin_again(load, "the new key of a row is not known")
            return
        if len(moved) > MOVED_MAX or _moved_bytes(load) > MOVED_BYTES_MAX:
            self._begin_again(load)
            return
        self.put(load)
        if sum(map(_moved_bytes, self._loads.values())) > ALL_MOVED_BYTES_MAX:
            self._begin_again(max(self._loads.values(), key=_moved_bytes))

    def _begin_again(self, load: Load, reason: str = "too many rows have changed their keys") -> None:
        log.info("loading begins again", table=str(load), reason=reason)
        self.drop(load.oid)


def _moved_bytes(load: Load) -> int:
    return len(json.dumps(load.moved))  # the size in JSON, where a character may take twelve bytes


def _is_complete(loaded: Loaded) -> bool:
    return loaded.state not in ("cancelled", "stale")
