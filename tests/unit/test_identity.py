"""Unit tests of pgsluice.identity: which replica identity the rows of a partitioned table have."""

import pytest

from pgsluice.identity import Identity, Partitions, one_identity_fits, with_identity_of_partitions, with_noted_identity
from pgsluice.relation import Column, PgType, Relation, identity_of

INT4 = PgType(23, "pg_catalog", "int4")
ID, CODE, BOTH = frozenset({"id"}), frozenset({"code"}), frozenset({"id", "code"})


def table(identity: str, *keys: str, partition_keys: tuple[frozenset[str] | None, ...] = ()) -> Relation:
    columns = tuple(Column(name, INT4, -1, name in keys or identity == "f") for name in ("id", "code", "note"))
    return Relation(1, "public", "parts", identity, columns, partition_keys)


@pytest.mark.parametrize(
    ("root", "partitions", "fits"),
    [
        (ID, [], True),
        (ID, [ID, ID], True),
        (ID, [CODE], False),
        (ID, [ID, CODE], False),
        (ID, [BOTH], False),
        (frozenset(), [CODE, CODE], True),
        (frozenset(), [ID, CODE], False),
    ],
)
def test_one_identity_fits_only_partitions_with_the_same_key(
    root: frozenset[str], partitions: list[frozenset[str]], *, fits: bool
) -> None:
    assert one_identity_fits(root, partitions, None) is fits


@pytest.mark.parametrize(
    ("unique", "fits"), [((), False), ((CODE,), False), ((BOTH,), False), ((ID,), True), ((CODE, ID), True)]
)
def test_a_key_of_partitions_has_to_be_unique_in_the_root(unique: tuple[frozenset[str], ...], *, fits: bool) -> None:
    assert one_identity_fits(frozenset(), [ID], unique) is fits
    assert one_identity_fits(ID, [ID], ())


def test_a_key_with_more_columns_than_a_unique_index_is_unique() -> None:
    assert one_identity_fits(frozenset(), [BOTH], [ID])


@pytest.mark.parametrize("identity", ["f", "n"])
def test_a_root_without_a_key_gets_that_of_its_partitions(identity: str) -> None:
    assert with_identity_of_partitions(table(identity), {ID}, Partitions({}, (ID,))) == table("d", "id")


def test_a_root_with_the_key_of_its_partitions_stays_the_same() -> None:
    assert with_identity_of_partitions(table("d", "id"), {ID, frozenset()}, Partitions({})) == table("d", "id")
    assert with_identity_of_partitions(table("f"), {frozenset()}, Partitions({})) == table("f")


def test_partitions_with_different_keys_give_the_root_no_identity() -> None:
    assert with_identity_of_partitions(table("f"), {ID, CODE}, Partitions({})) is None


def test_without_old_rows_no_identity_is_needed() -> None:
    inserts = Partitions({}, (), sends_old_rows=False)
    assert with_identity_of_partitions(table("f"), {ID, CODE}, inserts) == table("f")
    assert with_identity_of_partitions(table("n"), {ID}, inserts) == table("n")


class TestNoted:
    """The identities that the protocol has shown, and the catalog's view of the partitions."""

    def test_a_table_without_partitions_has_its_own_identity(self) -> None:
        noted = table("f", partition_keys=(ID,))
        assert with_noted_identity(noted, {2: ID}, None) == table("f")

    def test_partitions_have_the_identity_that_was_noted_even_if_it_has_changed_since(self) -> None:
        found = with_noted_identity(table("f", partition_keys=(ID,)), {2: ID}, Partitions({2: CODE}))
        assert found is not None
        assert identity_of(found) == ID

    def test_partitions_that_do_not_exist_any_more_count(self) -> None:
        assert with_noted_identity(table("f", partition_keys=(CODE, ID)), {2: ID, 3: CODE}, Partitions({2: ID})) is None

    def test_an_identity_from_before_the_present_descriptions_counts(self) -> None:
        assert with_noted_identity(table("f", partition_keys=(CODE, ID)), {2: ID}, Partitions({2: ID})) is None

    def test_the_catalog_shows_an_identity_that_the_protocol_did_not_show(self) -> None:
        root, partitions = table("f", partition_keys=(None,)), Partitions({2: ID, 3: CODE, 4: frozenset()})
        found = with_noted_identity(root, {2: None, 4: None, 5: None}, partitions)
        assert found is not None
        assert identity_of(found) == ID


def test_identities_are_alike_if_the_same_columns_are_sent() -> None:
    root = Identity("public", "parts", "f", frozenset())
    assert root.is_like(Identity("public", "low", "f", frozenset(), (ID,)))
    assert not root.is_like(Identity("public", "low", "n", frozenset()))
    assert Identity("public", "parts", "d", ID).is_like(Identity("public", "low", "i", ID))
    assert not root.is_like(Identity("public", "low", "d", ID))
