"""Connection parameters of libpq: which of them are the user's to set, and where passwords are read.

Used by the settings model. Whatever is not set is left to libpq: its PG* variables, password file and
service file work as in every client, so each authentication method is reachable.

https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pgsluice.config.problems import did_you_mean, unreadable

OWN_KEYS = ("host", "port", "dbname", "user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey")
"""Parameters that are keys of ``[postgres]`` under the same name."""

_OURS = {
    "replication": "the connection is always a logical replication connection",
    "client_encoding": "the stream is read as UTF-8",
    "application_name": "connections are named after the pipeline: set name instead",
    "fallback_application_name": "connections are named after the pipeline: set name instead",
}

_WHICH_SERVER = ("host", "hostaddr", "port", "target_session_attrs", "load_balance_hosts")

_PASSWORD_BYTES_MAX = 64 * 1024
"""Longer than any password (a cloud's token has a few KiB), shorter than a file named by mistake."""


def check_dsn(dsn: str) -> None:
    """Refuse a connection string that libpq cannot read or that sets what is not the user's."""
    found = [f"may not set {name}: {reason}" for name, reason in _OURS.items() if name in parse_dsn(dsn)]
    if found:
        raise ValueError("; ".join(found))


def parse_dsn(dsn: str) -> dict[str, str]:
    """Return the parameters in ``dsn``; ValueError, without any part of it, when libpq cannot read it."""
    from psycopg import ProgrammingError  # noqa: PLC0415 - loads libpq: only where a dsn is used
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - as above

    try:
        return {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    except ProgrammingError:
        raise ValueError(
            "is neither a connection string of libpq (host=db dbname=shop) nor a URI (postgresql://db/shop)"
        ) from None


def check_primary(dsn: str) -> None:
    """Refuse a connection string of a primary that names no server, or that :func:`check_dsn` refuses."""
    check_dsn(dsn)
    if not parse_dsn(dsn).keys() & {"host", "hostaddr", "service"}:
        raise ValueError("names no host: write it as host=db-primary or postgresql://db-primary")


def of_primary(parameters: Mapping[str, str], dsn: str) -> dict[str, str]:
    """Return how to reach the primary that ``dsn`` names.

    What ``dsn`` leaves out is as in ``parameters``, those of its standby, unless it says which server that is.
    """
    shared = {name: value for name, value in parameters.items() if name not in _WHICH_SERVER}
    return shared | parse_dsn(dsn)


def in_effect(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return what libpq would connect with: ``parameters``, then the service file, the environment and its defaults.

    Nothing is connected to. If libpq cannot find the service, ``parameters`` are returned as they are.
    """
    from psycopg import pq  # noqa: PLC0415 - loads libpq: only where a connection is looked at
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - as above

    # libpq has no function for this. It resolves all parameters before it validates them, so that one which it
    # refuses makes it stop in between, before it looks up a host.
    conninfo = make_conninfo("", **{**parameters, "target_session_attrs": "none of them"})
    connection = pq.PGconn.connect_start(conninfo.encode())
    found = {option.keyword: option.val for option in connection.info if option.val is not None}
    connection.finish()
    return {name.decode(): value.decode(errors="replace") for name, value in found.items()} or dict(parameters)


def refusal(name: str) -> str:
    """Return why ``name`` cannot be one of the other parameters, nothing when it can."""
    if name in OWN_KEYS:
        return f"has a key of its own: write it as postgres.{name}"
    if name in _OURS:
        return f"cannot be set: {_OURS[name]}"
    known = _known_parameters()
    return "" if name in known else f"is not a connection parameter of libpq{did_you_mean(name, known)}"


@cache
def _known_parameters() -> frozenset[str]:
    from psycopg import pq  # noqa: PLC0415 - loads libpq: only where parameters are set

    return frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults())


def read_password_file(name: str) -> str:
    """Return the first line of file ``name``; ValueError when there is none."""
    try:
        with Path(name).open("rb") as file:
            content = file.read(_PASSWORD_BYTES_MAX)
    except OSError as error:
        raise ValueError(f"{name} {unreadable(error)}") from None
    try:
        password = content.decode().split("\n", 1)[0].removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8 text") from None
    if not password or "\0" in password:
        raise ValueError(f"the first line of {name} is not a password")
    return password
