"""Tests Avro types that the settings choose for columns.

With ``tables.refused = "stop"``, pgsluice stops if a choice is impossible. It must not lose any change when it stops.
"""

import subprocess
import sys
from typing import Any

from sandbox.daemon import Daemon
from tests.support.kafka import read_committed
from tests.support.weather import Start, fails


def rules(**types: str) -> dict[str, dict[str, Any]]:
    return {"tables": {"refused": "stop", "rules": [{"match": "public.orders", "types": types}]}}


def checked(daemon: Daemon) -> str:
    """Return the output of ``pgsluice check``."""
    command = [sys.executable, "-m", "pgsluice", "check", "-c", str(daemon.config_file)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_an_impossible_choice_is_reported_before_anything_is_created(start: Start) -> None:
    """``pgsluice check`` must report the same error as the daemon, which stops at its start. For domains and their
    arrays, the base type decides what is possible."""
    pipeline = start(
        {"tables": {"refused": "stop", "rules": [{"match": "public.*", "types": {"filler": "uuid"}}]}}, wait=False
    )
    assert pipeline.daemon.wait() == 78
    sentence = "table public.numbers: column filler of type text cannot be uuid, which `types` in [[tables.rules]]"
    assert sentence in pipeline.daemon.log_text()
    assert sentence in checked(pipeline.daemon)
    with pipeline.database.connect() as connection:
        assert (
            connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", [pipeline.slot]).rowcount == 0
        )
        connection.execute("CREATE DOMAIN price AS numeric(10,2)")
        connection.execute("CREATE DOMAIN euros AS price CHECK (value > 0)")
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, amount euros, amounts euros[], note text)")
    pipeline.daemon.settings |= rules(amount="decimal(20,4)", amounts="double")
    pipeline.daemon.start()
    assert "can be published with these settings" in checked(pipeline.daemon)


def test_reading_the_columns_does_not_wait_for_locks(start: Start) -> None:
    """A prepared ALTER TABLE keeps its table locked until the transaction ends."""
    pipeline = start(rules(amount="decimal(20,4)"))
    pipeline.daemon.stop()
    with pipeline.database.connect() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric)")
        connection.execute(f"BEGIN; ALTER TABLE orders ALTER amount TYPE text; PREPARE TRANSACTION '{pipeline.slot}'")
        pipeline.daemon.start()
        pipeline.write(1)
        assert pipeline.read(1) == [1]
        assert "can be published with these settings" in checked(pipeline.daemon)
        pipeline.daemon.stop()
        connection.execute(f"COMMIT PREPARED '{pipeline.slot}'")
    code, log = fails(pipeline)
    assert (code, "column amount of type text cannot be decimal(20,4)" in log) == (78, True), log


def test_a_choice_that_becomes_impossible_stops_the_daemon_until_it_is_changed(start: Start) -> None:
    pipeline = start(rules(amount="decimal(20,4)"))
    with pipeline.database.connect() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric)")
        connection.execute("INSERT INTO orders VALUES (1, 1.5)")
        pipeline.wait_until_confirmed()
        connection.execute("ALTER TABLE orders ALTER amount TYPE text")
        connection.execute("INSERT INTO orders VALUES (2, 'two')")
    assert pipeline.daemon.wait() == 78
    log = pipeline.daemon.log_text()
    assert "table public.orders: column amount of type text cannot be decimal(20,4), which `types`" in log
    assert "write one of string, or leave it out" in log
    pipeline.daemon.settings |= rules(**{"amoun?": "decimal(20,4)"})
    pipeline.daemon.start()
    pipeline.wait_until_confirmed()
    assert len(list(read_committed(pipeline.kafka, f"{pipeline.daemon.name}.public.orders"))) == 2
