"""Tests how types are mapped to Avro: from a server's stream, fastavro must read the values that psycopg selects.

Each test creates a table with one column for each value. The server itself sends the Relation and Type messages.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql
from psycopg.types.hstore import register_hstore

from pgsluice.avro.binary import encode_long
from pgsluice.avro.encoder import RowEncoder
from pgsluice.avro.schema import TableFields, value_schema
from pgsluice.avro.types import Misfit, TypeOptions, column_type
from pgsluice.pgoutput import messages
from pgsluice.relation import BUILTIN_TYPES, Relation, RelationCache
from sandbox.postgres import Database, Postgres
from tests.support.avro_oracle import read, same
from tests.support.replication import PUBLICATION, SLOT, options_for, read_transactions, replication
from tests.support.versions import covered

NewDatabase = Callable[[int], Database]

VERSIONS = covered()
COMMON = TypeOptions()
FULL = TypeOptions(time_range="full")


class Value(NamedTuple):
    """A value to send. ``since`` is the first version that supports it."""

    declaration: str
    literal: str
    since: int = 10


def values(declaration: str, *literals: str, since: int = 10) -> list[Value]:
    return [Value(declaration, literal, since) for literal in literals]


# psycopg reads exactly the value that fastavro must read
NATIVE = [
    *values("bool", "true", "false"),
    *values("int2", "-32768", "32767"),
    *values("int4", "-2147483648", "0", "2147483647"),
    *values("int8", "-9223372036854775808", "9223372036854775807"),
    *values("oid", "0", "4294967295"),
    *values("float8", "0.1", "-0", "1e308", "5e-324", "1e15", "1e16", "NaN", "Infinity", "-Infinity", "123456789.125"),
    *values("numeric(10,2)", "0", "-0.01", "99999999.99", "-99999999.99", "1.5"),
    *values("numeric(38,0)", "9" * 38, "-" + "9" * 38),
    *values("numeric(38,38)", "0." + "9" * 38),
    *values("numeric(3,-2)", "12345", "-99949", since=15),
    *values("numeric(2,5)", "0.00099", "-0.00001", since=15),
    *values("date", "0001-01-01", "1969-12-31", "2024-02-29", "9999-12-31"),
    *values("time", "00:00:00", "12:34:56.7", "23:59:59.999999"),
    *values("time(0)", "12:34:56.7"),
    *values("timestamp", "0001-01-01 00:00:00", "1969-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999"),
    *values("timestamp(3)", "2024-02-29 12:34:56.789123"),
    *values("timestamptz", "0001-01-01 00:00:00+00", "2024-02-29 12:34:56.000001+05:30", "9999-12-31 23:59:59+00"),
    *values("uuid", "123E4567-E89B-12D3-A456-426614174000"),
    *values("bytea", r"\x", r"\x00ff5c27", r"abc"),
    *values("text", "", "größer ☃ 😀", "a\nb\t\\'\""),
    *values("varchar(5)", "a b"),
    *values('"char"', "x"),
    *values("name", "a name"),
    *values("int4[]", "{}", "{1,NULL,-3}"),
    *values("text[]", r'{a,NULL,"NULL","","a b","{}","a,b","\"","\\"}', "{größer,null}", '{"two\nlines"}'),
    *values("bool[]", "{t,f,NULL}"),
    *values("float8[]", "{0.1,NaN,-Infinity,1e-300}"),
    *values("numeric(10,2)[]", "{1,NULL,-0.5}"),
    *values("date[]", "{2024-02-29,NULL}"),
    *values("timestamp[]", '{"2024-02-29 12:34:56.7"}'),
    *values("timestamptz[]", '{"2024-02-29 12:34:56.7+00",NULL}'),
    *values("uuid[]", "{123e4567-e89b-12d3-a456-426614174000}"),
    *values("bytea[]", r'{"\\x00ff",NULL}'),
    *values("box[]", "{(1,1),(0,0);(2,2),(1,1)}"),
    *values("public.moment", "2024-02-29 12:34:56+00"),
    *values("public.numbers", "{1,NULL}"),
    *values("public.hstore", 'a=>1, "b c"=>NULL, "\\"=>\\\\"=>"x, y", ""=>""', ""),
]

# values that are delivered as text, in the form that a session with the settings of the stream returns
TEXTUAL = [
    *values("numeric", "NaN", "1.50", "0.000000000000000000000000000000000000000001", "1e100"),
    *values("numeric", "Infinity", "-Infinity", since=14),
    *values("numeric(39,1)", "1.5"),
    *values("numeric(3,-36)", "1e38", since=15),
    *values("numeric[]", "{1.50,NULL,NaN}"),
    *values("public.amount", "-12.5", "NaN"),  # the protocol does not send the precision of a domain
    *values("bpchar(5)", "ab"),
    *values("json", '{"b": 1,  "a": [1, 2]}'),
    *values("jsonb", '{"b": 1,  "a": [1, 2]}'),
    *values("xml", "<a>ß</a>"),
    *values("money", "-1234.5"),
    *values("interval", "1 year 2 months -3 days 04:05:06.789", "-1 microsecond"),
    *values("interval", "infinity", since=17),
    *values("timetz", "12:34:56.7+05:30"),
    *values("pg_lsn", "16/B374D848"),
    *values("bit(5)", "10110"),
    *values("varbit", "101"),
    *values("inet", "192.168.0.1/24", "::1"),
    *values("cidr", "10.0.0.0/8"),
    *values("macaddr", "08:00:2b:01:02:03"),
    *values("point", "(1.5,2)"),
    *values("box", "(1,1),(0,0)"),
    *values("polygon", "((0,0),(1,1),(1,0))"),
    *values("tsvector", "'a':1 'b':2A"),
    *values("tsquery", "a & !b"),
    *values("int4range", "[1,5)", "empty"),
    *values("tstzrange", '["2024-02-29 12:00:00+00",)'),
    *values("int4multirange", "{[1,2),[5,9)}", since=14),
    *values("jsonpath", "$.a[*]", since=12),
    *values("xid8", "18446744073709551615", since=13),
    *values("regclass", "pg_catalog.pg_class"),
    *values("int2vector", "1 2 3"),
    *values("jsonb[]", r'{"{\"a\": 1}",NULL}'),
    *values("interval[]", '{"1 day",NULL}'),
    *values("public.mood", "so so"),
    *values("public.mood[]", '{sad,"so so"}'),
    *values("public.pair", '(1,"a ""b""")'),
    *values("public.span", "[1.5,2.5]"),
    *values("public.citext", "Größe"),
    *values("public.ltree", "Top.Science"),
    *values("public.hstore[]", '{"\\"a\\"=>\\"1\\""}'),
]

# values that the Avro type cannot hold, so their text is delivered in ``raw`` (those in BEYOND_COMMON fit if time_range
# is "full")
MARKED = [
    *values("numeric(10,2)", "NaN"),
    *values("numeric[]", "{{1},{2}}"),
    *values("numeric(10,2)[]", "{NaN}"),
    *values("date", "infinity", "-infinity"),
    *values("timestamp", "infinity", "-infinity"),
    *values("timestamptz", "infinity", "-infinity"),
    *values("date[]", "{infinity}"),
    *values("int4[]", "{{1,2},{3,4}}", "[0:1]={1,2}", "[2:2]={1}"),
    *values("text[]", "{{a},{b}}"),
    *values("timestamp", "294276-12-31 23:59:59.999999"),
]
BEYOND_COMMON = [
    *values("date", "0001-12-31 BC", "4714-11-24 BC", "10000-01-01", "5874897-12-31"),
    *values("timestamp", "0044-03-15 12:00:00 BC", "4714-11-24 00:00:00 BC", "10000-01-01 00:00:00.5"),
    *values("timestamptz", "0044-03-15 12:00:00 BC", "294246-12-31 23:59:59.999999+00"),
]
SINGLES = [
    "0.1",
    "-0",
    "7.038531e-26",
    "1.1754944e-38",
    "1e-45",
    "3.4028235e38",
    "16777216",
    "-1.00000012",
    "NaN",
    "-Infinity",
]

EXACT_EPOCH = 14
"""The first version in which extract() is exact."""

NEVER_IN_TABLES = {
    *("pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "smgr", "pg_ddl_command", "_cstring"),
    *("pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "_pg_type", "_pg_attribute", "_pg_proc", "_pg_class"),
}
"""Types that are used only in the server's own catalogs."""

SETUP = """
CREATE EXTENSION hstore SCHEMA public;
CREATE EXTENSION citext SCHEMA public;
CREATE EXTENSION ltree SCHEMA public;
CREATE TYPE public.mood AS ENUM ('sad', 'so so');
CREATE TYPE public.pair AS (a int, b text);
CREATE TYPE public.span AS RANGE (subtype = float8);
CREATE DOMAIN public.amount AS numeric(10,2);
CREATE DOMAIN public.moment AS timestamptz;
CREATE DOMAIN public.numbers AS int4[]
"""


class Sent:
    """A row as the server streamed it, and a session with the settings of the stream."""

    def __init__(self, relation: Relation, row: messages.TupleData, connection: psycopg.Connection) -> None:
        self.relation = relation
        self.row = row
        self._connection = connection

    def encoded(self) -> tuple[list[Any], list[bytes | None]]:
        """Return what fastavro reads for each column, and the texts of the values that did not fit."""
        fields = TableFields(COMMON).assign(self.relation)
        raw: list[tuple[bytes, bytes]] = []
        body = RowEncoder(self.relation, fields).encode(list(self.row), [], raw)
        found, marked = read(value_schema("a.b.c", fields), body), dict(raw)
        return list(found.values()), [marked.get(field.name.encode()) for field in fields]

    def select(self, column: int, expression: str = "{}") -> Any:  # noqa: ANN401 - whatever the column holds
        """Return a column, or an expression that uses it, as psycopg reads it."""
        selected = sql.SQL(expression).format(sql.Identifier(f"c{column}"))
        found = self._connection.execute(sql.SQL("SELECT {} FROM public.samples").format(selected)).fetchone()
        assert found is not None
        return found[0]


@asynccontextmanager
async def sent(database: Database, samples: Sequence[Value]) -> AsyncIterator[Sent]:
    """Insert one row with all samples, and stream it."""
    async with replication(options_for(database)) as replicating:
        with psycopg.connect(options_for(database).conninfo(), autocommit=True) as connection:
            _create_table(connection, samples)
            await replicating.create_slot(SLOT)
            literals = sql.SQL(", ").join(sql.Literal(sample.literal) for sample in samples)
            connection.execute(sql.SQL("INSERT INTO public.samples VALUES ({})").format(literals))
            stream = await replicating.start(SLOT, [PUBLICATION])
            yield _received(await read_transactions(stream), connection)


def _create_table(connection: psycopg.Connection, samples: Sequence[Value]) -> None:
    connection.execute(SETUP)
    hstore = psycopg.types.TypeInfo.fetch(connection, "public.hstore")
    assert hstore is not None
    register_hstore(hstore, connection)
    columns = ", ".join(f"c{index} {sample.declaration}" for index, sample in enumerate(samples))
    connection.execute(f"CREATE TABLE public.samples ({columns})".encode())
    connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES".encode())


def _received(transaction: list[messages.Message], connection: psycopg.Connection) -> Sent:
    cache, rows = RelationCache(), []
    for message in transaction:
        if isinstance(message, messages.Type):
            cache.on_type(message)
        elif isinstance(message, messages.Relation):
            cache.on_relation(message)
        elif isinstance(message, messages.Insert):
            rows.append((cache[message.relation_oid], message.new))
    ((relation, row),) = rows
    return Sent(relation, row, connection)


@pytest.mark.parametrize("version", VERSIONS)
async def test_values_are_delivered_as_psycopg_selects_them(new_database: NewDatabase, version: int) -> None:
    samples = [sample for sample in NATIVE if sample.since <= version]
    async with sent(new_database(version), samples) as row:
        found, marked = row.encoded()
        for column, sample in enumerate(samples):
            assert marked[column] is None, sample
            assert same(found[column], row.select(column)), (sample, found[column])


@pytest.mark.parametrize("version", VERSIONS)
async def test_other_types_are_delivered_as_text(new_database: NewDatabase, version: int) -> None:
    samples = [sample for sample in TEXTUAL if sample.since <= version]
    async with sent(new_database(version), samples) as row:
        found, marked = row.encoded()
        for column, sample in enumerate(samples):
            expression = "{}::text[]" if isinstance(found[column], list) else "format('%s', {})"
            assert marked[column] is None, sample
            assert same(found[column], row.select(column, expression)), (sample, found[column])


@pytest.mark.parametrize("version", VERSIONS)
async def test_single_precision_is_delivered_as_postgresql_casts_it(new_database: NewDatabase, version: int) -> None:
    samples = values("float4", *SINGLES)
    async with sent(new_database(version), [*samples, Value("float4[]", "{0.1,NULL,7.038531e-26}")]) as row:
        found, marked = row.encoded()
        assert not any(marked)
        for column, sample in enumerate(samples):
            assert same(found[column], row.select(column, "{}::float8")), sample
        assert same(found[-1], row.select(len(samples), "{}::float8[]"))


@pytest.mark.parametrize("version", VERSIONS)
async def test_values_that_do_not_fit_are_delivered_as_text(new_database: NewDatabase, version: int) -> None:
    samples = [*MARKED, *BEYOND_COMMON]
    async with sent(new_database(version), samples) as row:
        found, marked = row.encoded()
        for column, sample in enumerate(samples):
            assert found[column] is None, sample
            assert marked[column] == row.select(column, "format('%s', {})").encode()
        for described, value in zip(row.relation.columns[: len(MARKED)], row.row, strict=False):
            assert isinstance(value, bytes)
            with pytest.raises(Misfit):
                column_type(described, FULL).write(value)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= EXACT_EPOCH])
async def test_times_in_the_full_range_are_delivered(new_database: NewDatabase, version: int) -> None:
    async with sent(new_database(version), BEYOND_COMMON) as row:
        for index, (column, value) in enumerate(zip(row.relation.columns, row.row, strict=True)):
            is_date = column.type.name == "date"
            number = "{} - '1970-01-01'::date" if is_date else "(extract(epoch FROM {}) * 1000000)::bigint"
            assert isinstance(value, bytes)
            assert column_type(column, FULL).write(value) == encode_long(row.select(index, number)), value


@pytest.mark.parametrize("version", VERSIONS)
def test_built_in_types_have_the_oids_of_the_server(postgres_server: Callable[[int], Postgres], version: int) -> None:
    query = """
        SELECT t.oid, t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
        WHERE nspname = 'pg_catalog' AND t.oid < 10000 AND typrelid = 0 AND typtype IN ('b', 'r', 'm')
    """
    with postgres_server(version).connect() as connection:
        found: list[tuple[int, str]] = connection.execute(query).fetchall()
    unlike = {name for oid, name in found if oid in BUILTIN_TYPES and BUILTIN_TYPES[oid].name != name}
    assert unlike == set()
    assert {name for oid, name in found if oid not in BUILTIN_TYPES} <= NEVER_IN_TABLES
