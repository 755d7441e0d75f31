"""Tests the sandbox: servers of every PostgreSQL version, a single Kafka broker, a Kafka cluster, and Spark's jars."""

import importlib.util
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata
from psycopg.conninfo import conninfo_to_dict

from sandbox import artifacts, prompt, spark
from sandbox.artifacts import CACHE_VARIABLE, cache_root, fetch
from sandbox.broker import Listener
from sandbox.errors import ServerError
from sandbox.java import run_program
from sandbox.kafka import Kafka, class_archive
from sandbox.postgres import Database, Postgres, StopMode
from sandbox.supervisor import descendants
from tests.support.links import Links
from tests.support.versions import covered

REPOSITORY = Path(artifacts.__file__).parents[1]
WAIT_S = 180
MIB = 1024 * 1024


def one(connection: psycopg.Connection, query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def wait_until(condition: Callable[[], object]) -> None:
    for _ in count():  # pytest-timeout ends this loop if the condition never becomes true
        if condition():
            return
        time.sleep(0.05)


# ---------------------------------------------------------------- PostgreSQL


@pytest.mark.parametrize("version", covered())
def test_every_version_serves_logical_replication_and_survives_kill(version: int) -> None:
    with Postgres(version) as server:
        with server.connect() as connection:
            assert str(one(connection, "SHOW server_version")).split(".")[0] == str(version)
            one(connection, "SELECT pg_create_logical_replication_slot('slot', 'pgoutput')")
            connection.execute("CREATE TABLE kept AS SELECT 1 AS a")
        server.kill()
        with pytest.raises(ServerError, match="is not running"):
            assert server.pid
        server.start()
        with server.connect() as connection:
            assert one(connection, "SELECT a FROM kept") == 1
            assert one(connection, "SELECT slot_name FROM pg_replication_slots") == "slot"
        assert "was not properly shut down" in server.log_text()


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
def test_only_an_immediate_stop_is_not_orderly(mode: StopMode) -> None:
    with Postgres() as server:
        pid = server.pid
        server.restart(mode)
        assert server.pid != pid
        assert ("was not properly shut down" in server.log_text()) == (mode == "immediate")


def test_settings_override_defaults_from_the_next_start_on() -> None:
    with Postgres(settings={"fsync": "on", "application_name": "it's"}) as server:
        with server.connect() as connection:
            assert one(connection, "SHOW fsync") == "on"
            assert one(connection, "SELECT setting FROM pg_file_settings WHERE name = 'application_name'") == "it's"
        server.settings["wal_level"] = "replica"
        server.restart()
        with server.connect() as connection:
            assert one(connection, "SHOW wal_level") == "replica"


def test_a_server_that_does_not_start_reports_its_log_and_leaves_nothing() -> None:
    server = Postgres(settings={"no_such_setting": "1"})
    with pytest.raises(ServerError, match=r'(?s)ended while starting.*unrecognized.*"no_such_setting"'), server:
        pass
    assert not server.data_directory.parent.exists()


def test_servers_of_a_version_share_an_identifier_by_default() -> None:
    def identifier(server: Postgres) -> object:
        with server.connect() as connection:
            return one(connection, "SELECT system_identifier FROM pg_control_system()")

    with Postgres() as first, Postgres() as second, Postgres(own_identifier=True) as third:
        assert identifier(first) == identifier(second) != identifier(third)


def test_a_database_is_dropped_even_if_it_is_in_use(postgres_server: Callable[..., Postgres]) -> None:
    server = postgres_server()
    with server.database() as database, server.connect() as elsewhere:
        connection = database.connect()
        one(connection, "SELECT pg_create_logical_replication_slot('held', 'pgoutput')")
        connection.execute("CREATE TABLE t (a int)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("PREPARE TRANSACTION 'it''s prepared'")
        replication = psycopg.pq.PGconn.connect(database.conninfo(replication="database").encode())
        replication.exec_(b"START_REPLICATION SLOT held LOGICAL 0/0 (proto_version '1', publication_names 'none')")
        wait_until(lambda: one(elsewhere, "SELECT active FROM pg_replication_slots WHERE slot_name = 'held'"))
    replication.finish()
    connection.close()
    with server.connect() as connection:
        names = connection.execute("SELECT datname FROM pg_database WHERE datname = %s", [database.name])
        assert names.fetchall() == []
        assert one(connection, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'held'") == 0


def test_each_fixture_provides_its_own_database(database: Database, new_database: Callable[..., Database]) -> None:
    others = [new_database(), new_database(10)]
    assert len({database.name, *(other.name for other in others)}) == 3
    assert others[0].server is database.server
    assert others[1].server.version == 10
    with others[1].connect() as connection:
        assert one(connection, "SELECT current_database()") == others[1].name


def test_a_standby_follows_and_takes_over_with_its_failover_slot() -> None:
    with Postgres(17) as primary, primary.standby() as standby:
        with primary.connect() as connection, standby.connect() as following:
            one(connection, "SELECT pg_create_logical_replication_slot('s', 'pgoutput', failover => true)")
            connection.execute("CREATE TABLE copied AS SELECT 1 AS a")
            assert one(following, "SELECT pg_is_in_recovery()") is True

            def is_synchronised() -> bool:
                # Advance the slot, because the standby may no longer have the WAL at the position of an unused slot.
                connection.execute("SELECT pg_log_standby_snapshot()")
                connection.execute("SELECT pg_replication_slot_advance('s', pg_current_wal_lsn())")
                return one(following, "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary") == 1

            wait_until(is_synchronised)
        primary.kill()
        with standby.connect() as connection:
            assert one(connection, "SELECT pg_promote()") is True
            connection.execute("INSERT INTO copied VALUES (2)")


def test_a_server_that_is_restored_from_a_snapshot_reuses_positions() -> None:
    with Postgres() as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS a")
        server.take_snapshot()
        with server.connect() as connection:
            connection.execute("CREATE TABLE lost AS SELECT generate_series(1, 10000)")
            end = one(connection, "SELECT pg_current_wal_lsn() - '0/0'")
        server.restore_snapshot()
        with server.connect() as connection:
            assert one(connection, "SELECT a FROM kept") == 1
            assert one(connection, "SELECT to_regclass('lost')") is None
            assert one(connection, f"SELECT pg_current_wal_lsn() - '0/0' < {end}")
            assert one(connection, "SELECT timeline_id FROM pg_control_checkpoint()") == 1


def test_files_of_the_data_directory_belong_to_the_server() -> None:
    with Postgres() as server:
        server.write_file("pg_hba.conf", "host all all 127.0.0.1/32 reject\n")
        server.restart()
        with pytest.raises(psycopg.OperationalError, match="rejects connection"):
            server.connect()


# ---------------------------------------------------------------- Kafka


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return create_topic(kafka)


def create_topic(kafka: Kafka, partitions: int = 1, **config: str) -> str:
    name = f"sandbox-{uuid4().hex[:12]}"
    new = NewTopic(name, partitions, config={key.replace("_", "."): value for key, value in config.items()})
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([new])[name].result(WAIT_S)
    return name


def produce(kafka: Kafka, topic: str, *values: bytes, **config: object) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all", **config})
    errors: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors == [None] * len(values)


def consume(kafka: Kafka, topic: str, count: int) -> list[bytes | None]:
    client = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "sandbox", "isolation.level": "read_committed"}
    consumer = Consumer({**client, "fetch.message.max.bytes": 64 * MIB, "receive.message.max.bytes": 70 * MIB})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    while len(found) < count:
        found += consumer.consume(count, 1)
    consumer.close()
    assert [message.error() for message in found] == [None] * count
    return [message.value() for message in found]


@pytest.mark.long
def test_records_survive_stop_and_kill() -> None:
    with Kafka() as kafka:
        topic = create_topic(kafka)
        produce(kafka, topic, b"1")
        kafka.stop()
        with pytest.raises(ServerError, match="broker 1 is not running"):
            kafka.pid()
        kafka.start()
        produce(kafka, topic, b"2")
        kafka.kill()
        kafka.start()
        produce(kafka, topic, b"3")
        assert consume(kafka, topic, 3) == [b"1", b"2", b"3"]
        assert kafka.log_text().count("Kafka Server started") == 3


def test_a_broker_uses_the_class_archive(kafka: Kafka) -> None:
    assert str(class_archive()) in Path(f"/proc/{kafka.pid()}/maps").read_text()


def test_a_topic_can_hold_records_of_50_mb(kafka: Kafka) -> None:
    topic = create_topic(kafka, max_message_bytes=str(60 * MIB))
    value = os.urandom(50 * MIB)
    produce(kafka, topic, value, **{"message.max.bytes": 60 * MIB})
    assert consume(kafka, topic, 1) == [value]


def test_only_committed_transactions_are_read(kafka: Kafka, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(WAIT_S)
        end(WAIT_S)
    assert consume(kafka, topic, 1) == [b"committed"]


def test_a_paused_broker_does_not_answer_until_it_is_resumed() -> None:
    with Kafka() as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.list_topics(timeout=WAIT_S)
        kafka.pause()
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=1)
        kafka.resume()
        assert admin.list_topics(timeout=WAIT_S).brokers.keys() == {1}


@pytest.mark.long
def test_a_cluster_of_three_brokers_works_without_one_of_them() -> None:
    with Kafka(brokers=3) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        topic = create_topic(kafka)

        def partition() -> PartitionMetadata:
            return admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions[0]

        # one broker creates the topic, and the other brokers may learn of it slightly later
        wait_until(lambda: admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions)
        assert len(partition().replicas) == 3
        leader = partition().leader
        produce(kafka, topic, b"1")
        kafka.kill(leader)
        produce(kafka, topic, b"2")
        kafka.start()
        wait_until(lambda: len(partition().isrs) == 3)
        assert consume(kafka, topic, 2) == [b"1", b"2"]


@pytest.mark.long
@pytest.mark.parametrize("silently", [False, True])
def test_an_isolated_broker_remains_leader_beside_the_new_leaders(silently: bool) -> None:  # noqa: FBT001
    links = Links()
    notices_soon = {"broker.heartbeat.interval.ms": "500", "broker.session.timeout.ms": "2000"}
    with Kafka(brokers=3, settings=notices_soon, forward=links.forward) as kafka:
        client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for future in client.create_topics([NewTopic("topic", 6, 3)]).values():
            future.result()
        kafka.wait_until_in_sync()
        assert kafka.rivals(2) == 0
        links.isolate(2, silently=silently)
        wait_until(lambda: kafka.rivals(2) > 0)
        links.heal()
        kafka.wait_until_in_sync()
        assert kafka.rivals(2) == 0


def test_a_broker_can_have_listeners_with_and_without_passwords() -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": module,
    }
    users = ["--add-scram", "SCRAM-SHA-256=[name=pgsluice,password=right]"]
    listeners = [Listener("SASL", "SASL_PLAINTEXT")]
    with Kafka(settings=settings, listeners=listeners, format_options=users) as kafka:
        client = {"bootstrap.servers": kafka.addresses("SASL"), "security.protocol": "SASL_PLAINTEXT", "log_level": 0}
        client |= {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "pgsluice"}
        admin = AdminClient({**client, "sasl.password": "right"})
        advertised = admin.list_topics(timeout=WAIT_S).brokers[1]
        assert f"{advertised.host}:{advertised.port}" == kafka.addresses("SASL")
        with pytest.raises(KafkaException):
            AdminClient({**client, "sasl.password": "wrong"}).list_topics(timeout=5)


MURMUR2 = """
public class Murmur2 {
    public static void main(String[] keys) {
        for (String key : keys) {
            System.out.println(org.apache.kafka.common.utils.Utils.murmur2(key.getBytes()));
        }
    }
}
"""


def test_java_programs_run_against_the_jars_of_kafka(tmp_path: Path) -> None:
    source = tmp_path / "Murmur2.java"
    source.write_text(MURMUR2)
    # the expected values are those of Kafka's UtilsTest
    assert run_program(source, fetch("kafka"), ["21", "foobar"]).split() == ["-973932308", "-790332482"]


# ---------------------------------------------------------------- Spark


@pytest.mark.parametrize("version", [spark.NEWEST, spark.FLOOR])
def test_jars_of_spark_contain_the_kafka_source_avro_and_delta(version: str) -> None:
    names = {artifact(jar.name) for jar in spark.jars(version)}
    assert {"kafka-clients", "commons-pool2", "delta-storage", "spark-avro_2.13"} <= names
    assert {"spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"} <= names
    assert any(name.startswith("delta-spark_") for name in names)


def test_jars_of_spark_exclude_those_of_pyspark() -> None:
    wheel = importlib.util.find_spec("pyspark")
    if wheel is None or wheel.origin is None:
        pytest.skip("PySpark is not installed")
    theirs = {artifact(jar.name) for jar in (Path(wheel.origin).parent / "jars").iterdir()}
    assert theirs.isdisjoint(artifact(jar.name) for jar in spark.jars(spark.NEWEST))


def artifact(jar: str) -> str:
    """Return the name of a jar without its version and suffix."""
    return re.sub(r"-\d+(\.\d+)+[-.\w]*\.jar$", "", jar)


# ---------------------------------------------------------------- the process that started the servers is killed


OWNER = """if True:
    import time
    from sandbox.kafka import Kafka
    from sandbox.postgres import Postgres
    with Postgres() as server, Kafka() as kafka, server.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT * FROM generate_series(1, 100000)")
        print(server.data_directory.parent, server.pid, flush=True)
        connection.execute("SELECT pg_sleep(1000)")
"""


def test_the_servers_of_a_killed_process_leave_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        directory, postmaster = owner.stdout.readline().split()
        assert shared_memory_of(int(postmaster))
        watched = [os.pidfd_open(pid) for pid in descendants(owner.pid)]
        assert len(watched) >= 8, "there must be two supervisors, a broker, a postmaster and its children"
        owner.kill()
    for process in watched:
        assert select.select([process], [], [], WAIT_S)[0]
        os.close(process)
    assert not Path(directory).exists()
    assert not shared_memory_of(int(postmaster))


def shared_memory_of(creator: int) -> list[str]:
    names, *rows = (line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines())
    return [row[names.index("shmid")] for row in rows if row[names.index("cpid")] == str(creator)]


# ---------------------------------------------------------------- the command line


@pytest.fixture
def own_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a separate sandbox, because the usual one may be running. The two share the downloaded files."""
    root = tmp_path / "cache"
    root.mkdir(mode=0o755)
    for generation in cache_root().iterdir():
        if generation.is_dir():
            (root / generation.name).symlink_to(generation)
    monkeypatch.setenv(CACHE_VARIABLE, str(root))
    yield
    command_line("down")


def command_line(*arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "sandbox", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return ended.stdout + ended.stderr


@pytest.mark.long
@pytest.mark.usefixtures("own_session")
def test_up_status_psql_and_down_work_together() -> None:
    up = command_line("up", "--postgres", "12")
    assert command_line("status") == up
    assert command_line("up", "--postgres", "12") == up
    assert "stop it first with `down`" in command_line("up", "--postgres", "13")
    assert "a sandbox is running or starting" in command_line("serve")
    postgres, kafka = (line.partition(": ")[2] for line in up.splitlines())
    assert "12." in command_line("psql", "SHOW server_version")
    assert AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=WAIT_S).brokers.keys() == {1}
    assert command_line("down") == "down\n"
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(postgres)
    assert command_line("status") == "nothing is running\n"


def test_fetch_prints_the_paths() -> None:
    installed, jars = command_line("fetch", "postgres-17", "kafka").splitlines()
    assert (Path(installed) / "bin" / "postgres").exists()
    assert Path(jars) == fetch("kafka")


def test_statements_are_executed_without_psql(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    statements = ["CREATE TABLE t (a int, b text)", "INSERT INTO t VALUES (1, NULL)", "TABLE t", "NONSENSE"]
    prompt.run_in_python(database.conninfo(), statements)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["CREATE TABLE", "INSERT 0 1", "a\tb", "1\tNone"]
    assert lines[4].startswith("syntax error")


def test_a_typed_statement_ends_with_a_semicolon(
    database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["SELECT", "  41 + 1 AS answer;", "SELECT 'unfinished'"])

    def read(_: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setenv("PATH", "/nonexistent")
    prompt.run(database.conninfo(), None)
    assert capsys.readouterr().out == "answer\n42\n"
    assert conninfo_to_dict(database.conninfo())["dbname"] == database.name
