"""PostgreSQL servers of versions 10 to 18, with the settings for logical replication.

    with Postgres(17) as server, server.connect() as connection: ...

https://www.postgresql.org/docs/current/server-start.html
"""

import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from sandbox.account import server_account
from sandbox.errors import ServerError
from sandbox.installation import INCLUDED, SUPERUSER, copy_data, initdb, installation, template
from sandbox.ports import ReservedPort
from sandbox.prerequisites import require
from sandbox.process import Server, make_directory

DEFAULT_VERSION = 17

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 180

RELEASE_ATTEMPTS = 100
RELEASE_INTERVAL_S = 0.05

SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_prepared_transactions": "20",
    "fsync": "off",  # loses data only if the machine crashes, but not if a server is killed
    "timezone": "UTC",
    "log_timezone": "UTC",
    # With mmap, shared memory is in files of the data directory. By default, a killed server leaves files in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
}

SLOT_SYNC_VERSION = 17
"""The first version whose standbys can synchronise logical slots."""

TERMINATE_CONNECTIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
DROP_SLOTS = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"

StopMode = Literal["smart", "fast", "immediate"]
_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

QUOTE = "'"

STATE_LINE = 7
"""The index of the line of postmaster.pid that says whether the server has started. Line 0 has the pid."""


class Postgres:
    """One server with its own data directory, which is removed when the context ends."""

    host = "127.0.0.1"
    user = SUPERUSER

    def __init__(
        self,
        version: int = DEFAULT_VERSION,
        settings: Mapping[str, str] | None = None,
        *,
        own_identifier: bool = False,
    ) -> None:
        """Prepare a server of the major version ``version``. ``settings`` add to ``SETTINGS`` or override them.

        By default, the data directory is a copy of a template, so all servers of a version have the same system
        identifier. If ``own_identifier`` is true, the server gets a new identifier.
        """
        self.version = version
        self.settings = {**SETTINGS, **(settings or {})}
        """The settings in ``postgresql.conf``. A change takes effect with the next ``start``."""
        self._own_identifier = own_identifier
        self._server: Server | None = None
        self._context = ExitStack()

    def __enter__(self) -> Self:
        require(fetching=False)
        self._account = server_account()
        self._binaries = installation(self.version, self._account) / "bin"
        with ExitStack() as context:
            self._port = ReservedPort.any()
            context.callback(self._port.release)
            self._directory = make_directory(self._account)
            context.callback(shutil.rmtree, self._directory)
            self._make_data_directory()
            context.callback(self._end)
            self.start()
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    @property
    def port(self) -> int:
        """The TCP port. It does not change until the context ends."""
        return self._port.number

    @property
    def data_directory(self) -> Path:
        """The data directory."""
        return self._directory / "data"

    @property
    def pid(self) -> int:
        """The pid of the postmaster. Raises ServerError if the server is not running."""
        return self._running().pid

    def conninfo(self, dbname: str = "postgres", **parameters: str | int) -> str:
        """Return a libpq connection string for the superuser."""
        ours: dict[str, str | int] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "dbname": dbname,
        }
        return make_conninfo("", **{**ours, **parameters})

    def connect(self, dbname: str = "postgres", *, autocommit: bool = True) -> psycopg.Connection:
        """Open an ordinary connection as the superuser."""
        return psycopg.connect(self.conninfo(dbname), autocommit=autocommit)

    def create_database(self, name: str) -> None:
        """Create an empty database."""
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def drop_database(self, name: str) -> None:
        """Drop a database. First remove what would prevent this: its prepared transactions, connections and slots."""
        database = sql.Identifier(name)
        with self.connect(name) as connection:
            _roll_back_prepared(connection)
        with self.connect() as connection:
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(database))
            connection.execute(TERMINATE_CONNECTIONS, [name])
            _retried(lambda: connection.execute(DROP_SLOTS, [name]))
            _retried(lambda: connection.execute(sql.SQL("DROP DATABASE {}").format(database)))

    @contextmanager
    def database(self) -> Iterator["Database"]:
        """Create a database with a unique name. Drop it when the context ends."""
        database = Database(self, f"test_{uuid.uuid4().hex[:12]}")
        self.create_database(database.name)
        try:
            yield database
        finally:
            self.drop_database(database.name)

    def standby(self, settings: Mapping[str, str] | None = None) -> "Standby":
        """Return a standby of this server as a context manager. Entering the context restarts this server."""
        return Standby(self, settings)

    def write_file(self, name: str, text: str) -> None:
        """Write a file, such as a key, into the data directory. Only the server may read it."""
        path = self.data_directory / name
        path.touch(mode=0o600)
        path.write_text(text)
        shutil.chown(path, self._account.uid, self._account.gid)

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        settings = {**self.settings, "port": str(self.port)}
        lines = (f"{name} = '{value.replace(QUOTE, 2 * QUOTE)}'\n" for name, value in settings.items())
        self.write_file(INCLUDED, "".join(lines))
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
        """Stop the server, then start it."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill the postmaster and all its children with SIGKILL."""
        self._running().kill()
        self._forget()

    def take_snapshot(self) -> None:
        """Stop the server, copy its data directory, and start the server. The copy replaces any earlier copy."""
        self.stop()
        shutil.rmtree(self._snapshot, ignore_errors=True)
        copy_data(self.data_directory, self._snapshot)
        self.start()

    def restore_snapshot(self) -> None:
        """Kill the server, replace its data directory with the snapshot, and start the server.

        The timeline stays the same, so the server reuses the LSNs that it has used since the snapshot.
        """
        self.kill()
        shutil.rmtree(self.data_directory)
        self._snapshot.rename(self.data_directory)
        self.start()

    def log_text(self) -> str:
        """Return everything that the server has logged since the context began."""
        return self._log.read_text(errors="replace")

    def _make_data_directory(self) -> None:
        if self._own_identifier:
            initdb(self.version, self._account, self.data_directory)
        else:
            copy_data(template(self.version, self._account), self.data_directory)

    @property
    def _snapshot(self) -> Path:
        return self._directory / "snapshot"

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

    def _end(self) -> None:
        # The data is about to be removed, so the server need not write a checkpoint.
        if self._server is not None:
            self.kill()

    def _is_ready(self) -> bool:
        """Return whether the start has finished, with the same check as ``pg_ctl -w``."""
        try:
            lines = (self.data_directory / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        state = "".join(lines[STATE_LINE:]).strip()
        return lines[:1] == [str(self.pid)] and state in ("ready", "standby")


class Standby(Postgres):
    """A streaming standby of a primary. From PostgreSQL 17 on, it synchronises logical slots.

    Promote it with ``pg_promote()``.

    https://www.postgresql.org/docs/current/logicaldecoding-explanation.html#LOGICALDECODING-REPLICATION-SLOTS-SYNCHRONIZATION
    """

    def __init__(self, primary: Postgres, settings: Mapping[str, str] | None = None) -> None:
        """Prepare a standby that follows ``primary`` by a physical slot. This needs PostgreSQL 12 or newer."""
        super().__init__(primary.version, {**primary.settings, **(settings or {})})
        self._primary = primary

    def _make_data_directory(self) -> None:
        slot = f"standby_{self.port}"
        with self._primary.connect() as connection:
            connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", [slot])
        self._primary.stop()
        copy_data(self._primary.data_directory, self.data_directory)
        self._primary.start()
        for copied_slot in (self.data_directory / "pg_replslot").iterdir():
            shutil.rmtree(copied_slot)
        self.write_file("standby.signal", "")
        self.settings |= {
            "primary_conninfo": self._primary.conninfo(),
            "primary_slot_name": slot,
            "hot_standby_feedback": "on",
        }
        if self.version >= SLOT_SYNC_VERSION:
            self.settings["sync_replication_slots"] = "on"


@dataclass(frozen=True, slots=True)
class Database:
    """One database of a server."""

    server: Postgres
    name: str

    def conninfo(self, **parameters: str | int) -> str:
        """Return a libpq connection string for the superuser."""
        return self.server.conninfo(self.name, **parameters)

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection:
        """Open an ordinary connection as the superuser."""
        return self.server.connect(self.name, autocommit=autocommit)


def _roll_back_prepared(connection: psycopg.Connection) -> None:
    prepared = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    for (gid,) in prepared.fetchall():
        with suppress(psycopg.errors.UndefinedObject):  # another session may have ended the transaction
            connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid))


def _retried(action: Callable[[], object]) -> None:
    """Retry a command, because the server refuses it until terminated backends have ended."""
    for _ in range(RELEASE_ATTEMPTS):
        with suppress(psycopg.errors.ObjectInUse):
            action()
            return
        time.sleep(RELEASE_INTERVAL_S)
    action()
