"""Tests that the rights in SECURITY.md are sufficient. If a right is missing, pgsluice must name it."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Timer
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, Message

from pgsluice.app import cli
from sandbox.daemon import Daemon
from sandbox.ports import ReservedPort
from sandbox.postgres import Postgres
from tests.support.acls import Right, allow, forbid, make_topics, rights
from tests.support.kafka import CREDENTIALS, SecuredKafka
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.tls import make_certificate, tls_postgres
from tests.support.weather import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("restored_logging")

SECURITY = (Path(__file__).parents[2] / "SECURITY.md").read_text()


def blocks(section: str, language: str) -> list[str]:
    """Return the code blocks of a section of SECURITY.md."""
    text = re.split(r"^#+ ", SECURITY.partition(f"\n### {section}\n")[2], flags=re.MULTILINE)[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


ROLE, PUBLICATION = blocks("PostgreSQL", "sql")
(HBA,) = blocks("PostgreSQL", "text")
DELIVERING, LIMITS, TOPICS = blocks("Kafka", "sh")
(READING,) = blocks("Snapshots", "sql")
(COMMANDING,) = blocks("Snapshots", "sh")
(REGISTRY,) = blocks("`pgsluice registry`", "sh")
(CONSUMER,) = blocks("Consumers", "sh")

OURS = HBA.replace("10.0.0.0/8", "127.0.0.1/32")
ADMIN = "host all postgres 127.0.0.1/32 trust\n"
PASSWORD = re.findall("PASSWORD '(.*?)'", ROLE)[0]
SECRETS = {"PGSLUICE_POSTGRES__PASSWORD": PASSWORD, "PGSLUICE_KAFKA__CLIENT__SASL_PASSWORD": "right"}
PARTITIONS = {"partitions": 1}
ELSEWHERE = {"postgres version", "max_slot_wal_keep_size"}
"""The names of findings that are not about rights."""

OLD, NEW = 10, 18

TABLES = """
CREATE ROLE shopkeeper;
GRANT CREATE ON DATABASE shop TO shopkeeper;
REVOKE ALL ON DATABASE shop FROM public;
REVOKE ALL ON SCHEMA public FROM public;
CREATE SCHEMA hidden;
CREATE TYPE hidden.state AS ENUM ('open', 'closed');
CREATE DOMAIN hidden.code AS text;
CREATE TABLE orders (id int PRIMARY KEY, state hidden.state, states hidden.state[], code hidden.code);
CREATE TABLE customers (id int PRIMARY KEY);
ALTER TABLE orders OWNER TO shopkeeper;
ALTER TABLE customers OWNER TO shopkeeper;
GRANT USAGE ON SCHEMA public TO shopkeeper;
REVOKE ALL ON orders, customers FROM public;
"""
"""Creates the tables. Other roles have no rights to them, which is stricter than PostgreSQL's default."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Postgres]]:
    """Provide a function that returns a server whose database was prepared with the statements of SECURITY.md."""
    certificate, key = make_certificate(tmp_path_factory.mktemp("tls"))
    servers: dict[int, Postgres] = {}
    with ExitStack() as running:

        def prepared(version: int) -> Postgres:
            if version not in servers:
                servers[version] = running.enter_context(tls_postgres(version, certificate, key))
                _prepare(servers[version])
            return servers[version]

        yield prepared


def _prepare(server: Postgres) -> None:
    server.create_database("shop")
    with server.connect("shop") as connection:
        connection.execute(TABLES.encode())
        connection.execute(ROLE.encode())
        connection.execute("SET ROLE shopkeeper")
        connection.execute(PUBLICATION.encode())
    let_in(server, ADMIN + OURS, possible=True)


class Scene:
    """One pipeline with its own name. ``grant`` gives it the rights that commands of SECURITY.md grant."""

    def __init__(
        self,
        kafka: SecuredKafka,
        server: Callable[[int], Postgres],
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.kafka = kafka
        self.server = server
        self.name = f"shop{uuid4().hex[:8]}"
        self._capsys = capsys
        self._set = monkeypatch.setenv

    def named(self, text: str) -> str:
        """Return a text of SECURITY.md with this pipeline's name in place of ``shop``, the name in the examples."""
        return text.replace("shop", self.name)

    def grant(self, commands: str, *, without: Callable[[Right], bool] = lambda _: False) -> None:
        """Run commands of SECURITY.md, but omit the rights for which ``without`` returns true."""
        allow(self.kafka, *(right for right in rights(self.named(commands)) if not without(right)))

    def configure(self, version: int, user: str = "pgsluice", snapshot: str = "never") -> None:
        """Set the environment variables with the settings for commands that run in this process."""
        settings = {
            "NAME": self.name,
            "POSTGRES__DSN": as_ours(self.server(version), sslmode="require"),
            "KAFKA__TOPIC_PREFIX": self.name,
            "KAFKA__BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "KAFKA__CLIENT": json.dumps({**CREDENTIALS, "sasl.username": user}),
            "KAFKA__TOPICS__PARTITIONS": "1",
            "SNAPSHOT__MODE": snapshot,
        }
        for variable, value in ({f"PGSLUICE_{key}": value for key, value in settings.items()} | SECRETS).items():
            self._set(variable, value)

    @contextmanager
    def daemon(self, version: int = NEW, mode: str = "exactly_once", snapshot: str = "never") -> Iterator[Daemon]:
        """Run the daemon as a separate process, and wait until it streams."""
        self.configure(version)
        client = {**CREDENTIALS, "sasl.username": "pgsluice"}
        settings: dict[str, dict[str, Any]] = {
            "kafka": {"client": client, "topics": PARTITIONS},
            "delivery": {"mode": mode},
            "snapshot": {"mode": snapshot},
        }
        conninfo = as_ours(self.server(version), sslmode="require")
        daemon = Daemon(self.name, conninfo, self.kafka.bootstrap_servers, settings, at_once=False)
        daemon.variables = SECRETS
        with daemon:
            daemon.start()
            yield daemon

    def ends(self, *command: str) -> tuple[int, str]:
        """Run a command that ends by itself. Return its exit code and its output."""
        self._capsys.readouterr()
        late = Timer(PATIENCE_S, os.kill, (os.getpid(), signal.SIGTERM))
        late.start()
        try:
            code = cli.main(command)
        finally:
            late.cancel()
        return code, "".join(self._capsys.readouterr())

    def problems(self) -> tuple[int, dict[str, str]]:
        """Return the exit code of ``pgsluice check``, and the findings that are about rights."""
        code, said = self.ends("check", "--json")
        found = [one for one in json.loads(said) if one["verdict"] != "OK"]
        return code, {one["name"]: one["detail"] for one in found if one["name"] not in ELSEWHERE}

    def insert(self, version: int = NEW) -> None:
        """Write a row."""
        with self.server(version).connect("shop") as connection:
            connection.execute("DELETE FROM orders; INSERT INTO orders VALUES (1, 'open', '{open,closed}', 'x')")

    def consume(self, content: str) -> Message:
        """Wait for a message with this content, as a consumer with the rights in SECURITY.md. Return the message.

        The message can also be an error of the consumer, if the text of the error has this content. Other errors are
        ignored, because the topic may not exist yet.
        """
        properties = {"group.id": "reports", "isolation.level": "read_committed", "auto.offset.reset": "earliest"}

        def poll() -> Message | None:
            message = consumer.poll(0.2)
            return message if message is not None and content in str(message.value()) else None

        with closing(Consumer({**self.kafka.properties("reports"), **properties})) as consumer:
            consumer.subscribe([f"{self.name}.public.orders"])
            found: Message = wait_until(poll, "a message")
        return found

    @contextmanager
    def reading(self, version: int) -> Iterator[None]:
        """Grant the role the right to read the tables with the statement in SECURITY.md. Revoke it after the block."""
        with self.server(version).connect("shop") as connection:
            connection.execute(READING.encode())
            try:
                yield
            finally:
                connection.execute(re.sub(r"GRANT (.*) TO", r"REVOKE \1 FROM", READING).encode())

    def assert_delivered(self) -> None:
        """Check that the consumer receives a row. One of its values has a type that only the type's owner may use."""
        assert self.consume("closed").error() is None


@pytest.fixture
def scene(
    secured_kafka: SecuredKafka,
    server: Callable[[int], Postgres],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Scene]:
    """Provide a pipeline without rights in Kafka. After the test, revoke the rights that the test has granted."""
    port = ReservedPort.any()
    monkeypatch.setenv("PGSLUICE_HTTP__LISTEN", f"127.0.0.1:{port.number}")
    monkeypatch.setenv("PGSLUICE_BUFFER__SPILL_DIR", str(tmp_path / "spill"))
    yield Scene(secured_kafka, server, capsys, monkeypatch)
    port.release()
    for user in ("pgsluice", "registry", "reports", "operator"):
        forbid(secured_kafka, f"User:{user}")


def as_ours(server: Postgres, **parameters: str) -> str:
    return server.conninfo("shop", user="pgsluice", **parameters)


class TestEnough:
    @pytest.mark.parametrize("version", [OLD, NEW])
    def test_to_deliver_exactly_once(self, version: int, scene: Scene) -> None:
        for commands in (DELIVERING, LIMITS, CONSUMER):
            scene.grant(commands)
        with scene.daemon(version) as daemon:
            scene.insert(version)
            scene.assert_delivered()
            assert scene.problems() == (0, {})
            wait_until(lambda: daemon.metric("pgsluice_slot_retained_bytes") is not None, "the slot to be sampled")
            daemon.stop_well()
        assert scene.problems() == (0, {})
        assert scene.ends("slot", "drop")[0] == 0

    def test_to_deliver_at_least_once(self, scene: Scene) -> None:
        scene.grant(DELIVERING, without=lambda right: right.kind == "TRANSACTIONAL_ID")
        scene.grant(CONSUMER)
        with scene.daemon(mode="at_least_once") as daemon:
            scene.insert()
            scene.assert_delivered()
            assert "transactions cannot be used, and are not needed" in daemon.log_text()

    @pytest.mark.parametrize("version", [OLD, NEW])
    def test_to_load_tables(self, version: int, scene: Scene) -> None:
        for commands in (DELIVERING, CONSUMER):
            scene.grant(commands)
        scene.insert(version)
        with scene.reading(version), scene.daemon(version, snapshot="initial") as daemon:
            wait_until(lambda: daemon.log_text().count('"loaded"') == 2, "the tables to be loaded")
            scene.assert_delivered()
            assert "a table cannot be read now" not in daemon.log_text()

    def test_without_the_right_to_read_changes_are_delivered(self, scene: Scene) -> None:
        for commands in (DELIVERING, LIMITS, CONSUMER):
            scene.grant(commands)
        with scene.daemon(snapshot="initial") as daemon:
            wait_until(lambda: daemon.log_text().count("permission denied") == 2, "two tables that cannot be read")
            scene.insert()
            scene.assert_delivered()
            wait_until(lambda: daemon.metric("pgsluice_snapshot_tables", state="blocked") == 2, "the metric")
            scene.configure(NEW, snapshot="initial")
            code, problems = scene.problems()
            assert (code, list(problems)) == (0, ["snapshot rights"])

    def test_to_give_commands(self, scene: Scene) -> None:
        """The daemon's user and any user with the rights of an operator may give commands."""
        scene.grant(DELIVERING)
        scene.grant(COMMANDING)
        scene.insert()
        with scene.reading(NEW), scene.daemon() as daemon:
            for user in ("pgsluice", "operator"):
                scene.configure(NEW, user)
                code, said = scene.ends("snapshot", "start", "public.orders")
                assert (code, said.splitlines()[-1]) == (0, "public.orders: loaded, 1 rows")
            assert scene.ends("snapshot", "status")[0] == 0
            assert daemon.alive

    def test_topics_made_beforehand_need_no_right_to_create_them(self, scene: Scene) -> None:
        """A table without a topic goes into quarantine, so a user who may create tables cannot stop the pipeline."""
        make_topics(scene.kafka, scene.named(TOPICS))
        scene.grant(DELIVERING, without=lambda right: right.operation == "Create")
        scene.grant(LIMITS)
        scene.grant(CONSUMER)
        with scene.daemon() as daemon:
            scene.insert()
            scene.assert_delivered()
            code, found = scene.problems()
            assert (code, [*found]) == (0, ["tables", "kafka may create topics"])
            with scene.server(NEW).connect("shop") as connection:
                connection.execute("INSERT INTO customers VALUES (1)")
            wait_until(lambda: daemon.status()["quarantined"], "the table to be in quarantine")
            (refused,) = daemon.status()["quarantined"]
            assert refused["table"] == "public.customers"
            assert f"Creating topic {scene.name}.public.customers: Authorization failed" in refused["reason"]
            assert "give pgsluice the right to create it (Create), or leave the table out with" in refused["reason"]
            assert daemon.stop() == 0


MISSING = {
    "Create shop.*": "Creating topic NAME.schemas: Authorization failed",
    "DescribeConfigs shop.*": "Reading the configuration of topic NAME.schemas: Topic authorization failed",
    "Write shop.*": "Registering a schema of subject NAME.transactions-value in topic NAME.schemas",
    "Read shop.checkpoint": "Looking for the probe in NAME.checkpoint: .*Topic authorization failed",
    "Read shop.transactions": "Looking for the probe in NAME.transactions: .*Topic authorization failed",
    "Read shop.schemas": "Reading topic NAME.schemas: .*Topic authorization failed",
    "Read shop.commands": "Reading topic NAME.commands: .*Topic authorization failed",
    "Write pgsluice-shop-shop": "Registering the transactional producer: .*Transactional Id authorization failed",
}
"""The message of pgsluice for each missing right in Kafka."""


class TestNeeded:
    @pytest.mark.parametrize("right", [one for one in rights(DELIVERING) if str(one) in MISSING], ids=str)
    def test_every_right_in_kafka_is_needed(self, right: Right, scene: Scene) -> None:
        scene.grant(DELIVERING, without=lambda one: str(one) == scene.named(str(right)))
        scene.configure(NEW)
        code, said = scene.ends("run")
        assert code == 77
        assert re.search(MISSING[str(right)].replace("NAME", scene.name), said)

    @pytest.mark.parametrize("topic", ["checkpoint", "transactions", "schemas", "snapshots", "commands"])
    def test_check_reports_missing_rights_to_existing_topics(self, topic: str, scene: Scene) -> None:
        make_topics(scene.kafka, scene.named(TOPICS))
        scene.grant(DELIVERING, without=lambda right: str(right) == f"Read {scene.name}.{topic}")
        scene.grant(LIMITS)
        scene.configure(NEW)
        assert scene.problems() == (77, {f"topic {scene.name}.{topic}": "the right to Read is missing"})

    def test_check_reports_missing_rights_to_the_transactional_id(self, scene: Scene) -> None:
        scene.grant(DELIVERING, without=lambda right: right.kind == "TRANSACTIONAL_ID")
        scene.grant(LIMITS)
        scene.configure(NEW)
        name = scene.named("pgsluice-shop-shop")
        assert scene.problems() == (77, {"kafka transactional id": f"the right to Write to {name} is missing"})
        right = Right("User:pgsluice", "Describe", "TRANSACTIONAL_ID", name, prefixed=False)
        allow(scene.kafka, right)
        assert scene.problems() == (77, {"kafka transactional id": f"the right to Write to {name} is missing"})

    def test_check_does_not_fence_the_owner(self, scene: Scene) -> None:
        for commands in (DELIVERING, LIMITS, CONSUMER):
            scene.grant(commands)
        with scene.daemon() as daemon:
            scene.insert()
            scene.assert_delivered()
            for _ in range(3):
                assert scene.problems() == (0, {})
            with scene.server(NEW).connect("shop") as connection:
                connection.execute("UPDATE orders SET code = 'after the check'")
            assert scene.consume("after the check").error() is None
            assert daemon.metric("pgsluice_sessions_total") == 1
            daemon.stop_well()

    def test_to_read_the_tables_that_are_loaded(self, scene: Scene) -> None:
        """Without the right to read the tables, changes are still delivered."""
        for commands in (DELIVERING, CONSUMER):
            scene.grant(commands)
        with scene.daemon(snapshot="initial") as daemon:
            wait_until(lambda: "permission denied for" in daemon.log_text(), "the refusal")
            scene.insert()
            scene.assert_delivered()
            assert '"loaded"' not in daemon.log_text()

    def test_to_read_the_topic_of_snapshots(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """The right to read this topic is not needed at the first start, because the topic is still empty."""
        scene.grant(DELIVERING)
        with scene.reading(NEW), scene.daemon(snapshot="initial") as daemon:
            wait_until(lambda: '"loaded"' in daemon.log_text(), "a table to be loaded")
            daemon.stop_well()
        forbid(scene.kafka, "User:pgsluice")
        scene.grant(DELIVERING, without=lambda right: str(right) == f"Read {scene.name}.snapshots")
        monkeypatch.setenv("PGSLUICE_SNAPSHOT__MODE", "initial")
        code, said = scene.ends("run")
        assert code == 77
        assert re.search(f"Reading {scene.name}.snapshots: .*Topic authorization failed", said)

    def test_to_read_limits_of_brokers(self, scene: Scene) -> None:
        """Without the right to read these limits, delivery works, and ``pgsluice check`` only warns."""
        scene.grant(DELIVERING)
        expected = {"kafka transaction timeout": "transaction.max.timeout.ms cannot be read"}
        with scene.daemon():
            assert scene.problems() == (0, expected)


def withdrawals() -> dict[str, tuple[str, str]]:
    """Map each right of the role in SECURITY.md to the statement that revokes it and the statement that grants it."""
    role, attributes = re.findall(r"CREATE ROLE (\w+) (.*) PASSWORD", ROLE)[0]
    found = {one: (f"ALTER ROLE {role} NO{one}", f"ALTER ROLE {role} {one}") for one in attributes.split()}
    for right, role in re.findall(r"GRANT (.*) TO (\w+)", ROLE):
        found[right] = (f"REVOKE {right} FROM {role}", f"GRANT {right} TO {role}")
    return found


REFUSALS = {
    "LOGIN": "not permitted to log in",
    "REPLICATION": "run ALTER ROLE ... REPLICATION for the role",
    "CONNECT ON DATABASE shop": "run GRANT CONNECT ON DATABASE",
}
"""The message of pgsluice for each missing right in PostgreSQL."""


@pytest.mark.parametrize("version", [OLD, NEW])
class TestNeededInPostgresql:
    @pytest.mark.parametrize("right", withdrawals())
    def test_every_right_of_the_role_is_needed(self, version: int, right: str, scene: Scene) -> None:
        withdraw, give = withdrawals()[right]
        with scene.server(version).connect("shop") as connection:
            connection.execute(withdraw.encode())
            try:
                assert_refused(scene, version, REFUSALS[right])
            finally:
                connection.execute(give.encode())

    def test_the_line_of_pg_hba_conf_is_needed(self, version: int, scene: Scene) -> None:
        let_in(scene.server(version), ADMIN, possible=False)
        try:
            assert_refused(scene, version, r"add a line to pg_hba\.conf")
        finally:
            let_in(scene.server(version), ADMIN + OURS, possible=True)


def assert_refused(scene: Scene, version: int, words: str) -> None:
    """Check that the daemon stops and its message contains these words. ``pgsluice check`` must also report them."""
    scene.grant(DELIVERING)
    scene.configure(version)
    code, said = scene.ends("run")
    assert code == 77
    assert re.search(words, said)
    code, found = scene.problems()
    assert code == 77
    assert re.search(words, " ".join(found.values()))


def let_in(server: Postgres, rules: str, *, possible: bool) -> None:
    """Change pg_hba.conf, and wait until the role can connect, or until it no longer can."""
    server.write_file("pg_hba.conf", rules)
    with server.connect() as admin:
        admin.execute("SELECT pg_reload_conf()")
    wait_until(lambda: _is_let_in(server) == possible, "the server to read its rules")


def _is_let_in(server: Postgres) -> bool:
    try:
        psycopg.connect(as_ours(server, password=PASSWORD)).close()
    except psycopg.OperationalError:
        return False
    return True


class TestOthers:
    def test_the_rights_of_the_registry_are_needed_and_sufficient(self, scene: Scene) -> None:
        make_topics(scene.kafka, scene.named(TOPICS))
        scene.configure(NEW, user="registry")
        code, said = scene.ends("registry")
        assert code == 77
        assert "Topic authorization failed" in said
        scene.grant(REGISTRY)
        stop = Timer(0, _stop_when_ready)
        stop.start()
        assert scene.ends("registry")[0] == 0
        stop.join()

    @pytest.mark.parametrize("right", rights(CONSUMER), ids=str)
    def test_every_right_of_consumers_is_needed(self, right: Right, scene: Scene) -> None:
        make_topics(scene.kafka, scene.named(TOPICS))
        scene.grant(CONSUMER, without=lambda one: one.kind == right.kind)
        refusals = {"TOPIC": KafkaError.TOPIC_AUTHORIZATION_FAILED, "GROUP": KafkaError.GROUP_AUTHORIZATION_FAILED}
        error = scene.consume("authorization failed").error()
        assert error is not None
        assert error.code() == refusals[right.kind]


def _stop_when_ready() -> None:
    wait_until(lambda: cli.main(["health", "--ready"]) == 0, "the registry")
    os.kill(os.getpid(), signal.SIGTERM)
