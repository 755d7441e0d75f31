"""Values in binary format give what their text format gives: both asked from real servers, for every type.

A query's result in either format is what the type's output and send functions write, as in the stream.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.pq import ExecStatus, Format

from pgsluice.avro.encoder import KeyEncoder, RowEncoder
from pgsluice.avro.schema import TableFields, key_fields
from pgsluice.avro.sent.base import ToText
from pgsluice.avro.sent.types import BUILT_IN, conversions, unknown_types
from pgsluice.avro.types import TypeOptions
from pgsluice.errors import ConfigError, PoisonError
from pgsluice.pgoutput.messages import BinaryValue, ColumnValue
from pgsluice.postgres.catalog import Catalog
from pgsluice.postgres.options import StreamOptions
from pgsluice.relation import BUILTIN_TYPES, Column, PgType, Relation
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.integration.scenarios.types import NAMED_SCENARIO
from tests.integration.test_replay import SCENARIOS as REPLAYED
from tests.support.replication import PUBLICATION, options_for, read_inserts, streaming
from tests.support.run import Followed, Verdict
from tests.support.scenario import Scenario
from tests.support.values import FLOATS, SCALARS, SETUP, TIMES, USERS, Value

NewDatabase = Callable[[int], Database]

SENT_SINCE = 14

REG_TYPES = {
    "regclass": "pg_class",
    "regtype": "int4",
    "regproc": "pg_backend_pid",
    "regprocedure": "abs(int4)",
    "regoper": "||/",
    "regoperator": "+(int4,int4)",
    "regconfig": "english",
    "regdictionary": "simple",
    "regnamespace": "pg_catalog",
    "regrole": "postgres",
    "regcollation": '"C"',
}

ARRAYS = (
    "int4[]",
    "text[]",
    "float8[]",
    "public.mood[]",
    "public.pair[]",
    "public.price[]",
    "public.prices",
    "public.hstore[]",
    "int2vector",
    "oidvector",
)
"""Arrays of these would be arrays with more dimensions."""

OPTIONS = (TypeOptions(), TypeOptions(numeric=(38, 9), time_range="full"))


class Session:
    """A session whose settings are those of the stream."""

    def __init__(self, connection: psycopg.Connection, catalog: Catalog) -> None:
        self._connection = connection
        self._catalog = catalog

    def both_formats(self, query: sql.Composed) -> tuple[int, list[tuple[bytes | None, bytes | None]]]:
        """Return the modifier of the one column, and its values as text and in binary format."""
        text, binary = (self._result(query, wanted) for wanted in (Format.TEXT, Format.BINARY))
        values = [(text.get_value(row, 0), binary.get_value(row, 0)) for row in range(text.ntuples)]
        return text.fmod(0), values

    def _result(self, query: sql.Composed, wanted: Format) -> psycopg.pq.abc.PGresult:
        result = self._connection.pgconn.exec_params(query.as_bytes(self._connection), [], result_format=wanted)
        assert result.status == ExecStatus.TUPLES_OK, result.get_error_message()
        return result

    def type_of(self, declaration: str) -> PgType:
        """Return the type as the protocol describes it: a domain by the name of its base type."""
        query = """
            SELECT t.oid::int8, n.nspname, coalesce(base.typname, t.typname)
            FROM pg_type t LEFT JOIN pg_type base ON base.oid = t.typbasetype AND t.typtype = 'd'
            JOIN pg_namespace n ON n.oid = coalesce(base.typnamespace, t.typnamespace)
            WHERE t.oid = %s::regtype
        """
        row = self._connection.execute(query, [declaration]).fetchone()
        assert row is not None
        return BUILTIN_TYPES.get(row[0]) or PgType(*row)

    async def conversions(self, relation: Relation) -> list[ToText]:
        """Return them as the pipeline has them."""
        unknown = unknown_types(relation)
        has_catalog = self._connection.info.server_version >= SENT_SINCE * 10_000
        return conversions(relation, await self._catalog.describe_types(unknown) if has_catalog else [])


@asynccontextmanager
async def session(database: Database) -> AsyncIterator[Session]:
    with psycopg.connect(options_for(database).conninfo(), autocommit=True) as connection:
        if connection.info.server_version >= SENT_SINCE * 10_000:
            connection.execute(SETUP)
        async with Catalog(options_for(database)) as catalog:
            yield Session(connection, catalog)


def select(value: Value) -> sql.Composed:
    """Return the query of the values, and a null."""
    return sql.SQL("SELECT ({})::{} FROM unnest({}::text[]) AS v").format(
        sql.SQL(value.expression), sql.SQL(value.declaration), [*value.literals, None]
    )


def select_arrays(value: Value) -> sql.Composed:
    """Return a query of arrays of the values: one of all, and those of two dimensions with one each."""
    arrays = "WITH s (x) AS ({}) SELECT array_agg(x) FROM s UNION ALL SELECT ARRAY[ARRAY[x], ARRAY[x]] FROM s"
    return sql.SQL(arrays).format(select(value))


Outcome = tuple[bytes, list[tuple[bytes, bytes]], bytes | None]
"""The row's body, what is marked, and the key's body; None for poison."""


def encoder(relation: Relation, sent: Sequence[ToText], options: TypeOptions) -> Callable[[ColumnValue], Outcome]:
    """Return what encodes a value, the only one of its row, with all that comes of it."""
    fields = TableFields(options).assign(relation)
    row = RowEncoder(relation, fields, sent)
    key = KeyEncoder(relation, key_fields(relation, fields, ["c"], options), sent)

    def outcome(value: ColumnValue) -> Outcome:
        raw: list[tuple[bytes, bytes]] = []
        body = row.encode([value], [], raw)
        try:
            return body, raw, key.encode([value])
        except PoisonError:
            return body, raw, None

    return outcome


async def confirm(asked: Session, query: sql.Composed, pg_type: PgType) -> int:
    """Compare the outcomes of both formats; return how many values there were."""
    typmod, values = asked.both_formats(query)
    relation = Relation(16_385, "public", "t", "d", (Column("c", pg_type, typmod, is_key=True),))
    sent = await asked.conversions(relation)
    for outcome in (encoder(relation, sent, options) for options in OPTIONS):
        for text, binary in values:
            found = outcome(None if binary is None else BinaryValue(binary))
            assert found == outcome(text), (pg_type, text, binary)
    for text, binary in values:
        assert (None if binary is None else sent[0](binary)) == text
    return len(values)


GROUPS = {"scalars": (SCALARS, 10), "times": (TIMES, 10), "floats": (FLOATS, 14), "users": (USERS, 14)}
CASES = [
    pytest.param(version, group, id=f"{name}-{version}")
    for name, (group, since) in GROUPS.items()
    for version in (10, 14, 16, 18)
    if version >= since
]
"""Values come in binary format from 14 on; of the types that 10 has, most are sent as they are today."""


@pytest.mark.parametrize(("version", "group"), CASES)
async def test_both_formats_give_the_same(new_database: NewDatabase, version: int, group: Sequence[Value]) -> None:
    async with session(new_database(version)) as asked:
        for value in group:
            if value.since <= version:
                count = await confirm(asked, select(value), asked.type_of(value.declaration))
                assert count == len(value.literals) + 1


@pytest.mark.parametrize(("version", "group"), CASES)
async def test_both_formats_give_the_same_arrays(
    new_database: NewDatabase, version: int, group: Sequence[Value]
) -> None:
    async with session(new_database(version)) as asked:
        for value in group:
            if value.since <= version and not value.declaration.endswith(("[]", *ARRAYS)):
                count = await confirm(asked, select_arrays(value), asked.type_of(f"{value.declaration}[]"))
                assert count == len(value.literals) + 2


def test_types_whose_text_only_the_catalog_knows_are_their_numbers(database: Database) -> None:
    with psycopg.connect(database.conninfo()) as connection:
        for name, value in REG_TYPES.items():
            query = f"SELECT '{value}'::{name}::oid::text, '{value}'::{name}"
            row = connection.execute(query.encode(), binary=True).pgresult
            assert row is not None
            number, sent = row.get_value(0, 0), row.get_value(0, 1)
            assert sent is not None
            assert BUILT_IN[name](sent) == number


@pytest.mark.parametrize("version", [14, 18])
@pytest.mark.parametrize("value", ["NULL, '{postgres=r/postgres}'", "NULL, NULL, '(postgres=r/postgres)'"])
async def test_what_postgresql_cannot_send_in_binary_format_stops(
    new_database: NewDatabase, version: int, value: str
) -> None:
    database = new_database(version)
    with database.connect() as connection:
        connection.execute("CREATE TYPE wrapped AS (acl aclitem)")
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, one aclitem, more aclitem[], inside wrapped)")
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t")
        async with streaming(database, wanted=StreamOptions(binary=True)) as stream:
            connection.execute("INSERT INTO t VALUES (1, 'postgres=r/postgres')")
            ((identifier, acl, *missing),) = await read_inserts(stream, 1)
            assert isinstance(identifier, BinaryValue)
            assert acl == b"postgres=r/postgres"
            assert not isinstance(acl, BinaryValue)
            assert missing == [None, None]
            connection.execute(f"INSERT INTO t VALUES (2, {value})".encode())
            with pytest.raises(ConfigError, match=r"no binary output function.* set postgres.binary = false"):
                await read_inserts(stream, 1)


async def test_what_types_consist_of(new_database: NewDatabase) -> None:
    database = new_database(18)
    async with session(database) as asked, Catalog(options_for(database)) as catalog:
        nest, hidden = (asked.type_of(f"public.{name}").oid for name in ("nest", "hidden"))
        described = {found.name: found for found in await catalog.describe_types([nest, hidden, 4_294_967_295])}
    sends = {name.removeprefix("public."): found.send for name, found in described.items()}
    assert sends == {
        "nest": "record_send",
        "pair": "record_send",
        "_mood": "array_send",
        "mood": "enum_send",
        "price": "domain",
        "hidden": "",
    }
    assert described["public.pair"].parts == (25,)
    assert described["public._mood"].parts == (described["public.mood"].oid,)
    assert described["public.price"].parts == (1700,)


# --- the whole way

SCENARIOS = [scenario for scenario in REPLAYED if scenario.name != NAMED_SCENARIO]


@pytest.fixture(scope="module", params=(14, 18), ids="PostgreSQL {}".format)
def judged(request: pytest.FixtureRequest, kafka: Kafka) -> tuple[int, dict[str, Verdict], list[str]]:
    """Carry out the scenarios of the replay suite, with values in binary format."""
    version: int = request.param
    scenarios = [scenario for scenario in SCENARIOS if scenario.runs_on(version)]
    settings = {"postgres": {"binary": True}}
    with (
        Postgres(version) as server,
        server.database() as database,
        Followed(f"binary{version}", database, kafka, scenarios, settings) as followed,
    ):
        followed.work()
        followed.crash()
        assert '"binary": "true"' in followed.daemon.log_text()
        return version, followed.judge(), followed.general_problems()


@pytest.mark.timeout(900)  # the first of a version waits for all of its scenarios
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_mirror_is_equal(judged: tuple[int, dict[str, Verdict], list[str]], scenario: Scenario) -> None:
    version, verdicts, problems = judged
    if not scenario.runs_on(version):
        pytest.skip(scenario.lacking)
    assert problems == []
    verdicts[scenario.name].confirm()
