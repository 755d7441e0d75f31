"""The replica identity of partitioned tables, whose rows a publication sends as rows of their root.

The identity of the row's partition, and not that of the root, decides which columns of the old row the server sends.
:class:`.relation.RelationCache` notes the identities of partitions, as far as the protocol shows them. The catalog
shows the others, and whether a key is unique in the whole table.

https://www.postgresql.org/docs/current/sql-createpublication.html
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pgsluice.relation import Relation, identity_of


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of a root, as the catalog describes them now.

    ``keys``: the columns of the replica identity of each partition that has rows, by OID. ``unique``: sets of columns
    that make a key unique in the whole table if the key includes such a set, namely the columns of each unique index of
    the root, and those by which the table is partitioned. It is None if the root does not exist any more.
    ``sends_old_rows``: whether a publication includes updates or deletes.
    """

    keys: Mapping[int, frozenset[str]]
    unique: tuple[frozenset[str], ...] | None = None
    sends_old_rows: bool = True


def one_identity_fits(
    root: frozenset[str], partitions: Collection[frozenset[str]], unique: Collection[frozenset[str]] | None
) -> bool:
    """Return whether the server sends the same columns of old rows for all partitions, and these identify a row.

    ``root`` is the set of columns in the root's replica identity. ``partitions`` contains such a set for each
    partition. If the server sends all columns of a partition's old rows, or none, ``partitions`` has no set for it.
    ``unique`` is as in :class:`Partitions`. A key of a partition is unique only among the rows of this partition.
    """
    keys = set(partitions)
    if keys <= {root}:
        return True
    (key, *others), is_unique = keys, unique is None or any(one <= key for key in keys for one in unique)
    return bool(key) and not others and not root and is_unique


def with_identity_of_partitions(
    root: Relation, keys: Collection[frozenset[str]], partitions: Partitions
) -> Relation | None:
    """Return a root with the replica identity of its partitions, or None if no single identity fits all partitions.

    If a publication sends the rows of partitions as those of their root, PostgreSQL describes the root with the root's
    replica identity. But the identity of the row's partition decides which columns of the old row are sent. So an old
    row that is marked as complete may have only the columns of a key, and null in all others. ``keys`` has the columns
    of the partitions' identities. If no old rows are sent, the identity does not matter.
    """
    described, keys = replace(root, partition_keys=()), set(keys) - {frozenset()}
    if not one_identity_fits(identity_of(root), keys, partitions.unique):
        return None if partitions.sends_old_rows else described
    if keys <= {identity_of(root)}:
        return described
    (key,) = keys
    columns = tuple(replace(column, is_key=column.name in key) for column in root.columns)
    return replace(described, replica_identity="d", columns=columns)


def with_noted_identity(
    root: Relation, noted: Mapping[int, frozenset[str] | None], partitions: Partitions | None
) -> Relation | None:
    """Return a table with the replica identity of its rows, or None if no single identity fits all its partitions.

    ``noted`` is the table's entry in ``RelationCache.partitions``. It counts even for partitions that were dropped or
    detached since, because their rows can still arrive. ``partitions`` is None if the table has no partitions.
    """
    if partitions is None:
        return replace(root, partition_keys=())
    unknown = [oid for oid, key in noted.items() if key is None]
    keys = {key for key in root.partition_keys if key is not None}
    keys |= {partitions.keys[oid] for oid in unknown if oid in partitions.keys}
    return with_identity_of_partitions(root, keys, partitions)


@dataclass(frozen=True, slots=True)
class Identity:
    """The replica identity of a table. ``kind`` is pg_class.relreplident. ``key`` has its columns, if any.

    ``unique`` is as in :class:`Partitions`.
    """

    schema: str
    table: str
    kind: str
    key: frozenset[str]
    unique: tuple[frozenset[str], ...] = ()

    def is_like(self, other: "Identity") -> bool:
        """Return whether the server sends the same columns of old rows under both identities."""
        return self.key == other.key if self.key or other.key else self.kind == other.kind
