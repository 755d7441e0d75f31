"""Tests values in binary format end to end. `test_every_type.py` compares both formats for each type."""

from collections.abc import Callable

import pytest

from pgsluice.errors import NotInBinary
from pgsluice.pgbinary.base import Unreadable
from pgsluice.pgbinary.conversions import LEVELS_MAX, conversions
from pgsluice.pgoutput.messages import BinaryValue
from pgsluice.postgres.catalog import Catalog
from pgsluice.postgres.options import StreamOptions
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.integration.scenarios.types import NAMED_SCENARIO
from tests.integration.test_hostile_tables import goes_on, values
from tests.integration.test_replay import SCENARIOS as REPLAYED
from tests.support.replication import PUBLICATION, options_for, read_inserts, streaming
from tests.support.run import Followed, Verdict
from tests.support.scenario import Scenario
from tests.support.versions import long
from tests.support.weather import Start
from tests.types.samples import SETUP

NewDatabase = Callable[[int], Database]


@pytest.mark.parametrize("version", [14, 18])
@pytest.mark.parametrize("value", ["NULL, '{postgres=r/postgres}'", "NULL, NULL, '(postgres=r/postgres)'"])
async def test_a_value_without_a_binary_format_ends_the_stream(
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
            with pytest.raises(NotInBinary, match=r"no binary output function available for type aclitem"):
                await read_inserts(stream, 1)


@pytest.mark.parametrize("version", [10, 18])
async def test_values_of_types_with_parts_are_read(new_database: NewDatabase, version: int) -> None:
    database = new_database(version)
    with database.connect() as connection:
        connection.execute(SETUP)
        row = connection.execute(
            "SELECT 'public.nest'::regtype::oid::int8, 'public.hidden'::regtype::oid::int8"
        ).fetchone()
        assert row is not None
    async with Catalog(options_for(database)) as catalog:
        described = {found.name: found for found in await catalog.describe_types([*row, 4_294_967_295])}
    sends = {name: found.send for name, found in described.items()}
    assert sends == {
        "nest": "record_send",
        "pair": "record_send",
        "_mood": "array_send",
        "mood": "enum_send",
        "price": "domain",
        "hidden": "",
    }
    assert described["pair"].parts == (25,)
    assert described["_mood"].parts == (described["mood"].oid,)
    assert described["price"].parts == (1700,)


@pytest.mark.parametrize("version", [10, 18])
async def test_types_that_are_nested_too_deeply_are_not_read(new_database: NewDatabase, version: int) -> None:
    """Each type contains the previous type."""
    database = new_database(version)
    with database.connect() as connection:
        connection.execute("CREATE TYPE level0 AS (id int)")
        for level in range(1, 2 * LEVELS_MAX):
            connection.execute(f"CREATE TYPE level{level} AS (one level{level - 1})".encode())
        connection.execute(f"CREATE TABLE t (c level{2 * LEVELS_MAX - 1})".encode())
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t")
    async with Catalog(options_for(database)) as catalog:
        names = await catalog.published_names([PUBLICATION])
        (relation,) = [one async for one in catalog.published_relations([PUBLICATION], names)]
        described = await catalog.describe_types([column.type.oid for column in relation.columns])
    assert len(described) == LEVELS_MAX + 1
    (to_text,) = conversions(relation, described)
    with pytest.raises(Unreadable, match=f"nested more than {LEVELS_MAX} levels deep"):
        to_text(bytes(4))


# --- values that cannot be sent, or read, in binary format

CANNOT_BE_SENT = ("CREATE TABLE odd (c aclitem[])", "INSERT INTO odd VALUES ('{postgres=r/postgres}')")
CANNOT_BE_READ = (
    "CREATE TABLE sample AS SELECT n AS a, n % 7 AS b FROM generate_series(1, 100) AS n",
    "CREATE STATISTICS both_columns (ndistinct) ON a, b FROM sample",
    "ANALYZE sample",
    "CREATE TABLE odd AS SELECT stxdndistinct AS c FROM pg_statistic_ext_data",
)
PART_IS_GONE = (
    "CREATE TYPE mood AS ENUM ('sad')",
    "CREATE TYPE pair AS (one int)",
    "CREATE TABLE odd (c pair)",
    "ALTER TYPE pair ADD ATTRIBUTE two mood",
    "INSERT INTO odd VALUES ('(1,sad)')",
    "ALTER TYPE pair DROP ATTRIBUTE two",
)


@pytest.mark.parametrize("version", [14, 18])
@pytest.mark.parametrize(
    ("statements", "text"),
    [
        (CANNOT_BE_SENT, "['postgres=r/postgres']"),
        (CANNOT_BE_READ, '{"1, 2": 100}'),
        (PART_IS_GONE, "(1,sad)"),
    ],
    ids=["cannot be sent", "cannot be read", "a part is gone"],
)
def test_a_value_that_has_no_binary_format_is_delivered_from_its_text(
    start: Start, version: int, statements: tuple[str, ...], text: str
) -> None:
    """Any user who may create tables can write a value that has no binary format.

    The value ends one session, but no change may be missing.
    """
    pipeline = start({"postgres": {"binary": True}}, version=version)
    pipeline.write(3)
    with pipeline.database.connect() as connection, connection.transaction():
        for statement in statements:
            connection.execute(statement.encode())
    pipeline.write(3)
    assert [str(one["after"]["c"]) for one in values(pipeline, f"{pipeline.daemon.name}.public.odd")] == [text]
    pipeline.assert_complete()
    assert pipeline.daemon.status()["format"] == "text"
    assert "values come in text format" in pipeline.daemon.log_text()
    pipeline.daemon.restart()
    assert goes_on(pipeline)
    assert pipeline.daemon.status()["format"] == "binary"


# --- end to end

SCENARIOS = [scenario for scenario in REPLAYED if scenario.name != NAMED_SCENARIO]


@pytest.fixture(scope="module", params=(14, *long(18)), ids="PostgreSQL {}".format)
def judged(request: pytest.FixtureRequest, kafka: Kafka) -> tuple[int, dict[str, Verdict], list[str]]:
    """Run the scenarios of the replay suite with values in binary format."""
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


@pytest.mark.timeout(900)  # the first test of a version waits for all scenarios of that version
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_mirror_is_equal(judged: tuple[int, dict[str, Verdict], list[str]], scenario: Scenario) -> None:
    version, verdicts, problems = judged
    if not scenario.runs_on(version):
        pytest.skip(scenario.lacking)
    assert problems == []
    verdicts[scenario.name].confirm()
