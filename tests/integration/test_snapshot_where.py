"""Tests rules that select only some of a table's existing rows."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from pgsluice.app import cli
from pgsluice.errors import ReadTooSlow
from pgsluice.postgres.chunks import ChunkReader
from pgsluice.postgres.options import ConnectionOptions
from pgsluice.relation import PublishedName
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import DEFAULT_VERSION, Database
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.weather import Pipeline, configured, prepare, wait_until

pytestmark = pytest.mark.usefixtures("restored_logging")

ROWS = 10


@pytest.fixture
def filled(new_database: Callable[..., Database], kafka: Kafka) -> Iterator[Pipeline]:
    """Provide a pipeline that has never been started, on a table that has rows."""
    database = new_database(DEFAULT_VERSION)
    prepare(database)
    with Daemon(f"r{uuid4().hex[:10]}", database.conninfo(), kafka.bootstrap_servers, at_once=False) as daemon:
        pipeline = Pipeline(database, kafka, daemon)
        pipeline.write(ROWS)
        yield pipeline


def choose(pipeline: Pipeline, where: str) -> None:
    rules = {"rules": [{"match": "public.numbers", "where": where}]}
    pipeline.daemon.settings |= configured({"snapshot": {"mode": "initial", "chunk_rows": 2}, "tables": rules})


def snapshot(pipeline: Pipeline) -> dict[str, Any]:
    found: dict[str, Any] = pipeline.daemon.status()["snapshot"] or {"tables": {"loaded": 0, "blocked": 0}}
    return found


def numbers(pipeline: Pipeline, op: str, count: int) -> list[int]:
    return [change["after"]["n"] for change in pipeline.changes(count) if change["op"] == op]


def test_only_matching_rows_are_read_but_all_changes_are_delivered(filled: Pipeline) -> None:
    choose(filled, "n % 3 = 0 -- every third\n OR filler IS NOT NULL")
    filled.daemon.start()
    wait_until(lambda: snapshot(filled)["tables"]["loaded"] == 1, "the table to be loaded")
    filled.write(2)
    assert numbers(filled, "r", 5) == [3, 6, 9]
    filled.daemon.restart()
    wait_until(lambda: snapshot(filled)["tables"]["loaded"] == 1, "the table to be loaded, after a restart")
    assert numbers(filled, "c", 5) == [11, 12]


def test_a_command_without_a_condition_uses_that_of_the_rule(filled: Pipeline) -> None:
    choose(filled, "n <= 2")
    filled.daemon.start()
    wait_until(lambda: snapshot(filled)["tables"]["loaded"] == 1, "the table to be loaded")
    start = ["snapshot", "start", "-c", str(filled.daemon.config_file), "public.numbers"]
    assert cli.main(start) == 0
    assert numbers(filled, "r", 4) == [1, 2, 1, 2]
    assert cli.main([*start, "--where", "n > 8"]) == 0
    assert numbers(filled, "r", 6) == [1, 2, 1, 2, 9, 10]


def test_a_condition_that_postgresql_rejects_blocks_its_table(
    filled: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    choose(filled, "m = 0")
    filled.daemon.start()
    wait_until(lambda: snapshot(filled)["tables"]["blocked"] == 1, "the table to be blocked")
    (table,) = snapshot(filled)["not_loaded"]
    assert 'column "m" does not exist' in table["reason"]
    filled.write(1)
    assert numbers(filled, "c", 1) == [11]
    for where, is_found in (("m = 0", True), ("n = 0", False)):
        choose(filled, where)
        filled.daemon.config_file.write_text(filled.daemon.configuration())
        assert cli.main(["check", "-c", str(filled.daemon.config_file)]) == 0
        assert ('column "m" does not exist' in capsys.readouterr().out) is is_found


def test_a_read_that_exceeds_the_time_limit_has_its_own_error(filled: Pipeline) -> None:
    """Use a condition that shortens the time limit of the next statement, so that the test need not wait 30 seconds."""
    with filled.database.connect() as connection:
        found = connection.execute("SELECT 'public.numbers'::regclass::oid").fetchone()
    assert found is not None
    table = PublishedName(found[0], "public", "numbers", columns=2, is_trusted=True)

    async def read() -> None:
        reader = ChunkReader(ConnectionOptions({"dsn": filled.database.conninfo()}), ["pgsluice"])
        try:
            shape = await reader.shape(table)
            assert shape is not None
            shape = replace(
                shape, where="set_config('statement_timeout', '50', true) IS NOT NULL AND pg_sleep(0.2) IS NULL"
            )
            await reader.begin(shape)
            for _ in range(2):
                await reader.rows(shape, (), ROWS, 1 << 20)
        finally:
            await reader.close()

    with pytest.raises(ReadTooSlow, match="statement timeout"):
        asyncio.run(read())
