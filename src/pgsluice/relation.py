"""Relations as the server described them: the columns, their types, and which columns identify a row.

The pipeline passes every Relation and Type message to :class:`RelationCache` in arrival order, and looks up the
relation of each row in it. ``avro`` turns a :class:`Relation` into a schema and an encoder. A relation is immutable, so
that a row can keep the version that was valid when it arrived.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from weakref import WeakValueDictionary

from pgsluice.errors import ProtocolError, TooManyDescriptions
from pgsluice.pgoutput import messages
from pgsluice.printable import quoted

DESCRIBED_MAX: Final = 100_000
"""The maximum number of tables, including dropped ones, that the server may describe on one connection. If it describes
more, the session ends, and the next session uses a new connection."""

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory for the most recently used tables: about 20,000 with 20 columns (3 KiB each), or 200 with 1,600 columns (300
KiB each). All other tables are kept packed, which means compressed. The next row of a packed table unpacks it, which
takes a millisecond for 160 columns."""

PACKED_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Memory for packed tables. A packed table takes 84 KB at most, so there is room for more than 12,000 of the widest
tables. With PostgreSQL's default number of locks, one transaction can write to about 6,400 tables, so it cannot fill
this memory."""

KEYS_BYTES_MAX: Final = 128 * 1024 * 1024
"""Memory for the replica identities of tables that may be partitions: enough for 200,000 keys of one column."""

TYPES_MAX: Final = 10_000
"""The maximum number of type names that are kept. This is enough, because a table has at most 1,600 columns, and the
server describes the types of a table right before the table."""

COLUMNS_AT_ONCE: Final = 20_000
"""The maximum number of columns that one query requests from the catalog. Such a query takes about 0.3 s."""

CATALOG: Final = "pg_catalog"
"""The schema of built-in types; the protocol writes it as an empty string."""

# Name, OID, and OID of the array type, from pg_type.dat. The numbers never change. If a server does not know a type,
# it never sends this type. Type messages describe only the types that are not built in.
_BUILTIN_TYPES: Final = """
    bool 16 1000            bytea 17 1001           char 18 1002            name 19 1003
    int8 20 1016            int2 21 1005            int2vector 22 1006      int4 23 1007
    regproc 24 1008         text 25 1009            oid 26 1028             tid 27 1010
    xid 28 1011             cid 29 1012             oidvector 30 1013       json 114 199
    xml 142 143             point 600 1017          lseg 601 1018           path 602 1019
    box 603 1020            polygon 604 1027        line 628 629            cidr 650 651
    float4 700 1021         float8 701 1022         abstime 702 1023        reltime 703 1024
    tinterval 704 1025      circle 718 719          macaddr8 774 775        money 790 791
    macaddr 829 1040        inet 869 1041           aclitem 1033 1034       bpchar 1042 1014
    varchar 1043 1015       date 1082 1182          time 1083 1183          timestamp 1114 1115
    timestamptz 1184 1185   interval 1186 1187      timetz 1266 1270        bit 1560 1561
    varbit 1562 1563        numeric 1700 1231       refcursor 1790 2201     regprocedure 2202 2207
    regoper 2203 2208       regoperator 2204 2209   regclass 2205 2210      regtype 2206 2211
    uuid 2950 2951          txid_snapshot 2970 2949 pg_lsn 3220 3221        tsvector 3614 3643
    tsquery 3615 3645       gtsvector 3642 3644     regconfig 3734 3735     regdictionary 3769 3770
    jsonb 3802 3807         int4range 3904 3905     numrange 3906 3907      tsrange 3908 3909
    tstzrange 3910 3911     daterange 3912 3913     int8range 3926 3927     jsonpath 4072 4073
    regnamespace 4089 4090  regrole 4096 4097       regcollation 4191 4192  int4multirange 4451 6150
    nummultirange 4532 6151 tsmultirange 4533 6152  tstzmultirange 4534 6153 datemultirange 4535 6155
    int8multirange 4536 6157 pg_snapshot 5038 5039  xid8 5069 271
"""


@dataclass(frozen=True, slots=True)
class PgType:
    """A type, named as in the protocol. A domain has its own OID and the name of its base type."""

    oid: int
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return the name in the form for messages."""
        return quoted(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``is_key``: it is part of the replica identity. ``typmod`` is -1 if none is declared."""

    name: str
    type: PgType
    typmod: int
    is_key: bool


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Relation:
    """One version of a table. The columns are in the order of the values in a row.

    ``replica_identity`` is pg_class.relreplident: d(efault), n(othing), f(ull), i(ndex). If it is ``f``, the server
    flags every column as part of the key, so the protocol does not show the primary key.

    ``partition_keys``: the columns of the partitions' replica identities, if the table is the root of partitions, as
    far as they differ from those of the root. None stands for an identity that the protocol did not show. See
    ``identity``.
    """

    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]
    partition_keys: tuple[frozenset[str] | None, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    """Computed once, because every transaction looks up the versions of the tables that it touches."""

    def __post_init__(self) -> None:
        content = (self.oid, self.namespace, self.name, self.replica_identity, self.columns, self.partition_keys)
        object.__setattr__(self, "_hash", hash(content))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        """Return the name in the form for messages."""
        return quoted(self.namespace, self.name)


def identity_of(relation: Relation) -> frozenset[str]:
    """Return the columns that the server sends to identify an old row, or an empty set if it sends all or none."""
    if relation.replica_identity not in "di":
        return frozenset()
    return frozenset(column.name for column in relation.columns if column.is_key)


class TableId(Protocol):
    """The identity of a table: a :class:`Relation` or a :class:`PublishedName`."""

    @property
    def oid(self) -> int:
        """The OID, which no other table has."""

    @property
    def namespace(self) -> str:
        """The schema."""

    @property
    def name(self) -> str:
        """The name without the schema."""


@dataclass(frozen=True, slots=True)
class PublishedName:
    """A published table, without its columns, because many wide tables would take much memory.

    ``columns``: how many columns the table has had so far. ``is_trusted``: as in :class:`pgsluice.snapshot.Shape`.
    """

    oid: int
    namespace: str
    name: str
    columns: int
    is_trusted: bool

    def __str__(self) -> str:
        """Return the name in the form for messages."""
        return quoted(self.namespace, self.name)


def in_portions(tables: Sequence[PublishedName]) -> Iterator[list[PublishedName]]:
    """Yield the tables in portions of at most ``COLUMNS_AT_ONCE`` columns, or of one table that has more columns."""
    some: list[PublishedName] = []
    columns = 0
    for table in tables:
        columns += table.columns
        if some and columns > COLUMNS_AT_ONCE:
            yield some
            some, columns = [], table.columns
        some.append(table)
    if some:
        yield some


def _builtin_types() -> dict[int, PgType]:
    words = iter(_BUILTIN_TYPES.split())
    types = {}
    for name, oid, array_oid in zip(words, words, words, strict=True):
        types[int(oid)] = PgType(int(oid), CATALOG, name)
        types[int(array_oid)] = PgType(int(array_oid), CATALOG, f"_{name}")
    return types


BUILTIN_TYPES: Final = _builtin_types()
"""The types that the server never describes, by OID."""


class RelationCache:
    """The tables and types that the server described on one connection. The cache lives as long as the connection.

    All transactions, streamed or not, share this cache. Each description of a table replaces the previous one, in the
    order of arrival. The server keeps a similar cache, and does not describe a table again while it is in the server's
    cache. So no table may be dropped from this cache. Instead, the least recently used tables are packed. If this cache
    is full, the session ends. The next session gets further, because the changes delivered so far are not sent again.

    Types may be dropped, because the server describes them again right before each Relation message that needs them.
    """

    def __init__(self) -> None:
        self._types: dict[int, PgType] = {}
        self.by_oid: dict[int, Relation] = {}
        """The current version of each table, unless it is packed. ``cache[oid]`` also finds packed versions."""
        self._bytes: dict[int, int] = {}
        """The memory that each version in ``by_oid`` takes."""
        self._kept_bytes = 0
        self._packed: dict[int, bytes | None] = {}
        """The packed version of each table that was described, or None if the current version was never packed."""
        self._packed_bytes = 0
        self._alive: WeakValueDictionary[int, Relation] = WeakValueDictionary()
        """The versions that are in use elsewhere, packed or not. They stay the same objects, because an encoder is
        found by the identity of its relation object."""
        self.described: list[Relation] = []
        """The last two tables that were described, without anything else after them or in between."""
        self.partitions: dict[int, dict[int, frozenset[str] | None]] = {}
        """For each root, maps each partition that has a replica identity with columns to these columns, or to None if
        the protocol did not show them."""
        self._identities: dict[int, Counter[frozenset[str] | None]] = {}
        """For each root, how many of its partitions in ``partitions`` have each identity."""
        self._keys_bytes = 0
        """The memory that the identities of partitions take, including identities that were removed since."""

    def on_type(self, message: messages.Type) -> None:
        """Store the name of a type that is not built in."""
        self._types.pop(message.oid, None)
        self._types[message.oid] = PgType(message.oid, message.namespace or CATALOG, message.name)
        if len(self._types) > TYPES_MAX:
            del self._types[next(iter(self._types))]

    def on_relation(self, message: messages.Relation) -> Relation:
        """Store a version of a table, and return it.

        If the content is the same as before, and the former object is still in use, that object is returned. So if
        callers get the same object, nothing has changed. Relation messages repeat often, for example after VACUUM FULL
        and TRUNCATE. If the server sends all columns of old rows, or none, the message does not show whether the
        table's primary key has changed. So a new object is returned for such a table.
        """
        relation = Relation(
            message.oid,
            message.namespace or CATALOG,
            message.name,
            message.replica_identity,
            tuple(self._column(column) for column in message.columns),
        )
        _check_names(relation)
        former = self._find(message.oid)
        if former is not None and _alters_partitions(former, relation):
            self.partitions.pop(message.oid, None)
            self._identities.pop(message.oid, None)
        self.described = [*self.described[-1:], relation]
        return self._learn(replace(relation, partition_keys=self._partition_keys(relation)))

    def on_row(self, oid: int) -> None:
        """Note that a row of this table follows. The server describes the root and the partition of a row before it."""
        if len(self.described) > 1 and self.described[0].oid == oid != self.described[1].oid:
            self._note_partition(*self.described)
        self.described = []

    def on_other(self) -> None:
        """Note that something other than a row or a description follows."""
        self.described = []

    def _learn(self, relation: Relation) -> Relation:
        former = self._find(relation.oid)
        if former == relation and identity_of(relation):
            return former
        found = relation if former is None else _sharing(relation, former)
        self._packed_bytes -= len(self._packed.get(found.oid) or b"")
        self._packed[found.oid] = None
        self._keep(found)
        self._check_room()
        return found

    def _note_partition(self, root: Relation, partition: Relation) -> None:
        """Note the replica identity of a partition.

        If a publication lists columns, PostgreSQL takes the positions of these columns in the root for their positions
        in the partition. So the description of a partition with other positions is wrong, and does not show its
        identity.
        """
        key = identity_of(partition) if _names(root) == _names(partition) else None
        noted = self.partitions.setdefault(root.oid, {})
        former = noted.pop(partition.oid, frozenset())
        identities = self._identities.setdefault(root.oid, Counter())
        identities[former] -= 1
        identities[key] += 1
        if key != frozenset():
            noted[partition.oid] = key
            if key != former:
                self._keys_bytes += _KEY_BYTES + sum(map(sys.getsizeof, key or ()))
                self._check_room()
        present = self[root.oid]
        if (keys := self._partition_keys(present)) != present.partition_keys:
            self._learn(replace(present, partition_keys=keys))

    def _partition_keys(self, root: Relation) -> tuple[frozenset[str] | None, ...]:
        """Return the identities of the partitions that differ from that of the root."""
        found = {key for key, count in self._identities.get(root.oid, Counter()).items() if count > 0}
        found -= {frozenset(), identity_of(root)}
        return tuple(sorted(found, key=lambda key: (key is not None, sorted(key or ()))))

    def _check_room(self) -> None:
        many = f"more than {DESCRIBED_MAX} tables" if len(self._packed) > DESCRIBED_MAX else ""
        if self._packed_bytes > PACKED_BYTES_MAX:
            many = f"tables with so many columns that their names take more than {PACKED_BYTES_MAX} bytes"
        if self._keys_bytes > KEYS_BYTES_MAX:
            many = f"tables whose keys take more than {KEYS_BYTES_MAX} bytes"
        if many:
            raise TooManyDescriptions(
                f"PostgreSQL has described {many} on one connection, and most of them were dropped since. Nothing is "
                "lost. pgsluice continues with a new connection, on which only tables still in use are described."
            )

    def __getitem__(self, oid: int) -> Relation:
        found = self._find(oid)
        if found is None:
            raise ProtocolError(
                f"a change of relation {oid} arrived, which the server has not described on this connection"
                " (expected a Relation message before it)"
            )
        return found

    def _find(self, oid: int) -> Relation | None:
        found = self.by_oid.get(oid)
        if found is not None:
            return found
        data = self._packed.get(oid)
        if data is None:
            return None
        found = self._alive.get(oid) or unpacked(zlib.decompress(data))
        self._keep(found)
        return found

    def _keep(self, relation: Relation) -> None:
        """Mark ``relation`` as most recently used. Pack other relations if all together take too much memory."""
        oid = relation.oid
        self.by_oid.pop(oid, None)
        self._kept_bytes -= self._bytes.pop(oid, 0)
        self.by_oid[oid] = self._alive[oid] = relation
        self._bytes[oid] = size = size_of(relation)
        self._kept_bytes += size
        while self._kept_bytes > KEPT_BYTES_MAX and len(self.by_oid) > 1:
            self._pack(next(iter(self.by_oid)))

    def _pack(self, oid: int) -> None:
        relation = self.by_oid.pop(oid)
        self._kept_bytes -= self._bytes.pop(oid)
        if self._packed[oid] is None:
            self._packed[oid] = data = zlib.compress(packed(relation), _QUICKLY)
            self._packed_bytes += len(data)

    def _column(self, column: messages.RelationColumn) -> Column:
        oid = column.type_oid
        # An unknown OID is a built-in type of a newer server. PostgreSQL's regtype also shows such a type as a number.
        pg_type = self._types.get(oid) or BUILTIN_TYPES.get(oid) or PgType(oid, CATALOG, str(oid))
        return Column(column.name, pg_type, column.typmod, column.is_key)


_KEY_BYTES: Final = 512
"""The memory that an identity of partitions takes in addition to the names of its columns."""

_QUICKLY: Final = 1
"""The level of compression. Higher levels save little."""

_COLUMN_BYTES: Final = 128
"""Memory of a column in addition to its name: the object, its entry in the tuple, its typmod, and malloc's overhead."""


def size_of(relation: Relation) -> int:
    """Estimate the memory of a version of a table, as if it shared no column with another version."""
    types = {column.type.oid: column.type for column in relation.columns if column.type.oid not in BUILTIN_TYPES}
    names = [relation.namespace, relation.name, *(column.name for column in relation.columns)]
    names += [name for one in types.values() for name in (one.namespace, one.name)]
    return _COLUMN_BYTES * (1 + len(relation.columns) + len(types)) + sum(map(sys.getsizeof, names))


def packed(relation: Relation) -> bytes:
    """Return the version of a table as bytes, for :func:`unpacked`."""
    columns = [
        (column.name, (column.type.oid, column.type.namespace, column.type.name), column.typmod, column.is_key)
        for column in relation.columns
    ]
    keys = [None if key is None else sorted(key) for key in relation.partition_keys]
    fields = (relation.oid, relation.namespace, relation.name, relation.replica_identity, columns, keys)
    return json.dumps(fields, separators=(",", ":")).encode()


def unpacked(data: bytes) -> Relation:
    """Return the version of a table that :func:`packed` has written."""
    oid, space, name, identity, columns, keys = json.loads(data)
    found = tuple(Column(column, PgType(*type_), typmod, is_key) for column, type_, typmod, is_key in columns)
    partition_keys = tuple(None if key is None else frozenset(key) for key in keys)
    return Relation(oid, space, name, identity, found, partition_keys)


def _names(relation: Relation) -> frozenset[str]:
    return frozenset(column.name for column in relation.columns)


def _alters_partitions(former: Relation, present: Relation) -> bool:
    """Return whether a root was altered in a way that alters its partitions, so that they are described again.

    New columns and primary keys alter the partitions. Another replica identity, name or schema does not.
    """
    has_own_key = former.replica_identity == present.replica_identity == "d"
    has_new_key = has_own_key and identity_of(former) != identity_of(present)
    return has_new_key or _names(former) != _names(present)


def _sharing(relation: Relation, former: Relation) -> Relation:
    """Return ``relation`` with equal columns taken from ``former``, to save memory if many versions are kept."""
    known = {column: column for column in former.columns}
    return replace(relation, columns=tuple(known.get(column, column) for column in relation.columns))


def _check_names(relation: Relation) -> None:
    names = [column.name for column in relation.columns]
    if "" in names or len(set(names)) != len(names):
        raise ProtocolError(
            f"Relation message of {relation}: column names are empty or repeated (expected distinct names)"
        )
