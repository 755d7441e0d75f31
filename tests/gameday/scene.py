"""The pipeline of the game day: PostgreSQL with TLS and a password, a broker, one daemon, and Prometheus with alerts.

The daemon reaches PostgreSQL through a proxy, whose address stays the same when a standby takes over. A writer inserts
numbers all the time. If the server does not accept a number, the writer continues with the next number.
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from sandbox.daemon import Daemon
from sandbox.errors import ServerError
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres, Standby
from sandbox.prometheus import Prometheus
from tests.support.authority import Authority
from tests.support.proxy import Proxy
from tests.support.runbook import ROOT, Scene
from tests.support.tls import tls_postgres
from tests.support.weather import Pipeline, configured, prepare

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"

HBA = """
hostssl all pgsluice 127.0.0.1/32 scram-sha-256
host all postgres 127.0.0.1/32 trust
host replication postgres 127.0.0.1/32 trust
"""

NAME = "gameday"
WRITE_INTERVAL_S = 0.05
RETRY_S = 0.2

IMPATIENT = (
    (r"for: \d+[mh]", "for: 2s"),
    (r"\[1h\]", "[20s]"),
    (r"lag_seconds\) > 300", "lag_seconds) > 5"),
    (r"timestamp_seconds\) > 300", "timestamp_seconds) > 30"),  # pgsluice queries the slot every ten seconds
    (r"oldest_prepared_seconds\) > 3600", "oldest_prepared_seconds) > 5"),
)
"""The changes to the alerting rules: patterns and replacements. They only shorten times from minutes to seconds."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "postgres": {"failover": True},
    "buffer": {"memory_max": "1MiB", "spill_max": "4MiB"},
    "tables": {"rules": [{"match": "public.orders", "types": {"amount": "uuid"}}]},
    "kafka": {"client": {"batch.size": 16384}},
}
"""The daemon's settings. ``memory_max`` and ``spill_max`` are so low that one transaction exceeds them.

The rule for ``orders`` chooses a type that its column cannot have.
"""


def impatient(directory: Path) -> Path:
    """Write the alerting rules with the shorter times to a file. Return its path."""
    text = ALERTS.read_text()
    for pattern, replacement in IMPATIENT:
        text, count = re.subn(pattern, replacement, text)
        assert count, pattern
    rules = directory / "alerts.yaml"
    rules.write_text(text)
    return rules


class GameDay(Scene):
    """The pipeline under test, and everything around it that can be broken."""

    def __init__(self, pipeline: Pipeline, authority: Authority, password: Path, proxy: Proxy) -> None:
        super().__init__(pipeline)
        self.authority = authority
        self.proxy = proxy
        self.kafka = pipeline.kafka
        self.stack = ExitStack()
        """The servers that a breakage adds, such as a standby."""
        self.standby: Standby | None = None
        self.open = ExitStack()
        """The connections with open transactions. The repair closes them."""
        self._password = password
        self._stop = Event()
        self._writer = Thread(target=self._write, daemon=True)

    @property
    def server(self) -> Postgres:
        """The primary server."""
        return self.pipeline.database.server

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Insert numbers within the block, even if the server is down at times."""
        self._writer.start()
        try:
            yield
        finally:
            self._stop.set()
            self._writer.join()

    def change_password(self, password: str) -> None:
        """Change the password of pgsluice's role on the server, but not in the file that pgsluice reads."""
        self.execute(f"ALTER ROLE pgsluice PASSWORD '{password}'")

    def tell_password(self, password: str) -> None:
        """Write the password to the file that pgsluice reads."""
        self._password.write_text(password)

    def show_certificate(self, certificate: Path, key: Path) -> None:
        """Make the server present another certificate."""
        for name, file in (("server.crt", certificate), ("server.key", key)):
            self.server.write_file(name, file.read_text())
        self.execute("SELECT pg_reload_conf()")

    def end_walsender(self) -> None:
        """Terminate the walsender of pgsluice, as an administrator might do."""
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE usename = 'pgsluice'")

    def take_slot(self, statement: str) -> None:
        """Terminate the walsender, and run a statement before pgsluice uses the slot again. ``%s`` is the slot."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            self.end_walsender()
            with suppress(psycopg.errors.ObjectInUse), self.pipeline.database.connect() as connection:
                connection.execute(statement.encode(), [self.pipeline.slot])
                return
        raise ServerError("the slot is always in use")

    def _write(self) -> None:
        """Insert one number after the other. Each number is higher than all former ones, even after an error."""
        number = 1_000_000
        while not self._stop.is_set():
            with suppress(psycopg.Error), self.pipeline.database.connect() as connection:
                while not self._stop.wait(WRITE_INTERVAL_S):
                    number += 1
                    connection.execute("INSERT INTO numbers VALUES (%s)", [number])
            self._stop.wait(RETRY_S)


@contextmanager
def game_day(directory: Path) -> Iterator[tuple[GameDay, Prometheus]]:
    """Start everything, and yield the scene when the pipeline streams."""
    authority = Authority(directory, "authority")
    certificate, key = authority.issue("server", ["localhost"])
    password = directory / "password"
    password.write_text("first")
    with ExitStack() as stack:
        server = stack.enter_context(tls_postgres(17, certificate, key))
        kafka = stack.enter_context(Kafka())
        proxy = stack.enter_context(Proxy(server.host, server.port))
        _prepare(server)
        daemon = Daemon(NAME, _conninfo(authority, proxy), kafka.bootstrap_servers, _settings(password), at_once=False)
        stack.enter_context(daemon)
        daemon.start()
        scene = GameDay(Pipeline(Database(server, "shop"), kafka, daemon), authority, password, proxy)
        stack.enter_context(scene.stack)
        prometheus = stack.enter_context(Prometheus("pgsluice", [daemon.url], impatient(directory)))
        stack.enter_context(scene.writing())
        yield scene, prometheus


def _conninfo(authority: Authority, proxy: Proxy) -> str:
    return make_conninfo(
        "",
        host="localhost",
        hostaddr=proxy.host,
        port=proxy.port,
        dbname="shop",
        user="pgsluice",
        sslmode="verify-full",
        sslrootcert=str(authority.certificate),
    )


def _settings(password: Path) -> dict[str, dict[str, Any]]:
    given = configured(SETTINGS)
    given["postgres"]["password_file"] = str(password)
    return given


def _prepare(server: Postgres) -> None:
    server.write_file("pg_hba.conf", HBA)
    server.create_database("shop")
    database = Database(server, "shop")
    prepare(database)
    with database.connect() as connection:
        # Make the server send large transactions before they commit.
        connection.execute("ALTER DATABASE shop SET logical_decoding_work_mem = '64kB'")
        connection.execute("CREATE ROLE pgsluice LOGIN REPLICATION PASSWORD 'first'")
        connection.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA public TO pgsluice"))
        connection.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO pgsluice")
        connection.execute("SELECT pg_reload_conf()")
