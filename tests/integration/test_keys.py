"""Tests the keys of records on real servers: partitions, columns that are not published, and altered primary keys."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.parts import LARGE, PARTS
from tests.support.reader import Event, Reader
from tests.support.versions import covered
from tests.support.weather import wait_until

VIA_ROOT = "CREATE PUBLICATION pgsluice FOR TABLE {} WITH (publish_via_partition_root{});"
Follow = Callable[[int, str], Any]
"""Starts a daemon. The arguments are the server's version, and statements that run before the start."""


class Followed:
    """A running daemon, and a session on its server."""

    def __init__(self, connection: psycopg.Connection, daemon: Daemon, kafka: Kafka) -> None:
        self._connection, self.daemon, self._kafka = connection, daemon, kafka

    def run(self, *statements: str) -> None:
        for statement in statements:
            self._connection.execute(statement.encode())

    def events(self) -> list[Event]:
        """Return all changes of tables so far, in the order of their positions."""
        ((lsn,),) = self._connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchall()
        self.run("INSERT INTO last DEFAULT VALUES")
        with closing(Reader(self._kafka.bootstrap_servers, self.daemon.url, self.daemon.name, lambda: None)) as reader:
            found = [event for cut in reader.read_until(int(lsn)) for event in cut.events if event.value is not None]
        changes = [event for event in found if event["table"] != "last"]
        return sorted(changes, key=lambda event: event.position)

    def keys(self) -> list[tuple[str | None, Any]]:
        """Return the operation and the key of each change."""
        return [(event.op, event.key) for event in self.events()]

    def refusal(self) -> str:
        """Wait until a table is in quarantine. Return the reason."""
        wait_until(lambda: self.daemon.status()["quarantined"], "the table to be in quarantine")
        (refused,) = self.daemon.status()["quarantined"]
        return str(refused["reason"])


@pytest.fixture
def follow(new_database: Callable[..., Database], kafka: Kafka) -> Follow:
    """Provide a function that starts a daemon."""

    @contextmanager
    def start(version: int, setup: str) -> Iterator[Followed]:
        database = new_database(version)
        with (
            database.connect() as connection,
            Daemon(f"k{uuid4().hex[:10]}", database.conninfo(), kafka.bootstrap_servers, at_once=False) as daemon,
        ):
            connection.execute("CREATE TABLE last (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
            connection.execute(setup.encode())
            connection.execute("ALTER PUBLICATION pgsluice ADD TABLE last")
            daemon.start()
            yield Followed(connection, daemon, kafka)

    return start


class TestPartitions:
    """The rows of partitions are published as rows of their root."""

    @pytest.mark.parametrize("version", covered([13, 14, 16, 18]))
    def test_a_key_that_only_partitions_have_is_refused(self, version: int, follow: Follow) -> None:
        """Such a key is unique only within each partition."""
        setup = """
            CREATE TABLE parts (id int, region text, note text) PARTITION BY LIST (region);
            CREATE TABLE eu PARTITION OF parts (PRIMARY KEY (id)) FOR VALUES IN ('eu');
            CREATE TABLE us PARTITION OF parts (PRIMARY KEY (id)) FOR VALUES IN ('us');
        """
        with follow(version, setup + VIA_ROOT.format("parts", "")) as followed:
            followed.run("INSERT INTO parts VALUES (1, 'eu', 'one'), (1, 'us', 'two')")
            assert "or these do not identify a row of the table" in followed.refusal()

    @pytest.mark.parametrize("version", covered([13, 16, 18]))
    def test_a_key_that_includes_the_columns_of_the_partitioning_is_unique(self, version: int, follow: Follow) -> None:
        setup = """
            CREATE TABLE parts (id int, region text) PARTITION BY LIST (region);
            CREATE TABLE eu PARTITION OF parts (PRIMARY KEY (region, id)) FOR VALUES IN ('eu') PARTITION BY RANGE (id);
            CREATE TABLE low PARTITION OF eu FOR VALUES FROM (0) TO (100);
        """
        with follow(version, setup + VIA_ROOT.format("parts", "")) as followed:
            followed.run("INSERT INTO parts VALUES (1, 'eu')", "DELETE FROM parts")
            key = {"id": 1, "region": "eu"}
            assert followed.keys() == [("c", key), ("d", key)]

    def test_without_updates_and_deletes_no_key_is_needed(self, follow: Follow) -> None:
        setup = """
            CREATE TABLE parts (id int, region text) PARTITION BY LIST (region);
            CREATE TABLE eu PARTITION OF parts (PRIMARY KEY (id)) FOR VALUES IN ('eu');
        """
        with follow(16, setup + VIA_ROOT.format("parts", ", publish = 'insert'")) as followed:
            followed.run("INSERT INTO parts VALUES (1, 'eu')")
            assert followed.keys() == [("c", None)]

    @pytest.mark.parametrize("version", covered([15, 16, 18]))
    def test_a_column_list_and_a_partition_with_other_positions(self, version: int, follow: Follow) -> None:
        """PostgreSQL describes such a partition with the wrong columns."""
        setup = """
            CREATE TABLE parts (id int PRIMARY KEY, code int NOT NULL, large text, n int) PARTITION BY RANGE (id);
            CREATE TABLE low (a int, b int, id int PRIMARY KEY, code int NOT NULL, large text, n int);
            ALTER TABLE low DROP COLUMN a, DROP COLUMN b;
            ALTER TABLE low ALTER large SET STORAGE EXTERNAL;
            ALTER TABLE parts ATTACH PARTITION low FOR VALUES FROM (0) TO (100);
            ALTER TABLE parts REPLICA IDENTITY FULL;
        """
        with follow(version, setup + VIA_ROOT.format("parts (id, code, large)", "")) as followed:
            followed.run(f"INSERT INTO parts VALUES (1, 1, '{LARGE}', 7)", "UPDATE parts SET id = 2")
            _, gone, come = followed.events()
        assert (gone["before"]["id"], gone["before_image"]) == (1, "key")
        assert (come["after"], come["unchanged"]) == ({"id": 2, "code": 1, "large": None}, ["large"])

    @pytest.mark.parametrize("version", covered([13, 16, 18]))
    def test_a_new_primary_key_of_the_root(self, version: int, follow: Follow) -> None:
        with follow(version, PARTS + VIA_ROOT.format("parts", "")) as followed:
            followed.run("INSERT INTO parts VALUES (1, 1, 'a'), (101, 1, 'b')")
            followed.run("ALTER TABLE parts DROP CONSTRAINT parts_pkey, ADD PRIMARY KEY (id, code)")
            followed.run("UPDATE parts SET large = 'c'", "DELETE FROM parts")
            *_, u1, u2, d1, d2 = followed.keys()
        assert [u1, u2] == [("u", {"id": 1, "code": 1}), ("u", {"id": 101, "code": 1})]
        assert [d1, d2] == [("d", {"id": 1, "code": 1}), ("d", {"id": 101, "code": 1})]

    @pytest.mark.parametrize("version", covered([13, 16, 18]))
    def test_a_table_that_is_described_after_a_root_is_no_partition(self, version: int, follow: Follow) -> None:
        archive = "CREATE TABLE archive (id int, code int PRIMARY KEY, large text);"
        with follow(version, PARTS + archive + VIA_ROOT.format("parts, archive", "")) as followed:
            followed.run("TRUNCATE parts", "INSERT INTO archive VALUES (1, 2, 'a')", "TRUNCATE parts, archive")
            followed.run("INSERT INTO parts VALUES (3, 3, 'b')", "INSERT INTO archive VALUES (1, 4, 'a')")
            found = followed.keys()
        assert [one for one in found if one[0] == "c"] == [("c", {"code": 2}), ("c", {"id": 3}), ("c", {"code": 4})]

    @pytest.mark.parametrize("version", covered([13, 16, 18]))
    def test_a_root_and_its_partitions_that_become_full(self, version: int, follow: Follow) -> None:
        with follow(version, PARTS + VIA_ROOT.format("parts", "")) as followed:
            followed.run(f"INSERT INTO parts VALUES (1, 1, '{LARGE}')")
            followed.run("ALTER TABLE parts REPLICA IDENTITY FULL", "UPDATE parts SET code = 2")
            followed.run("ALTER TABLE low REPLICA IDENTITY FULL", "UPDATE parts SET code = 3")
            found = followed.events()[-1]
        assert (found.key, found["before_image"], found["unchanged"]) == ({"id": 1}, "full", [])
        assert found["after"]["large"] == LARGE


class TestUnpublishedColumns:
    """A column of the key is not published, so the other columns do not identify a row."""

    @pytest.mark.parametrize("version", covered([12, 14, 16]))
    def test_a_generated_column_of_the_key(self, version: int, follow: Follow) -> None:
        setup = """
            CREATE TABLE t (a int, c int, g int GENERATED ALWAYS AS (c * 2) STORED, PRIMARY KEY (a, g));
            CREATE PUBLICATION pgsluice FOR TABLE t;
        """
        with follow(version, setup) as followed:
            followed.run("INSERT INTO t VALUES (1, 1), (1, 2)", "DELETE FROM t WHERE c = 2")
            assert "The key of table public.t (a, g) is not among its published columns" in followed.refusal()

    @pytest.mark.parametrize("version", covered([15, 18]))
    def test_a_column_list_without_a_column_of_the_key(self, version: int, follow: Follow) -> None:
        setup = """
            CREATE TABLE t (a int, b int, note text, PRIMARY KEY (a, b));
            CREATE PUBLICATION pgsluice FOR TABLE t (a, note) WITH (publish = 'insert');
        """
        with follow(version, setup) as followed:
            followed.run("INSERT INTO t VALUES (1, 1, 'one'), (1, 2, 'two')")
            assert "The key of table public.t (a, b) is not among its published columns" in followed.refusal()

    def test_a_column_that_is_added_to_the_key_while_the_daemon_is_stopped(self, follow: Follow) -> None:
        setup = "CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION pgsluice FOR TABLE t;"
        with follow(16, setup) as followed:
            followed.daemon.stop_well()
            followed.run("INSERT INTO t VALUES (1)", "ALTER TABLE t ADD b int NOT NULL DEFAULT 7")
            followed.run("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a, b)", "INSERT INTO t VALUES (1, 8)")
            followed.daemon.start()
            assert followed.keys() == [("c", {"a": 1}), ("c", {"a": 1, "b": 8})]


class TestIdentityFull:
    """The stream does not show the primary key of a table with REPLICA IDENTITY FULL."""

    SETUP = """
        CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL);
        ALTER TABLE t REPLICA IDENTITY FULL;
        CREATE PUBLICATION pgsluice FOR TABLE t;
    """

    @pytest.mark.parametrize("version", covered([10, 14, 18]))
    def test_a_new_primary_key_is_noticed(self, version: int, follow: Follow) -> None:
        with follow(version, self.SETUP) as followed:
            followed.run("INSERT INTO t VALUES (1, 1)")
            followed.keys()
            followed.run("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code)")
            followed.run("INSERT INTO t VALUES (1, 2), (1, 3)", "DELETE FROM t WHERE code = 2")
            assert followed.keys()[1:] == [("c", {"code": 2}), ("c", {"code": 3}), ("d", {"code": 2})]
            followed.run("ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t VALUES (1, 3)")
            assert followed.keys()[-1] == ("c", None)

    @pytest.mark.parametrize("version", covered([10, 14, 18]))
    def test_a_row_from_before_its_primary_key_has_the_former_key(self, version: int, follow: Follow) -> None:
        with follow(version, self.SETUP) as followed:
            followed.run("INSERT INTO t VALUES (1, 1)")
            followed.keys()
            followed.run(
                "BEGIN; ALTER TABLE t ADD number int; UPDATE t SET number = id * 10; ALTER TABLE t DROP CONSTRAINT "
                "t_pkey, ADD PRIMARY KEY (number); COMMIT"
            )
            followed.run("DELETE FROM t")
            assert followed.keys()[1:] == [("d", {"id": 1}), ("c", {"number": 10}), ("d", {"number": 10})]
