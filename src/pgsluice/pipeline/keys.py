"""The keys of tables, and the replica identities of partitioned tables, on which the keys depend.

``tests/unit/pipeline/test_encoders.py`` covers this module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgsluice.errors import TableRefused
from pgsluice.identity import with_identity_of_partitions, with_noted_identity
from pgsluice.pipeline.ends import Registry, Source
from pgsluice.printable import quoted
from pgsluice.relation import PublishedName, Relation, identity_of
from pgsluice.tables import TablePolicy


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a table. ``columns`` is empty if the table has no key.

    ``former``: the columns of the key that the table may have had before, or None if all rows have values in
    ``columns``.
    """

    columns: tuple[str, ...] = ()
    former: tuple[str, ...] | None = None


def differing_identities(table: str) -> TableRefused:
    """Return the error for a partitioned table if no single replica identity fits the table and its partitions."""
    return TableRefused(
        f"Table {table} and its partitions do not all have the same replica identity, so PostgreSQL does not send "
        "the old values of the same columns for each row, or these do not identify a row of the table. Give the table "
        "and all partitions the same replica identity with ALTER TABLE ... REPLICA IDENTITY, for example FULL."
    )


class Keys:
    """Finds the keys of tables, with the help of the catalog and of the keys that were registered before."""

    def __init__(self, source: Source, registry: Registry) -> None:
        self._source = source
        self._registry = registry
        self.partitions: Mapping[int, Mapping[int, frozenset[str] | None]] = {}
        """The replica identities of partitions, as in ``RelationCache.partitions`` of the session."""

    async def identified(self, relation: Relation) -> Relation:
        """Return the table with the replica identity that decides which columns its old rows have.

        Raise TableRefused if its partitions have different replica identities.
        """
        if not relation.partition_keys:
            return relation
        noted = self.partitions.get(relation.oid, {})
        return _fitting(with_noted_identity(relation, noted, await self._source.partitions(relation.oid)), relation)

    async def identified_now(self, root: Relation) -> Relation:
        """Return a partitioned table with the replica identity that its partitions have now.

        Raise TableRefused if its partitions have different replica identities.
        """
        partitions = await self._source.partitions(root.oid)
        if partitions is None:
            return root
        return _fitting(with_identity_of_partitions(root, partitions.keys.values(), partitions), root)

    async def of(self, relation: Relation, policy: TablePolicy, space: str) -> Key:
        """Return the table's key. Raise TableRefused if a column of the key is not published."""
        identity = [column.name for column in relation.columns if column.is_key]
        is_partial = relation.replica_identity in "di" and bool(identity)
        if policy.keys is not None:
            if is_partial and not set(policy.keys) <= set(identity):
                raise TableRefused(
                    f"`keys` of table {relation} name columns outside its replica identity "
                    f"({', '.join(map(quoted, identity))}). PostgreSQL does not send the old values of such columns: "
                    "set REPLICA IDENTITY FULL, or choose other columns."
                )
            return Key(tuple(policy.keys))
        if is_partial:
            await self._check_published(relation)
            return Key(tuple(identity))
        published = {column.name for column in relation.columns}
        primary_key = await self._source.primary_key(relation.oid)
        history = await self._registry.keys(f"{policy.topic}-key", space)
        if primary_key is not None and set(primary_key) <= published:
            former = history.last_among(published, besides=primary_key)
            return Key(primary_key, former or ()) if primary_key else Key()
        # The catalog shows the table as it is now, but the row may be older. After the row was written, the table may
        # have been dropped, or a column of the primary key may have been renamed or replaced. In these cases, use the
        # key that was registered last.
        last = history.last_among(published)
        if last is not None:
            return Key(last, ())
        if primary_key is None:
            return Key()
        raise _not_published(relation, primary_key)

    async def _check_published(self, relation: Relation) -> None:
        """Raise TableRefused if the publications leave out a column of the replica identity.

        The other columns of the identity do not identify a row. The catalog shows the present identity, but the row may
        be older. So a column that the row lacks is ignored if it is published now.
        """
        identity = await self._source.identity(relation.oid)
        lacking = identity - {column.name for column in relation.columns}
        if not lacking or not identity_of(relation) < identity:
            return
        name = PublishedName(relation.oid, relation.namespace, relation.name, len(relation.columns), is_trusted=True)
        async for described in self._source.published_relations([name]):
            if lacking <= {column.name for column in described.columns}:
                return
        raise _not_published(relation, sorted(identity))


def _fitting(found: Relation | None, table: Relation) -> Relation:
    """Return ``found``. Raise TableRefused if it is None, because no single replica identity fits all partitions."""
    if found is None:
        raise differing_identities(str(table))
    return found


def _not_published(relation: Relation, key: Sequence[str]) -> TableRefused:
    return TableRefused(
        f"The key of table {relation} ({', '.join(map(quoted, key))}) is not among its published columns. Publish all "
        "columns of the key, or name another key with `keys` in [[tables.rules]]."
    )
