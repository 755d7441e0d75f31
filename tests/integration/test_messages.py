"""Tests messages of pg_logical_emit_message on real servers. Each message must arrive once, and in order with the rows.

Every test writes rows (numbers) and messages (bytes), and compares them with the events that a consumer reads, cut by
cut.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count, pairwise
from threading import Event as Flag
from threading import Thread
from typing import Any, TypeAlias

import psycopg
import pytest

from sandbox.postgres import Database, Postgres
from tests.support.reader import Cut, Event, Reader
from tests.support.versions import long
from tests.support.weather import Pipeline, Start, wait_until

VERSIONS = (14, 18)

SETTINGS: dict[str, dict[str, Any]] = {
    "postgres": {"messages": True},
    "tables": {"exclude": ["public.fences"]},
    "kafka": {"topics": {"partitions": 1, "config": {"max.message.bytes": str(16 << 20)}}},
}
SMALL_CUTS: dict[str, dict[str, Any]] = {**SETTINGS, "delivery": {"cut_bytes": "64KiB"}}

Item: TypeAlias = int | bytes
"""The number of a row, or the content of a message."""

ROW_BYTES = 1000


class Writer:
    """Writes rows and messages on an ordinary connection."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection

    def row(self, number: int) -> None:
        self.connection.execute("INSERT INTO numbers VALUES (%s)", [number])

    def message(self, content: bytes, prefix: str = "p") -> int:
        """Write a message that is part of the transaction. Return the LSN that the server reports."""
        return self._emit(content, prefix, transactional=True)

    def alone(self, content: bytes, prefix: str = "p") -> int:
        """Write a message outside of any transaction. Return its LSN."""
        return self._emit(content, prefix, transactional=False)

    def _emit(self, content: bytes, prefix: str, *, transactional: bool) -> int:
        query = "SELECT pg_logical_emit_message(%s, %s, %b::bytea) - '0/0'"
        ((lsn,),) = self.connection.execute(query, [transactional, prefix, content]).fetchall()
        return int(lsn)


class Followed:
    """A pipeline, and everything that a consumer has read from its topics."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.daemon = pipeline.daemon
        self.cuts: list[Cut] = []
        self.reader = Reader(pipeline.kafka.bootstrap_servers, self.daemon.url, self.daemon.name)
        self._context = ExitStack()
        self._context.callback(self.reader.close)
        self.topic = f"{self.daemon.name}.messages"

    def writer(self) -> Writer:
        """Open a connection for writing."""
        return Writer(self._context.enter_context(closing(self.pipeline.database.connect())))

    def close(self) -> None:
        """Close all connections."""
        self._context.close()

    def read(self) -> list[Item]:
        """Return everything that was written so far, in order. Check all rules of the contract about cuts."""
        with self.pipeline.database.connect() as connection:
            connection.execute("INSERT INTO fences DEFAULT VALUES")  # flushes all earlier messages
            ((lsn,),) = connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchall()
        self.cuts += self.reader.read_until(int(lsn))
        for one in self.cuts:
            self._check(one)
        ends = [one.record["end_lsn"] for one in self.cuts]
        assert ends == sorted(ends)
        found = self.events
        assert [event.position for event in found] == sorted({event.position for event in found})
        return [item(event) for event in found]

    @property
    def events(self) -> list[Event]:
        """All events that were read, in the order of the cuts, and by position within each cut."""
        return [event for cut in self.cuts for event in sorted(cut.events, key=lambda event: event.position)]

    @property
    def messages(self) -> list[Event]:
        return [event for event in self.events if event.topic == self.topic]

    def _check(self, cut: Cut) -> None:
        record = cut.record
        transactions: dict[int, list[int]] = {event["lsn"]: [] for event in cut.events if event["seq"] >= 0}
        for event in sorted(cut.events, key=lambda event: event.position):
            if event["seq"] >= 0:
                transactions[event["lsn"]].append(event["seq"])
        assert all(seqs == list(range(len(seqs))) for seqs in transactions.values()), transactions
        lsns = sorted(transactions)
        assert (record["transactions"], record["events"]) == (len(lsns), len(cut.events))
        assert (record["first_lsn"], record["last_lsn"]) == ((lsns[0], lsns[-1]) if lsns else (None, None))
        assert all(event["lsn"] <= record["end_lsn"] for event in cut.events)
        messages = [event for event in cut.events if event.topic == self.topic]
        listed = [topic for topic in record["topics"] if topic["topic"] == self.topic]
        if messages:
            ((counts, (offsets,)),) = [(topic["counts"], topic["offsets"]) for topic in listed]
            assert counts == {"m": len(messages)}
            assert offsets["partition"] == 0
            assert offsets["first"] <= messages[0].offset < offsets["next"]


def item(event: Event) -> Item:
    assert event.value is not None
    if "content" not in event.value:
        number: int = event["after"]["n"]
        return number
    assert event.key == event["prefix"]
    is_alone = not event["transactional"]
    assert (event["seq"] == -1, event["xid"] is None, event["ts"] is None) == (is_alone,) * 3
    content: bytes = event["content"]
    return content


Follow: TypeAlias = Callable[..., Followed]


@pytest.fixture
def follow(start: Start, new_database: Callable[..., Database]) -> Iterator[Follow]:
    """Provide a function with the parameters of ``start``. It starts a pipeline with messages, and a consumer."""
    with ExitStack() as stack:

        def begin(
            settings: dict[str, dict[str, Any]] | None = None,
            *,
            version: int = 17,
            database: Database | None = None,
            **options: Any,  # noqa: ANN401 - passed to the fixture
        ) -> Followed:
            place = database or new_database(version)
            with place.connect() as connection:
                connection.execute("CREATE TABLE fences (id serial)")
            found = Followed(start(settings or SETTINGS, database=place, **options))
            stack.callback(found.close)
            return found

        yield begin


@pytest.fixture
def own_postgres(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """Provide a server that a test can stop. It uses fsync, because tests make it crash."""
    with Postgres(getattr(request, "param", 17), {"fsync": "on"}) as server:
        yield server


@pytest.mark.parametrize("version", VERSIONS)
class TestOrder:
    def test_messages_are_in_order_among_the_rows(self, follow: Follow, version: int) -> None:
        followed = follow(version=version)
        writer = followed.writer()
        with writer.connection.transaction():
            writer.message(b"first")
            writer.row(1)
            writer.message(b"after 1")
            writer.row(2)
        with writer.connection.transaction():
            writer.row(3)
            with writer.connection.transaction(force_rollback=True):
                writer.message(b"of a savepoint that is rolled back")
                writer.row(4)
            with writer.connection.transaction():
                writer.message(b"of one that is not")
                writer.row(4)
            writer.row(5)
        writer.message(b"a transaction by itself")
        writer.row(6)
        expected = [b"first", 1, b"after 1", 2, 3, b"of one that is not", 4, 5, b"a transaction by itself", 6]
        assert followed.read() == expected

    def test_messages_outside_transactions_arrive_in_order(self, follow: Follow, version: int) -> None:
        followed = follow(version=version)
        writer = followed.writer()
        with writer.connection.transaction(force_rollback=True):
            writer.row(1)
            writer.message(b"rolled back")
            writer.alone(b"of a transaction that is rolled back")
        with writer.connection.transaction():
            writer.row(2)
            writer.alone(b"before 2")
            writer.message(b"after 2")
            writer.alone(b"before 2, too")
        writer.alone(b"between")
        writer.row(3)
        alone = [b"of a transaction that is rolled back", b"before 2", b"before 2, too"]
        assert followed.read() == [*alone, 2, b"after 2", b"between", 3]

    def test_the_lsn_of_a_message_is_the_end_of_its_record(self, follow: Follow, version: int) -> None:
        followed = follow(version=version)
        writer = followed.writer()
        lsns = []
        for number in range(1, 51):
            with writer.connection.transaction():
                writer.row(number)
                lsns.append(writer.alone(b"%d" % number))
        assert followed.read() == [one for number in range(1, 51) for one in (b"%d" % number, number)]
        assert [event["lsn"] for event in followed.messages] == lsns
        # The commit record begins at the end of the message, so both have the same LSN. The message comes first.
        commits = [event["lsn"] for event in followed.events if event["seq"] >= 0]
        assert set(commits) & set(lsns)

    def test_a_large_transaction_is_not_streamed(self, follow: Follow, new_database: Any, version: int) -> None:  # noqa: ANN401 - a fixture that is a function
        database = new_database(version)
        with database.connect() as connection:
            connection.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
        followed = follow(SMALL_CUTS, database=database)
        writer = followed.writer()
        expected: list[Item] = []
        with writer.connection.transaction():
            for number in range(1, 301):
                writer.row(number)
                writer.message(b"%d" % number * ROW_BYTES)
                expected += [number, b"%d" % number * ROW_BYTES]
                with writer.connection.transaction(force_rollback=True):
                    writer.message(b"rolled back" * ROW_BYTES)
            writer.alone(b"alone")
        assert followed.read() == [b"alone", *expected]
        (large,) = [cut for cut in followed.cuts if len(cut.events) == len(expected)]
        assert large.record["transactions"] == 1
        log = followed.daemon.log_text()
        assert "streaming is off, because messages are published" in log
        query = "SELECT stream_txns, spill_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = %s"
        slot = [followed.pipeline.slot]
        wait_until(lambda: writer.connection.execute(query, slot).fetchone() == (0, True), "the slot's statistics")


@pytest.mark.parametrize("version", [16, 18])
def test_messages_of_a_prepared_transaction_arrive_at_its_commit(follow: Follow, version: int) -> None:
    followed = follow({**SETTINGS, "postgres": {"messages": True, "two_phase": True}}, version=version)
    writer = followed.writer()
    for gid, number in (("kept", 1), ("rolled back", 2)):
        with writer.connection.transaction():
            writer.row(number)
            writer.message(b"message of %d" % number)
            writer.alone(b"alone in %d" % number)
            writer.connection.execute(f"PREPARE TRANSACTION '{followed.daemon.name} {gid}'")
    writer.row(3)
    assert followed.read() == [b"alone in 1", b"alone in 2", 3]
    followed.daemon.kill()
    followed.daemon.start()
    writer.connection.execute(f"ROLLBACK PREPARED '{followed.daemon.name} rolled back'")
    writer.connection.execute(f"COMMIT PREPARED '{followed.daemon.name} kept'")
    assert followed.read() == [b"alone in 1", b"alone in 2", 3, 1, b"message of 1"]


class TestContent:
    def test_messages_may_contain_any_bytes(self, follow: Follow) -> None:
        followed = follow()
        writer = followed.writer()
        contents = [b"", bytes(range(256)), bytes(range(256)) * 20_000, b"\0"]
        for content in contents:
            writer.message(content)
            writer.alone(content)
        assert followed.read() == [content for content in contents for _ in range(2)]

    def test_messages_arrive_from_a_database_in_another_encoding(
        self, follow: Follow, postgres_server: Callable[..., Postgres]
    ) -> None:
        server = postgres_server(17)
        database = Database(server, "test_latin1_messages")
        with server.connect() as connection:
            connection.execute(f"CREATE DATABASE {database.name} ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")
        try:
            followed = follow(database=database)
            followed.writer().connection.execute("SELECT pg_logical_emit_message(true, 'Prüfung', 'Grüße')")
            assert followed.read() == ["Grüße".encode("latin-1")]
            assert followed.messages[0]["prefix"] == "Prüfung"
            followed.daemon.stop()
        finally:
            server.drop_database(database.name)


class TestExactlyOnce:
    @pytest.mark.long
    @pytest.mark.parametrize("version", VERSIONS)
    def test_messages_arrive_once_across_restarts(self, follow: Follow, version: int) -> None:
        followed = follow(version=version)
        done, expected = Flag(), []

        def write() -> None:
            writer = followed.writer()
            for number in count(1):
                if done.is_set():
                    return
                write_four(writer, number)
                expected.extend(four(number))

        thread = Thread(target=write)
        thread.start()
        try:
            for _ in range(3):
                followed.daemon.restart()
                followed.daemon.kill()
                followed.daemon.start()
        finally:
            done.set()
            thread.join()
        assert followed.read() == expected
        assert not followed.reader.read_rest()

    @pytest.mark.parametrize("own_postgres", [*long(14), 18], indirect=True)
    def test_messages_arrive_once_across_crashes_of_the_server(self, follow: Follow, own_postgres: Postgres) -> None:
        with own_postgres.database() as database:
            followed = follow(database=database)
            expected: list[Item] = []
            unsure: list[Item] = []
            for number in range(1, 21):
                writer = followed.writer()
                write_four(writer, number)
                expected += four(number)
                if number % 5 == 0:
                    writer.row(-number)  # flushes all earlier messages
                    expected.append(-number)
                    unsure.append(b"not flushed %d" % number)
                    writer.alone(b"not flushed %d" % number)
                    own_postgres.kill()
                    own_postgres.start()
            found = followed.read()
            assert [one for one in found if one not in unsure] == expected
            assert not followed.reader.read_rest()
            assert followed.daemon.stop() == 0

    @pytest.mark.long
    @pytest.mark.parametrize("version", VERSIONS)
    def test_a_message_may_be_the_last_event_before_a_restart(self, follow: Follow, version: int) -> None:
        followed = follow(version=version)
        writer = followed.writer()
        expected: list[Item] = []
        for number, again in enumerate((followed.daemon.restart, restart_hard(followed)) * 2):
            content = b"%d" % number
            lsn = writer.alone(content)  # the server flushes it soon, because its transaction has written WAL
            wait_until_confirmed(followed, lsn)
            again()
            writer.row(number)
            expected += [content, number]
            assert followed.read() == expected

    def test_a_kill_between_a_message_and_a_commit_at_the_same_lsn_loses_nothing(self, follow: Follow) -> None:
        """From PostgreSQL 17 on, a message can be flushed before its transaction commits.

        In this case, the end of the message is confirmed, and the commit record begins at the same LSN.
        """
        followed = follow()
        writer = followed.writer()
        expected: list[Item] = []
        for number in range(1, 6):
            with writer.connection.transaction():
                writer.row(number)
                emit = "SELECT pg_logical_emit_message(false, 'p', %s, true) - '0/0'"
                ((lsn,),) = writer.connection.execute(emit, [str(number)]).fetchall()
                wait_until_confirmed(followed, lsn)
                followed.daemon.kill()
            followed.daemon.start()
            expected += [b"%d" % number, number]
            assert followed.read() == expected
        same = [one for one, other in pairwise(followed.events) if one["lsn"] == other["lsn"]]
        assert same
        assert {event["seq"] for event in same} == {-1}

    @pytest.mark.parametrize("version", VERSIONS)
    def test_a_message_that_is_flushed_late_arrives(self, follow: Follow, version: int) -> None:
        """The WAL of a message is not flushed immediately if the surrounding transaction is rolled back."""
        followed = follow(version=version)
        writer = followed.writer()
        with writer.connection.transaction(force_rollback=True):
            lsn = writer.alone(b"late")
        followed.daemon.restart()
        writer.row(1)
        assert followed.read() == [b"late", 1]
        assert followed.messages[0]["lsn"] == lsn


def test_many_messages_arrive(follow: Follow) -> None:
    followed = follow()
    writer = followed.writer()
    emit = "SELECT pg_logical_emit_message(%s, 'p', n::text) FROM generate_series(1, 20000) AS n"
    writer.connection.execute(emit, [False])
    writer.connection.execute(emit, [True])
    assert followed.read() == [b"%d" % number for number in range(1, 20_001)] * 2


def test_full_cuts_list_their_topic_after_a_restart(follow: Follow) -> None:
    followed = follow()
    writer = followed.writer()
    writer.message(b"x")
    assert followed.read() == [b"x"]
    (message,) = followed.messages
    followed.daemon.restart()
    writer.row(1)
    assert followed.read() == [b"x", 1]
    full = [cut for cut in followed.cuts if cut.record["full"]][-1]
    assert full.events or not full.record["events"]
    assert full.offsets[followed.topic, 0][1] > message.offset
    assert full is not next(cut for cut in followed.cuts if message in cut.events)


def test_messages_arrive_if_all_tables_are_excluded(follow: Follow) -> None:
    followed = follow()
    followed.daemon.settings["tables"]["exclude"] = ["public.*"]
    followed.daemon.restart()
    writer = followed.writer()
    with writer.connection.transaction():
        writer.row(1)
        writer.message(b"x")
        writer.row(2)
        writer.message(b"y")
    assert followed.read() == [b"x", b"y"]


def write_four(writer: Writer, number: int) -> None:
    """Write a transaction with a row and two messages, and one more message outside of transactions."""
    with writer.connection.transaction():
        writer.row(number)
        writer.message(b"with %d" % number)
        writer.alone(b"beside %d" % number)
    writer.alone(b"after %d" % number)


def four(number: int) -> list[Item]:
    """Return the messages and rows of :func:`write_four` in the order of their delivery."""
    return [b"beside %d" % number, number, b"with %d" % number, b"after %d" % number]


def restart_hard(followed: Followed) -> Callable[[], None]:
    def restart() -> None:
        followed.daemon.kill()
        followed.daemon.start()

    return restart


def wait_until_confirmed(followed: Followed, lsn: int) -> None:
    """Wait until the slot has reached ``lsn``."""
    query = "SELECT confirmed_flush_lsn - '0/0' >= %s FROM pg_replication_slots WHERE slot_name = %s"
    with followed.pipeline.database.connect() as connection:
        arguments = [lsn, followed.pipeline.slot]
        wait_until(lambda: connection.execute(query, arguments).fetchone() == (True,), "the slot to move on")
