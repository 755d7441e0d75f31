"""Tests tables that are altered while they are streamed: the events, the schemas, and which readers can read them.

The scenarios are in ``scenarios/evolution.py``. All scenarios of a server version run at the same time, with one
daemon.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgsluice_spark.schema import SchemaVersion, record_reading, value_reading
from sandbox.kafka import Kafka
from sandbox.postgres import Postgres
from tests.integration.scenarios.evolution import SCENARIOS, markdown
from tests.support.compatibility import Pair, fastavro_problems, java_problems
from tests.support.reader import Cut
from tests.support.run import Followed, Verdict, wait_until
from tests.support.scenario import Scenario
from tests.support.versions import covered

VERSIONS = covered((10, 14, 18), usual=(10, 18))
SETTINGS: Mapping[int, Mapping[str, Mapping[str, Any]]] = {18: {"postgres": {"binary": True}}}
"""Settings that change how the server sends values, but not what consumers see."""
GENERATED_COLUMNS = 12
"""The first version with generated columns, which are not published."""
READINGS = {"Envelope": value_reading, "Key": record_reading}
STREAMING = 14
"""The first version that streams large transactions."""

DOCUMENT = Path(__file__).parents[2] / "docs/evolution.md"
MARK = "printed by `python -m tests.integration.scenarios.evolution`; a test compares it. -->\n\n"

pytestmark = pytest.mark.timeout(600)  # the first test waits for all scenarios


@dataclass(frozen=True)
class Table:
    """A table as PostgreSQL describes it. Each column has its name, the OID of its type, and the type's modifier."""

    oid: int
    schema: str
    name: str
    replica_identity: str
    columns: list[tuple[str, int, int]]


@dataclass(frozen=True)
class Outcome:
    """The results of all scenarios on one version."""

    verdicts: Mapping[str, Verdict]
    problems: list[str]
    pairs: list[Pair]
    schemas: list[dict[str, Any]]
    """The content of ``<prefix>.schemas``."""
    streamed: int
    """The number of transactions that were sent before their commit."""
    described: dict[str, Table]
    """The table of each topic, as the cut records and ``<prefix>.schemas`` describe it at the end."""
    catalog: dict[str, Table]
    """PostgreSQL's description of these tables, without the tables that were dropped or renamed."""


def run(version: int, kafka: Kafka) -> Outcome:
    """Run all scenarios that the version supports."""
    scenarios = [scenario for scenario in SCENARIOS if scenario.runs_on(version)]
    with (
        Postgres(version) as server,
        server.database() as database,
        Followed(f"e{version}", database, kafka, scenarios, SETTINGS.get(version)) as followed,
    ):
        with database.connect() as connection:
            connection.execute("CREATE TABLE public.filler (n int)")
        followed.work_killed()
        schemas = followed.reader.schemas()
        described = _described(followed.replay.cuts, schemas)
        with database.connect() as connection:
            return Outcome(
                followed.judge(),
                followed.general_problems(),
                followed.pairs(),
                schemas,
                _streamed(connection) if version >= STREAMING else 0,
                described,
                {
                    topic: held
                    for topic, table in described.items()
                    if (held := _in_catalog(connection, table, version)) is not None
                },
            )


def _described(cuts: Sequence[Cut], schemas: Sequence[Mapping[str, Any]]) -> dict[str, Table]:
    """Describe the tables in the way that docs/evolution.md explains, without reading any row."""
    descriptions = {(entry["subject"], entry["id"]): entry["postgres"] for entry in schemas}
    found: dict[str, Table] = {}
    for topic in (topic for cut in cuts for topic in cut.record["topics"] if topic["schema_ids"]):
        table = descriptions[f"{topic['topic']}-value", topic["schema_ids"][-1]]
        columns = [(column["name"], column["type_oid"], column["typmod"]) for column in table["columns"]]
        names = table["oid"], table["schema"], table["table"]
        found[topic["topic"]] = Table(*names, table["replica_identity"], columns)
    return found


def _streamed(connection: psycopg.Connection) -> int:
    """Wait until the server's statistics show a streamed transaction. Return the number of streamed transactions."""
    query = "SELECT sum(stream_txns) FROM pg_stat_replication_slots"

    def count() -> int:
        ((found,),) = connection.execute(query).fetchall()
        return int(found or 0)

    wait_until(lambda: count() > 0, "no transaction was streamed")
    return count()


def _in_catalog(connection: psycopg.Connection, table: Table, version: int) -> Table | None:
    """Return the description of a table from the catalog, or None if the table was dropped or renamed."""
    query = (
        "SELECT c.oid::bigint, nspname, relname, relreplident FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = %s AND nspname = %s AND relname = %s"
    )
    found = connection.execute(query, [table.oid, table.schema, table.name]).fetchone()
    query = "SELECT attname, atttypid::bigint, atttypmod FROM pg_attribute WHERE attrelid = %s AND attnum > 0"
    published = "NOT attisdropped AND attgenerated = ''" if version >= GENERATED_COLUMNS else "NOT attisdropped"
    columns = connection.execute(f"{query} AND {published} ORDER BY attnum", [table.oid]).fetchall()
    if found is None:
        return None
    oid, schema, name, replica_identity = found
    return Table(oid, schema, name, replica_identity, columns)


@pytest.fixture(scope="module")
def outcomes(kafka: Kafka) -> Iterator[Mapping[int, Future[Outcome]]]:
    """Run the scenarios of all server versions at the same time."""
    with ThreadPoolExecutor(len(VERSIONS)) as pool:
        yield {version: pool.submit(run, version, kafka) for version in VERSIONS}


@pytest.fixture(params=VERSIONS, ids="PostgreSQL {}".format)
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def outcome(version: int, outcomes: Mapping[int, Future[Outcome]]) -> Outcome:
    return outcomes[version].result()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_mirror_is_equal(version: int, scenario: Scenario, outcome: Outcome) -> None:
    if not scenario.runs_on(version):
        pytest.skip(scenario.lacking)
    outcome.verdicts[scenario.name].confirm()


def test_cuts_are_consistent(outcome: Outcome) -> None:
    assert outcome.problems == []


def test_fastavro_reads_old_rows_with_new_schemas_and_new_rows_with_old_ones(outcome: Outcome) -> None:
    assert fastavro_problems(outcome.pairs) == []


def test_java_reads_rows_with_all_schemas_and_finds_them_compatible(outcomes: Mapping[int, Future[Outcome]]) -> None:
    found = [pair for outcome in outcomes.values() for pair in outcome.result().pairs]
    assert {pair.compatible for pair in found} == {True, False}
    assert java_problems(found) == []


def test_spark_reads_all_versions_of_a_table_as_one(outcome: Outcome) -> None:
    subjects: dict[tuple[str, str], dict[int, SchemaVersion]] = defaultdict(dict)
    for entry in outcome.schemas:
        schema = json.loads(entry["schema"])
        if isinstance(schema, dict) and schema["name"] in READINGS:
            version = SchemaVersion(entry["subject"], entry["version"], entry["id"], entry["schema"])
            subjects[schema["name"], entry["subject"]][entry["id"]] = version
    for (name, subject), versions in subjects.items():
        assert set(READINGS[name](list(versions.values())).branches) == set(versions), subject


def test_alterations_were_streamed(version: int, outcome: Outcome) -> None:
    assert outcome.streamed > len(SCENARIOS) / 2 or version < STREAMING


def test_cuts_and_schemas_describe_the_current_tables(outcome: Outcome) -> None:
    assert len(outcome.catalog) > len(SCENARIOS) / 2
    assert {topic: outcome.described[topic] for topic in outcome.catalog} == outcome.catalog


def test_the_document_has_the_tested_tables() -> None:
    assert DOCUMENT.read_text().partition(MARK)[2] == f"{markdown()}\n"
