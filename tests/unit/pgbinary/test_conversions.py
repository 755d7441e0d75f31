"""Unit tests of pgsluice.pgbinary.conversions."""

import tracemalloc

import pytest

from pgsluice.pgbinary.base import Unreadable
from pgsluice.pgbinary.conversions import (
    BUILT_IN,
    LEVELS_MAX,
    Element,
    TypeDescription,
    conversions,
    elements,
    is_built_in,
    unknown_arrays,
    unknown_types,
)
from pgsluice.relation import BUILTIN_TYPES, CATALOG, Column, PgType, Relation

WITHOUT_SEND_FUNCTION = {"abstime", "reltime", "tinterval", "aclitem", "gtsvector"}
"""The types without a send function. The first three were removed before values could be sent in binary format."""

INT_7 = bytes.fromhex("00000007")


def table(*types: PgType) -> Relation:
    columns = tuple(Column(f"c{index}", pg_type, -1, is_key=False) for index, pg_type in enumerate(types))
    return Relation(16_385, "public", "orders", "d", columns)


def text(pg_type: PgType, sent: str, *described: TypeDescription) -> bytes:
    (to_text,) = conversions(table(pg_type), described)
    return to_text(bytes.fromhex(sent))


def test_types_with_many_parts_share_the_built_in_descriptions() -> None:
    """Share the descriptions of built-in types, because a table's types can have 100,000 parts."""
    described = [TypeDescription(oid, "public", f"t{oid}", "record_send", (23, 25)) for oid in range(20_000, 21_000)]
    relation = table(PgType(20_000, "public", "t20000"))
    tracemalloc.start()
    found = conversions(relation, described)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0](bytes.fromhex("00000001 00000017 00000004 00000007")) == b"(7)"
    assert taken < 2_000 * len(described)


def test_every_built_in_type_that_is_sent_has_its_conversion() -> None:
    names = {pg_type.name for pg_type in BUILTIN_TYPES.values()}
    assert {name for name in names - BUILT_IN.keys() if not name.startswith("_")} == WITHOUT_SEND_FUNCTION
    assert {name for name in names if name.removeprefix("_") not in WITHOUT_SEND_FUNCTION} == BUILT_IN.keys()


@pytest.mark.parametrize(
    ("name", "sent", "expected"),
    [
        ("int4", "00000007", b"7"),
        ("jsonb", "017b7d", b"{}"),
        ("regclass", "000004eb", b"1259"),
        ("_int4", "00000001 00000000 00000017 00000001 00000001 00000004 00000007", b"{7}"),
        ("_box", "00000000 00000000 0000025b", b"{}"),
        ("int8range", "02 00000008 0000000000000001 00000008 0000000000000005", b"[1,5)"),
        ("_int4multirange", "00000001 00000000 00001183 00000001 00000001 00000004 00000000", b"{{}}"),
        ("oidvector", "00000001 00000000 0000001a 00000001 00000000 00000004 00000007", b"7"),
    ],
)
def test_built_in_types_go_by_their_name(name: str, sent: str, expected: bytes) -> None:
    quoted = b'{"{}"}' if expected == b"{{}}" else expected
    assert text(PgType(0, CATALOG, name), sent) == quoted


def test_only_types_that_are_not_built_in_are_queried() -> None:
    mood, cube, domain = PgType(16_400, "public", "mood"), PgType(16_401, "public", "cube"), PgType(9, CATALOG, "int4")
    newer, acl = PgType(9_999, CATALOG, "9999"), PgType(1033, CATALOG, "aclitem")
    assert unknown_types(table(cube, domain, mood, acl, newer, mood)) == [9_999, 16_400, 16_401]
    assert is_built_in(23)
    assert not is_built_in(16_400)


def described(oid: int, send: str, *parts: int, delimiter: str = ",") -> TypeDescription:
    return TypeDescription(oid, "public", f"t{oid}", send, parts, delimiter)


MOOD = described(16_400, "enum_send")
MOODS = described(16_401, "array_send", 16_400)
PRICE = described(16_402, "domain", 23)
PAIR = described(16_403, "record_send", 16_400, 16_402)
SPAN = described(16_404, "range_send", 16_402)
SPANS = described(16_405, "multirange_send", 16_404)
CUBES = described(16_406, "array_send", 16_407, delimiter=";")
CUBE = described(16_407, "cube_send")
TYPES = (MOOD, MOODS, PRICE, PAIR, SPAN, SPANS, CUBES, CUBE)


@pytest.mark.parametrize(
    ("oid", "sent", "expected"),
    [
        (16_400, "736164", b"sad"),
        (16_401, "00000001 00000000 00004010 00000001 00000001 00000003 736164", b"{sad}"),
        (16_402, "00000007", b"7"),
        (16_403, "00000003 00004010 00000003 736164 00004012 00000004 00000007 00000019 00000001 78", b"(sad,7,x)"),
        (16_404, "12 00000004 00000007", b"[7,)"),
        (16_405, "00000001 00000009 12 00000004 00000007", b"{[7,)}"),
        (16_406, "00000001 00000000 00004017 00000002 00000001 00000004 80000000 00000004 80000000", b"{();()}"),
        (16_407, "80000000", b"()"),
    ],
)
def test_other_types_are_converted_as_the_catalog_describes(oid: int, sent: str, expected: bytes) -> None:
    assert text(PgType(oid, "public", "anything"), sent, *TYPES) == expected


def test_the_type_of_a_dropped_extension_is_converted_by_its_name() -> None:
    assert text(PgType(16_400, "public", "citext"), "78") == b"x"
    assert text(PgType(16_400, "public", "hstore"), "00000000") == b""


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        ((), r"type 16401 is not in the catalog \(any more\)"),
        ((MOODS,), r"type 16400 is not in the catalog \(any more\)"),
        ((MOODS, described(16_400, "geometry_send")), r"the binary format of public\.t16400 is not known"),
        ((MOODS, described(16_400, "")), r"the binary format of public\.t16400 is not known"),
        ((MOODS, described(16_400, "range_send")), r"the binary format of public\.t16400 is not known"),
    ],
)
def test_unknown_types_are_not_guessed(described: tuple[TypeDescription, ...], reason: str) -> None:
    sent = "00000001 00000000 00004010 00000001 00000001 00000003 736164"
    with pytest.raises(Unreadable, match=f"^{reason}$"):
        text(PgType(16_401, "public", "_mood"), sent, *described)


def test_arrays_are_recognised_by_their_names() -> None:
    moods, mood, ints = PgType(16_401, "public", "_mood"), PgType(16_400, "public", "mood"), PgType(1, CATALOG, "_int4")
    assert unknown_arrays(table(mood, moods, ints, moods)) == [16_401]


def test_the_elements_of_arrays_are_found() -> None:
    prices = described(16_410, "array_send", 16_402)
    domain = described(16_411, "domain", 16_401)
    nested = described(16_412, "array_send", 16_411)
    newer = described(16_413, "array_send", 9_999)
    found = elements(table(PgType(16_401, "public", "_mood")), (*TYPES, prices, domain, nested, newer))
    moods = Element(PgType(16_400, "public", "t16400"))
    assert found == {
        16_401: moods,
        16_406: Element(PgType(16_407, "public", "t16407"), ";"),
        16_410: Element(BUILTIN_TYPES[23]),
        16_411: moods,
        16_412: Element(PgType(16_401, "public", "t16401")),
        16_413: None,
    }


def test_the_elements_of_a_dropped_array_type_are_unknown() -> None:
    """Return None for the elements of an array type that was dropped. Their delimiter is unknown as well."""
    mood, moods = PgType(16_400, "public", "mood"), PgType(16_401, "public", "_mood")
    assert elements(table(mood, moods), []) == {16_401: None}


def test_names_of_elements_may_have_dots() -> None:
    odd = TypeDescription(16_400, "my.app", "my.hstore", "record_send")
    found = elements(table(PgType(16_401, "my.app", "_my.hstore")), (odd, MOODS))
    assert found == {16_401: Element(PgType(16_400, "my.app", "my.hstore"))}


# --- types nested in one another


def chain(send: str, length: int) -> list[TypeDescription]:
    """Return types that are nested in one another. The first type consists of int4."""
    oids = range(20_000, 20_000 + length)
    return [described(oid, send, 23 if oid == oids[0] else oid - 1) for oid in oids]


def bushy(levels: int) -> list[TypeDescription]:
    """Return two composites for each level. Each of them consists of the two composites of the level below."""
    found: list[TypeDescription] = []
    for level in range(levels):
        below = tuple(one.oid for one in found[-2:])
        found += [described(20_000 + 2 * level + number, "record_send", *below) for number in range(2)]
    return found


def nested(levels: int, value: str) -> str:
    """Return the value of the last composite of :func:`chain`. The innermost value is an int4."""
    sent = bytes.fromhex(value)
    for level in range(levels):
        part = 23 if level == 0 else 20_000 + level - 1
        sent = b"".join(number.to_bytes(4, "big") for number in (1, part, len(sent))) + sent
    return sent.hex()


def test_every_type_is_made_once() -> None:
    """Make each conversion once. It would take too long to follow each of the 2 ** 31 ways through the references."""
    types = bushy(LEVELS_MAX)
    assert text(PgType(types[-1].oid, "public", "bush"), "00000000", *types) == b"()"


def test_types_may_be_nested_this_deeply() -> None:
    types = chain("record_send", LEVELS_MAX)
    sent = nested(LEVELS_MAX, "00000007")
    with pytest.raises(Unreadable, match="longer than 64 MiB"):  # the quotes are doubled at each level
        text(PgType(types[-1].oid, "public", "chain"), sent, *types)
    assert text(PgType(types[2].oid, "public", "chain"), nested(3, "00000007"), *types) == b'("(""(7)"")")'
    domains = chain("domain", LEVELS_MAX)
    assert text(PgType(domains[-1].oid, "public", "chain"), "00000007", *domains) == b"7"


@pytest.mark.parametrize("send", ["record_send", "array_send", "domain", "range_send"])
@pytest.mark.parametrize("length", [LEVELS_MAX + 1, 5_000])
def test_types_that_are_nested_too_deeply_are_not_read(send: str, length: int) -> None:
    types = chain(send, length)
    reason = rf"^public\.t{types[-1].oid} consists of types that are nested more than {LEVELS_MAX} levels deep$"
    with pytest.raises(Unreadable, match=reason):
        text(PgType(types[-1].oid, "public", "chain"), "00000007", *types)


@pytest.mark.parametrize("send", ["record_send", "array_send", "domain", "range_send"])
def test_types_that_consist_of_themselves_are_not_read(send: str) -> None:
    ring = [described(20_000, send, 20_001), described(20_001, send, 20_000)]
    with pytest.raises(Unreadable, match="levels deep"):
        text(PgType(20_000, "public", "ring"), "00000007", *ring)
    assert elements(table(PgType(20_000, "public", "_ring")), ring) == {}


def test_arrays_that_are_nested_too_deeply_stay_text() -> None:
    column = table(PgType(1, "public", "x"))
    whole = elements(column, chain("array_send", LEVELS_MAX))
    assert len(whole) == LEVELS_MAX
    deeper = elements(column, chain("array_send", 5_000))
    assert deeper == whole


def test_domains_that_are_nested_too_deeply_stay_text() -> None:
    domains = chain("domain", LEVELS_MAX + 1)
    array = described(30_000, "array_send", 23)
    bottom = described(20_000, "domain", 30_000)
    found = elements(table(PgType(1, "public", "x")), [array, bottom, *domains[1:]])
    assert set(found) == {30_000, *(one.oid for one in domains[:-1])}


@pytest.mark.parametrize(
    "odd",
    [
        described(20_000, "array_send"),
        described(20_000, "array_send", 23, 25),
        described(20_000, "array_send", 23, delimiter=""),
        described(20_000, "array_send", 23, delimiter="\u20ac"),
        described(20_000, "domain"),
        described(20_000, "domain", 1007, 1007),
    ],
)
def test_impossible_descriptions_are_not_arrays(odd: TypeDescription) -> None:
    assert elements(table(PgType(20_000, "public", "_odd")), [odd]) == {}
