"""Options of a connection to PostgreSQL: libpq's parameters, and the settings that pgsluice always sets itself.

The replication connection and the catalog use these options. The daemon creates them from its configuration.

https://www.postgresql.org/docs/current/libpq-connect.html
"""

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgsluice.errors import ConfigError

# A value's text must depend only on the value, and never on ALTER ROLE ... SET or ALTER DATABASE ... SET, which also
# apply to walsenders. Besides, a time-out that is meant for interactive users must not end the session. All these
# settings exist in PostgreSQL 10 and later.
SESSION_SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "",
    "quote_all_identifiers": "off",
    "client_min_messages": "notice",  # so that the warning "skipped loading publication" arrives
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}

# If the server becomes unreachable without closing the connection, we notice this within 15 + 3 * 5 = 30 s, whether the
# connection is idle or we are sending.
_LIBPQ_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


STREAMING_SINCE = 14_00_00
BINARY_SINCE = 14_00_00
MESSAGES_SINCE = 14_00_00
TWO_PHASE_SINCE = 15_00_00
PARALLEL_SINCE = 16_00_00
ORIGIN_SINCE = 16_00_00
"""The server versions that added these options of pgoutput."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of pgoutput, except for the publications.

    ``streaming`` is ``off``, ``on`` or ``parallel``. If the server does not support ``parallel``, ``on`` is requested
    instead. If it does not support streaming, the option is left out. Streaming is also off if ``messages`` is true.
    ``origin`` is ``any`` or ``none``. If it is ``none``, the server sends only the changes that were made on this
    server.
    """

    streaming: str = "on"
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: str = "any"

    def of_server(self, version: int) -> dict[str, str]:
        """Return the options of START_REPLICATION for a server of this ``version``.

        Raise ConfigError if the server does not support a chosen option.
        """
        wanted = (
            (self.two_phase, "two_phase", "two_phase = true", TWO_PHASE_SINCE, "true"),
            (self.binary, "binary", "binary = true", BINARY_SINCE, "true"),
            (self.messages, "messages", "messages = true", MESSAGES_SINCE, "true"),
            (self.origin != "any", "origin", f'origin = "{self.origin}"', ORIGIN_SINCE, self.origin),
        )
        found = {}
        for is_wanted, option, setting, since, value in wanted:
            if is_wanted and version < since:
                raise ConfigError(
                    f"postgres.{setting} needs PostgreSQL {since // 1_00_00} or later; the server is "
                    f"{version // 1_00_00}: remove the setting, or upgrade the server."
                )
            if is_wanted:
                found[option] = value
        return self._streaming(version) | found

    def _streaming(self, version: int) -> dict[str, str]:
        # A message of pg_logical_emit_message does not say to which subtransaction it belongs. So in a streamed
        # transaction, we could not drop the message when its subtransaction is rolled back.
        if self.streaming == "off" or self.messages or version < STREAMING_SINCE:
            return {}
        return {"streaming": self.streaming if version >= PARALLEL_SINCE else "on"}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one server, in libpq's terms. ``hostaddr`` is empty for a Unix socket."""

    host: str
    hostaddr: str
    port: int


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to connect to the server.

    ``parameters`` are libpq's own parameters. Only the key ``dsn`` is ours. Its value is a whole conninfo string or
    URI.
    """

    parameters: Mapping[str, str] = field(default_factory=dict)
    application_name: str = "pgsluice"
    wal_sender_timeout_ms: int = 15_000
    status_interval_s: float = 5.0
    password: Callable[[], str | None] = lambda: None
    """A function that returns the password for one connection, or None to use the password in the parameters. The
    function may block."""

    async def current_conninfo(self, settings: Mapping[str, str] | None = None, **parameters: str) -> str:
        """Return :meth:`conninfo` with the password for one connection. Raise the errors of ``password``."""
        password = await asyncio.to_thread(self.password)
        return self.conninfo(settings, **parameters, **({} if password is None else {"password": password}))

    def conninfo(self, settings: Mapping[str, str] | None = None, **parameters: str) -> str:
        """Return the connection string of a session with our settings.

        The user's own ``options`` come first, then ``SESSION_SETTINGS``, then the argument ``settings``, because
        PostgreSQL uses the last value of a setting. ``parameters`` replace the configured parameters of the same names.
        Raise ConfigError if libpq cannot parse the user's parameters.
        """
        pinned = " ".join(f"-c {name}={value}" for name, value in {**SESSION_SETTINGS, **(settings or {})}.items())
        try:
            configured = _with_system_authorities(
                conninfo_to_dict(self.parameters.get("dsn", ""), **self._without_dsn())
            )
            ours = {
                "application_name": self.application_name,
                "client_encoding": "UTF8",
                "options": f"{configured.get('options', '')} {pinned}".strip(),
            }
            return make_conninfo("", **{**_LIBPQ_DEFAULTS, **configured, **ours, **parameters})
        except psycopg.ProgrammingError:
            # The message of the error is left out, because it may quote a password.
            raise ConfigError(
                "libpq cannot parse the connection parameters of PostgreSQL. Correct the [postgres] section."
            ) from None

    def role_and_database(self) -> tuple[str, str]:
        """Return the role and the database that libpq would use for a connection, without connecting."""
        parameters = conninfo_to_dict(self.conninfo())
        defaults = {
            one.keyword.decode(): (one.val or b"").decode() for one in psycopg.pq.Conninfo.get_defaults() if one.val
        }
        role = str(parameters.get("user") or defaults.get("user", ""))
        return role, str(parameters.get("dbname") or defaults.get("dbname") or role)

    def at(self, address: Address) -> "ConnectionOptions":
        """Return the options for further connections to this server, even if the settings name several hosts."""
        found = {"host": address.host, "port": str(address.port)}
        found |= {"hostaddr": address.hostaddr} if address.hostaddr else {}
        return replace(self, parameters={**self.parameters, **found})

    def _without_dsn(self) -> dict[str, str]:
        return {name: value for name, value in self.parameters.items() if name != "dsn"}


def _with_system_authorities(parameters: dict[str, Any]) -> dict[str, Any]:
    """If ``sslrootcert`` is "system", replace it by the file of the system's certificate authorities.

    libpq itself would not find this file, because the OpenSSL in psycopg's wheels looks for it in another directory.
    Like libpq, set ``sslmode`` to verify-full by default. If the user has set a weaker ``sslmode``, change nothing, so
    that libpq refuses the combination.
    """
    file = ssl.get_default_verify_paths().cafile
    authorities = parameters.get("sslrootcert") or os.environ.get("PGSSLROOTCERT")
    mode = parameters.get("sslmode") or os.environ.get("PGSSLMODE") or "verify-full"
    if authorities != "system" or mode != "verify-full" or file is None:
        return parameters
    return {**parameters, "sslrootcert": file, "sslmode": "verify-full"}
