"""The conversion of each type from its binary format. Built-in types are found by name, others with the catalog.

``pipeline.encoders`` gets the conversions once per version of a relation that has values in binary format.

https://www.postgresql.org/docs/current/catalog-pg-type.html
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pgsluice.pgbinary import containers, geometry, numbers, search, strings, temporal
from pgsluice.pgbinary.base import ToText, Unreadable, version_1
from pgsluice.printable import quoted
from pgsluice.relation import BUILTIN_TYPES, CATALOG, PgType, Relation

LEVELS_MAX: Final = 32
"""How deeply types may be nested. For example, an array of a domain over a composite has three levels.

PostgreSQL has no such limit. Our limit bounds the nested calls for one value, the queries of the catalog, and the depth
of the Avro schema.
"""


@dataclass(frozen=True, slots=True)
class TypeDescription:
    """A type as pg_type describes it.

    ``send`` is its send function, or "domain" for a domain, which is sent as its base type. It is empty if the type has
    no send function. ``parts`` has the OIDs of its component types: an array's element, a domain's base type, a range's
    subtype, a multirange's range, the attributes of a composite.
    """

    oid: int
    namespace: str
    name: str
    send: str
    parts: tuple[int, ...] = ()
    delimiter: str = ","

    def __str__(self) -> str:
        """Return the name in the form for messages."""
        return quoted(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Element:
    """The elements of an array type that is not built in: their type and delimiter, as read from the catalog."""

    type: PgType
    delimiter: str = ","


_SCALARS: Final[dict[str, ToText]] = {
    "bool": numbers.boolean,
    "int2": numbers.int2,
    "int4": numbers.int4,
    "int8": numbers.int8,
    "float4": numbers.float4,
    "float8": numbers.float8,
    "numeric": numbers.numeric,
    "money": numbers.money,
    **dict.fromkeys(("oid", "xid", "cid"), numbers.oid),
    # The text of these types is a name that only the catalog knows. The binary format has the OID of the named object,
    # which we return as text.
    **dict.fromkeys(("regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype"), numbers.oid),
    **dict.fromkeys(("regconfig", "regdictionary", "regnamespace", "regrole", "regcollation"), numbers.oid),
    "xid8": numbers.xid8,
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "json", "xml", "refcursor"), strings.text),
    "char": strings.char,
    "bytea": strings.bytea,
    "uuid": strings.uuid,
    "jsonb": version_1,
    "jsonpath": version_1,
    "bit": strings.bit,
    "varbit": strings.bit,
    "inet": strings.inet,
    "cidr": strings.cidr,
    "macaddr": strings.macaddr(6),
    "macaddr8": strings.macaddr(8),
    "pg_lsn": strings.pg_lsn,
    "tid": strings.tid,
    "txid_snapshot": strings.snapshot,
    "pg_snapshot": strings.snapshot,
    "date": temporal.date,
    "time": temporal.time,
    "timetz": temporal.timetz,
    "timestamp": temporal.timestamp,
    "timestamptz": temporal.timestamptz,
    "interval": temporal.interval,
    "point": geometry.point,
    "line": geometry.line,
    "lseg": geometry.lseg,
    "box": geometry.box,
    "path": geometry.path,
    "polygon": geometry.polygon,
    "circle": geometry.circle,
    "tsvector": search.tsvector,
    "tsquery": search.tsquery,
    "int2vector": containers.old_vector(numbers.int2),
    "oidvector": containers.old_vector(numbers.oid),
}

_SUBTYPES: Final = {
    "int4": "int4",
    "int8": "int8",
    "num": "numeric",
    "ts": "timestamp",
    "tstz": "timestamptz",
    "date": "date",
}
_RANGES: Final = {f"{name}range": containers.range_(_SCALARS[subtype]) for name, subtype in _SUBTYPES.items()}
_MULTIRANGES: Final = {f"{name}multirange": containers.multirange(_RANGES[f"{name}range"]) for name in _SUBTYPES}
_ELEMENTS: Final = _SCALARS | _RANGES | _MULTIRANGES
_ARRAYS: Final[dict[str, ToText]] = {
    f"_{name}": containers.ArrayText(element, b";" if name == "box" else b",") for name, element in _ELEMENTS.items()
}

BUILT_IN: Final = _ELEMENTS | _ARRAYS
"""The conversions of the types of pg_catalog, by name."""

_BUILT_IN_BY_OID: Final = {oid: BUILT_IN[found.name] for oid, found in BUILTIN_TYPES.items() if found.name in BUILT_IN}

# The conversions of types of extensions, and of enums, by send function.
_BY_SEND: Final[dict[str, ToText]] = {
    "enum_send": strings.text,
    "citextsend": strings.text,
    "ltree_send": version_1,
    "lquery_send": version_1,
    "ltxtq_send": version_1,
    "cube_send": geometry.cube,
    "hstore_send": containers.hstore,
    "vector_send": geometry.vector,
}

# The conversions by name, for values that are still in the stream when the extension is gone from the catalog.
_BY_NAME: Final = {
    name: _BY_SEND[f"{name}send"] if name == "citext" else _BY_SEND[f"{name}_send"]
    for name in ("citext", "ltree", "lquery", "cube", "hstore", "vector")
}


def is_built_in(oid: int) -> bool:
    """Return whether a type with this OID is known without the catalog."""
    return oid in BUILTIN_TYPES


def unknown_types(relation: Relation) -> list[int]:
    """Return the OIDs of the columns' types that only the catalog can describe."""
    return sorted({column.type.oid for column in relation.columns if not _is_known(column.type)})


def _is_known(pg_type: PgType) -> bool:
    return pg_type.namespace == CATALOG and (pg_type.name in BUILT_IN or is_built_in(pg_type.oid))


def unknown_arrays(relation: Relation) -> list[int]:
    """Return the OIDs of unknown types that may be arrays. PostgreSQL names array types with a leading underscore."""
    unknown = set(unknown_types(relation))
    return sorted(
        {column.type.oid for column in relation.columns if column.type.name[:1] == "_" and column.type.oid in unknown}
    )


def elements(relation: Relation, described: Sequence[TypeDescription]) -> dict[int, Element | None]:
    """Return the element of each array type that the columns use, directly or nested, by the array's OID.

    The value is None if the type is gone from the catalog, because nobody knows whether that type was an array, and
    which delimiter it had. Arrays that are nested more than ``LEVELS_MAX`` levels deep are left out, so they stay text.
    """
    by_oid = {description.oid: description for description in described}
    gone = [oid for oid in unknown_arrays(relation) if oid not in by_oid]
    arrays = {oid: _element(oid, by_oid) for oid in by_oid if _is_array(oid, by_oid)}
    return dict.fromkeys(gone) | {oid: found for oid, found in arrays.items() if not _is_too_deep(oid, arrays)}


def _is_array(oid: int, described: Mapping[int, TypeDescription]) -> bool:
    base = described.get(_base(oid, described))
    if base is None or base.send != "array_send":
        return False
    return len(base.parts) == 1 == len(base.delimiter) and base.delimiter.isascii()


def _element(array_oid: int, described: Mapping[int, TypeDescription]) -> Element | None:
    array = described[_base(array_oid, described)]
    base = _base(array.parts[0], described)
    found = described.get(base)
    element = BUILTIN_TYPES.get(base) if found is None else PgType(base, found.namespace, found.name)
    return None if element is None else Element(element, array.delimiter)


def _base(oid: int, described: Mapping[int, TypeDescription]) -> int:
    """Return the OID of a domain's innermost base type, or ``oid`` if it is not a domain.

    If domains are nested too deeply, or contain themselves, the result is one of these domains.
    """
    for _ in range(LEVELS_MAX):
        found = described.get(oid)
        if found is None or found.send != "domain" or len(found.parts) != 1:
            break
        (oid,) = found.parts
    return oid


def _is_too_deep(oid: int, arrays: Mapping[int, Element | None]) -> bool:
    """Return whether arrays are nested more than ``LEVELS_MAX`` levels deep, or contain themselves."""
    for _ in range(LEVELS_MAX):
        element = arrays.get(oid)
        if element is None:
            return False
        oid = element.type.oid
    return oid in arrays


def conversions(relation: Relation, described: Sequence[TypeDescription]) -> list[ToText]:
    """Return the conversion of each column. If a type cannot be converted, its conversion always raises Unreadable."""
    made = _made({description.oid: description for description in described})
    return [_of_column(column.type, made) for column in relation.columns]


def _of_column(pg_type: PgType, made: Mapping[int, ToText]) -> ToText:
    # pgoutput sends the OID of a domain, but the name of its base type. So a domain over a built-in type is found by
    # name.
    if pg_type.namespace == CATALOG and pg_type.name in BUILT_IN:
        return BUILT_IN[pg_type.name]
    return made.get(pg_type.oid) or _BY_NAME.get(pg_type.name) or _missing(pg_type.oid)


def _made(described: Mapping[int, TypeDescription]) -> dict[int, ToText]:
    """Return the conversions of all types. A type's conversion is made after the conversions of its parts.

    Each conversion is made only once, even if many types refer to it. A type that is left after ``LEVELS_MAX`` passes
    is nested too deeply, or contains itself.
    """
    made: dict[int, ToText] = {}
    left = dict(described)
    for _ in range(LEVELS_MAX):
        ready = [found for found in left.values() if left.keys().isdisjoint(found.parts)]
        made |= {found.oid: _made_of(found, made) for found in ready}
        for found in ready:
            del left[found.oid]
    return made | {oid: _too_deep(found) for oid, found in left.items()}


def _made_of(found: TypeDescription, made: Mapping[int, ToText]) -> ToText:
    """Return the conversion of a type. The conversions of its parts, if the catalog has them, are in ``made``."""
    parts = {oid: _BUILT_IN_BY_OID.get(oid) or made.get(oid) or _missing(oid) for oid in found.parts}
    if found.send == "record_send":
        return containers.record(parts, _BUILT_IN_BY_OID)
    if found.send in _MADE_OF_ONE and len(parts) == 1:
        (part,) = parts.values()
        return _MADE_OF_ONE[found.send](part, found.delimiter.encode())
    return _BY_SEND.get(found.send) or _unreadable(f"the binary format of {found} is not known")


_MADE_OF_ONE: Final[dict[str, Callable[[ToText, bytes], ToText]]] = {
    "domain": lambda base, _: base,
    "array_send": containers.ArrayText,
    "range_send": lambda subtype, _: containers.range_(subtype),
    "multirange_send": lambda one, _: containers.multirange(one),
}


def _missing(oid: int) -> ToText:
    return _unreadable(f"type {oid} is not in the catalog (any more)")


def _too_deep(found: TypeDescription) -> ToText:
    return _unreadable(f"{found} consists of types that are nested more than {LEVELS_MAX} levels deep")


def _unreadable(reason: str) -> ToText:
    def to_text(_value: bytes) -> bytes:
        raise Unreadable(reason)

    return to_text
