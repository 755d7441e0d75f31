"""Unit tests of pgsluice.relation."""

import sys
import tracemalloc
from collections.abc import Set as AbstractSet
from dataclasses import replace

import pytest

from pgsluice.errors import ProtocolError, TooManyDescriptions
from pgsluice.pgoutput import messages
from pgsluice.relation import (
    BUILTIN_TYPES,
    COLUMNS_AT_ONCE,
    Column,
    PgType,
    PublishedName,
    Relation,
    RelationCache,
    in_portions,
    packed,
    size_of,
    unpacked,
)

NO = False
"""Stands for a column outside of the key."""


def relation_message(
    *columns: messages.RelationColumn, oid: int = 16385, namespace: str = "public", identity: str = "d"
) -> messages.Relation:
    return messages.Relation(None, oid, namespace, "orders", identity, columns)


ID = messages.RelationColumn(is_key=True, name="id", type_oid=23, typmod=-1)
NOTE = messages.RelationColumn(is_key=False, name="note", type_oid=1043, typmod=104)


def test_a_relation_is_described_with_the_names_of_its_types() -> None:
    assert RelationCache().on_relation(relation_message(ID, NOTE)) == Relation(
        oid=16385,
        namespace="public",
        name="orders",
        replica_identity="d",
        columns=(
            Column("id", PgType(23, "pg_catalog", "int4"), typmod=-1, is_key=True),
            Column("note", PgType(1043, "pg_catalog", "varchar"), typmod=104, is_key=False),
        ),
    )


def test_an_empty_namespace_means_pg_catalog() -> None:
    cache = RelationCache()
    cache.on_type(messages.Type(None, 16400, "", "numeric"))
    relation = cache.on_relation(relation_message(messages.RelationColumn(NO, "a", 16400, -1), namespace=""))
    assert relation.namespace == "pg_catalog"
    assert relation.columns[0].type == PgType(16400, "pg_catalog", "numeric")


def test_a_described_type_goes_by_its_own_name() -> None:
    cache = RelationCache()
    cache.on_type(messages.Type(None, 16400, "public", "mood"))
    cache.on_type(messages.Type(None, 16400, "public", "temper"))
    relation = cache.on_relation(relation_message(messages.RelationColumn(NO, "a", 16400, -1)))
    assert relation.columns[0].type == PgType(16400, "public", "temper")


def test_a_type_of_a_newer_server_goes_by_its_number() -> None:
    relation = RelationCache().on_relation(relation_message(messages.RelationColumn(NO, "a", 9999, -1)))
    assert relation.columns[0].type == PgType(9999, "pg_catalog", "9999")


def test_equal_versions_of_a_table_are_the_same_key() -> None:
    """Compare versions by content. Each session, and each reading from disk, makes a new object."""
    versions = {RelationCache().on_relation(relation_message(ID, NOTE)): "both columns"}
    assert versions[RelationCache().on_relation(relation_message(ID, NOTE))] == "both columns"
    assert RelationCache().on_relation(relation_message(ID)) not in versions


def test_the_same_description_gives_the_same_object() -> None:
    cache = RelationCache()
    first = cache.on_relation(relation_message(ID, NOTE))
    assert cache.on_relation(relation_message(ID, NOTE)) is first
    assert cache[16385] is first


def test_a_new_description_takes_the_place_of_the_old_one() -> None:
    cache = RelationCache()
    first = cache.on_relation(relation_message(ID, NOTE))
    second = cache.on_relation(relation_message(ID))
    assert second != first
    assert cache[16385] is second


def test_relations_are_told_apart_by_oid() -> None:
    cache = RelationCache()
    one = cache.on_relation(relation_message(ID))
    other = cache.on_relation(relation_message(ID, oid=16386))
    assert (cache[16385], cache[16386]) == (one, other)


def test_a_table_may_have_no_columns() -> None:
    assert RelationCache().on_relation(relation_message()).columns == ()


def test_a_relation_never_described_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match=r"relation 7 .* \(expected a Relation message before it\)"):
        RelationCache()[7]


@pytest.mark.parametrize("names", [("a", "a"), ("",), ("a", "", "b")])
def test_columns_without_distinct_names_are_a_protocol_error(names: tuple[str, ...]) -> None:
    columns = [messages.RelationColumn(NO, name, 23, -1) for name in names]
    with pytest.raises(ProtocolError, match=r"Relation message of public\.orders: column names"):
        RelationCache().on_relation(relation_message(*columns))


@pytest.mark.parametrize(
    ("oid", "name"),
    [(16, "bool"), (1000, "_bool"), (18, "char"), (5069, "xid8"), (271, "_xid8"), (6157, "_int8multirange")],
)
def test_built_in_types_and_their_arrays_are_known(oid: int, name: str) -> None:
    assert BUILTIN_TYPES[oid] == PgType(oid, "pg_catalog", name)


def test_no_oid_of_a_built_in_type_is_listed_twice() -> None:
    assert len(BUILTIN_TYPES) == len({pg_type.name for pg_type in BUILTIN_TYPES.values()})
    assert all(pg_type.oid == oid < 10_000 for oid, pg_type in BUILTIN_TYPES.items())


def test_a_version_can_be_packed() -> None:
    cache = RelationCache()
    cache.on_type(messages.Type(None, 16400, "public", "mood"))
    relation = cache.on_relation(relation_message(ID, messages.RelationColumn(NO, "é", 16400, 7)))
    assert unpacked(packed(relation)) == relation


def test_a_connection_does_not_describe_tables_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsluice.relation.DESCRIBED_MAX", 2)
    cache = RelationCache()
    for oid in (1, 2, 2):
        cache.on_relation(relation_message(ID, oid=oid))
    with pytest.raises(TooManyDescriptions, match="described more than 2 tables on one connection"):
        cache.on_relation(relation_message(ID, oid=3))


def test_tables_that_were_described_long_ago_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack old descriptions instead of dropping them, because the server does not describe a table again."""
    cache = RelationCache()
    cache.on_type(messages.Type(None, 16400, "public", "mood"))
    wide = [messages.RelationColumn(NO, f"é{number}", 16400, number) for number in range(1600)]
    expected = [cache.on_relation(relation_message(*wide, oid=oid)) for oid in range(4)]
    monkeypatch.setattr("pgsluice.relation.KEPT_BYTES_MAX", 2 * size_of(expected[0]))
    cache = RelationCache()
    cache.on_type(messages.Type(None, 16400, "public", "mood"))
    for oid in range(4):
        cache.on_relation(relation_message(*wide, oid=oid))
    assert [*cache.by_oid] == [2, 3]
    assert [cache[oid] for oid in (0, 1, 2, 3)] == expected
    assert [*cache.by_oid] == [2, 3]
    assert cache.on_relation(relation_message(*wide, oid=0)) == expected[0]
    assert [*cache.by_oid] == [3, 0]
    cache.on_relation(relation_message(ID, oid=1))
    assert cache[1].columns[0].name == "id"
    with pytest.raises(ProtocolError):
        cache[4]


def test_a_table_that_is_used_is_the_same_object_after_it_was_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the same object as before, because its encoder is found by the object's identity."""
    monkeypatch.setattr("pgsluice.relation.KEPT_BYTES_MAX", 1)
    cache = RelationCache()
    used = cache.on_relation(relation_message(ID))
    cache.on_relation(relation_message(ID, oid=1))
    assert [*cache.by_oid] == [1]
    assert cache[16385] is used
    cache.on_relation(relation_message(ID, oid=1))
    assert cache.on_relation(relation_message(ID)) is used


def test_packed_tables_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsluice.relation.KEPT_BYTES_MAX", 1)
    monkeypatch.setattr("pgsluice.relation.PACKED_BYTES_MAX", 250)
    cache = RelationCache()
    for _ in range(10):
        cache.on_relation(relation_message(ID, oid=1))
        cache.on_relation(relation_message(NOTE, oid=1))
        cache.on_relation(relation_message(ID, oid=2))
    for oid in range(3, 5):
        cache.on_relation(relation_message(ID, oid=oid))
    with pytest.raises(TooManyDescriptions, match="their names take more than 250 bytes on one connection"):
        cache.on_relation(relation_message(ID, oid=5))


@pytest.mark.parametrize("letter", ["x", "é", "語", "😀"])
def test_the_size_of_a_table_is_estimated_by_its_columns_and_their_names(letter: str) -> None:
    """Compare the estimate with the traced size. It must be more than two thirds and less than twice that size."""
    cache = RelationCache()
    wide = [messages.RelationColumn(NO, f"{number}{letter * 14}", 25, number) for number in range(1600)]
    names = sum(sys.getsizeof(column.name) for column in wide)  # they were allocated before tracemalloc starts
    tracemalloc.start()
    relation = cache.on_relation(relation_message(*wide))
    taken = tracemalloc.get_traced_memory()[0] + names
    tracemalloc.stop()
    assert 2 / 3 * taken < size_of(relation) < 2 * taken


def test_types_are_known_until_the_table_that_needs_them_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget old types. One transaction may use any number of types, and this must not end the session."""
    monkeypatch.setattr("pgsluice.relation.TYPES_MAX", 2)
    cache = RelationCache()
    for oid in (16400, 16401, 16400, 16402):
        cache.on_type(messages.Type(None, oid, "public", f"type {oid}"))
    columns = [messages.RelationColumn(NO, str(oid), oid, -1) for oid in (16400, 16401, 16402)]
    relation = cache.on_relation(relation_message(*columns))
    assert [column.type.name for column in relation.columns] == ["type 16400", "16401", "type 16402"]


def test_versions_of_a_table_share_the_columns_that_stay_the_same() -> None:
    """Share equal columns, because a transaction that repeatedly alters a wide table keeps many versions of it."""
    cache = RelationCache()
    first = cache.on_relation(relation_message(ID, NOTE))
    second = cache.on_relation(relation_message(NOTE, ID))
    assert second != first
    assert second.columns[0] is first.columns[1]
    assert second.columns[1] is first.columns[0]


@pytest.mark.parametrize(
    ("columns", "portions"),
    [
        ([], []),
        ([3, 1600], [[3, 1600]]),
        ([COLUMNS_AT_ONCE - 1, 1, 1], [[COLUMNS_AT_ONCE - 1, 1], [1]]),
        ([COLUMNS_AT_ONCE + 1, 1], [[COLUMNS_AT_ONCE + 1], [1]]),
    ],
)
def test_tables_are_queried_in_portions_with_a_limited_number_of_columns(
    columns: list[int], portions: list[list[int]]
) -> None:
    tables = [PublishedName(oid, "public", "orders", number, True) for oid, number in enumerate(columns)]  # noqa: FBT003
    assert [[table.columns for table in some] for some in in_portions(tables)] == portions


CODE = messages.RelationColumn(is_key=True, name="code", type_oid=23, typmod=-1)
KEYS = {"id": ID, "code": CODE, "note": NOTE}


def described(oid: int, identity: str, *key: str) -> messages.Relation:
    """Return the description of a table with three columns. With identity ``f``, all are flagged as key columns."""
    columns = (
        messages.RelationColumn(name in key or identity == "f", name, one.type_oid, one.typmod)
        for name, one in KEYS.items()
    )
    return relation_message(*columns, oid=oid, identity=identity)


def rooted(*messages: messages.Relation) -> Relation:
    """Return the description of table 1 after these messages and a row of the table."""
    cache = RelationCache()
    learn(cache, *messages)
    return cache[1]


def learn(cache: RelationCache, *messages: messages.Relation) -> None:
    """Take pairs of descriptions, of table 1 and of the partition that has the following row."""
    for number, message in enumerate(messages):
        cache.on_relation(message)
        if number % 2:
            cache.on_row(1)


def keys_of(cache: RelationCache) -> list[AbstractSet[str] | None]:
    """Return the identities that are noted for the partitions of table 1."""
    return list(cache[1].partition_keys)


class TestPartitions:
    """A publication can send the rows of partitions as rows of their root. PostgreSQL describes the root first."""

    def test_the_identities_of_partitions_are_noted_if_they_differ_from_that_of_the_root(self) -> None:
        root = rooted(described(1, "f"), described(2, "d", "id"), described(1, "f"), described(3, "f"))
        assert root.partition_keys == (frozenset({"id"}),)
        assert rooted(described(1, "d", "id"), described(2, "i", "code")).partition_keys == (frozenset({"code"}),)

    @pytest.mark.parametrize("partition", [described(2, "d", "id"), described(2, "f"), described(2, "n")])
    def test_a_root_with_an_own_key_stays_the_same(self, partition: messages.Relation) -> None:
        cache = RelationCache()
        root = cache.on_relation(described(1, "d", "id"))
        cache.on_relation(partition)
        cache.on_row(1)
        assert cache[1] is root

    def test_the_last_description_of_a_partition_counts(self) -> None:
        cache = RelationCache()
        learn(cache, described(1, "f"), described(2, "d", "id"), described(1, "f"), described(3, "i", "code"))
        assert keys_of(cache) == [{"code"}, {"id"}]
        learn(cache, described(1, "f"), described(2, "d", "id"))
        assert keys_of(cache) == [{"code"}, {"id"}]
        learn(cache, described(1, "f"), described(2, "i", "code"))
        assert keys_of(cache) == [{"code"}]
        learn(cache, described(1, "f"), described(2, "f"), described(1, "f"), described(3, "n"))
        assert keys_of(cache) == []

    def test_a_new_primary_key_of_the_root_alters_the_partitions(self) -> None:
        cache = RelationCache()
        learn(cache, described(1, "d", "id"), described(2, "d", "id"), described(1, "d", "id"), described(3, "d", "id"))
        learn(cache, described(1, "d", "code"), described(2, "d", "code"))
        assert keys_of(cache) == []

    def test_new_columns_of_the_root_alter_the_partitions(self) -> None:
        cache = RelationCache()
        learn(cache, described(1, "f"), described(2, "d", "id"))
        assert cache.on_relation(relation_message(ID, CODE, oid=1, identity="f")).partition_keys == ()

    def test_another_replica_identity_or_name_of_the_root_does_not_alter_the_partitions(self) -> None:
        cache = RelationCache()
        learn(cache, described(1, "d", "id"), described(2, "d", "id"), described(1, "f"), described(3, "f"))
        assert keys_of(cache) == [{"id"}]
        learn(cache, replace(described(1, "f"), name="renamed"), described(3, "f"))
        assert keys_of(cache) == [{"id"}]

    @pytest.mark.parametrize("oid", [2, 3, None])
    def test_only_a_row_of_the_root_shows_that_the_next_table_is_a_partition(self, oid: int | None) -> None:
        """A TRUNCATE of several tables, for example, describes them without a row."""
        cache = RelationCache()
        learn(cache, described(1, "f"))
        cache.on_relation(described(2, "d", "id"))
        cache.on_other() if oid is None else cache.on_row(oid)
        cache.on_row(1)
        assert (keys_of(cache), cache.partitions) == ([], {})

    def test_a_partition_that_is_described_with_other_columns_has_an_unknown_identity(self) -> None:
        cache = RelationCache()
        learn(cache, described(1, "f"), relation_message(ID, oid=2))
        assert (keys_of(cache), cache.partitions) == ([None], {1: {2: None}})

    def test_packed_tables_keep_the_keys_of_their_partitions(self) -> None:
        for partition in (described(2, "d", "id"), relation_message(ID, oid=2)):
            root = rooted(described(1, "f"), partition)
            assert unpacked(packed(root)) == root

    def test_the_memory_for_keys_of_partitions_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pgsluice.relation.KEYS_BYTES_MAX", 1000)
        cache = RelationCache()
        learn(cache, described(1, "f"), described(2, "d", "id"), described(1, "f"))
        cache.on_relation(described(3, "d", "id"))
        with pytest.raises(TooManyDescriptions, match="tables whose keys take more than 1000 bytes"):
            cache.on_row(1)
