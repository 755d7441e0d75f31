"""The connection parameters of libpq that users may set.

The settings model uses this module. libpq supplies parameters that are not set. Its PG* variables, password file and
service file work as in every client, so all authentication methods are possible.

https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
"""

from collections.abc import Mapping
from functools import cache

from pgsluice.config.problems import did_you_mean

OWN_KEYS = ("host", "port", "dbname", "user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey")
"""Parameters that are keys of ``[postgres]`` under the same name."""

_OURS = {
    "replication": "the connection is always a logical replication connection",
    "client_encoding": "the stream is read as UTF-8",
    "application_name": "connections are named after the pipeline: change its name (`name`) instead",
    "fallback_application_name": "connections are named after the pipeline: change its name (`name`) instead",
}

_WHICH_SERVER = ("host", "hostaddr", "port", "target_session_attrs", "load_balance_hosts")


def check_dsn(dsn: str) -> None:
    """Raise ValueError if libpq cannot parse ``dsn``, or if ``dsn`` has a parameter that only pgsluice may set."""
    found = [f"may not set {name}: {reason}" for name, reason in _OURS.items() if name in parse_dsn(dsn)]
    if found:
        raise ValueError("; ".join(found))


def parse_dsn(dsn: str) -> dict[str, str]:
    """Return the parameters in ``dsn``. Raise ValueError, without quoting ``dsn``, if libpq cannot parse it."""
    from psycopg import ProgrammingError  # noqa: PLC0415 - loads libpq, needed only for a dsn
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - as above

    try:
        return {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    except ProgrammingError:
        raise ValueError(
            "is neither a connection string of libpq (host=db dbname=shop) nor a URI (postgresql://db/shop)"
        ) from None


def check_primary(dsn: str) -> None:
    """Raise ValueError if a primary's ``dsn`` names no server, or if :func:`check_dsn` refuses it."""
    check_dsn(dsn)
    if not parse_dsn(dsn).keys() & {"host", "hostaddr", "service"}:
        raise ValueError("names no host: write it as host=db-primary or postgresql://db-primary")


def of_primary(parameters: Mapping[str, str], dsn: str) -> dict[str, str]:
    """Return the parameters for a connection to the primary that ``dsn`` names.

    ``parameters`` are those of the connection to the standby. A parameter that ``dsn`` does not set is taken from
    ``parameters``, unless it identifies the server.
    """
    shared = {name: value for name, value in parameters.items() if name not in _WHICH_SERVER}
    return shared | parse_dsn(dsn)


def in_effect(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that libpq would use, including those from the service file, environment and defaults.

    No connection is made. If libpq cannot find the service, ``parameters`` are returned as they are.
    """
    from psycopg import pq  # noqa: PLC0415 - loads libpq, needed only for checks
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - as above

    # libpq has no function that returns these parameters. But it resolves all parameters before it validates them. So
    # the invalid parameter below makes libpq stop after it has resolved all parameters, and before it looks up a host.
    conninfo = make_conninfo("", **{**parameters, "target_session_attrs": "none of them"})
    connection = pq.PGconn.connect_start(conninfo.encode())
    found = {option.keyword: option.val for option in connection.info if option.val is not None}
    connection.finish()
    return {name.decode(): value.decode(errors="replace") for name, value in found.items()} or dict(parameters)


def refusal(name: str) -> str:
    """Return why ``name`` cannot be in postgres.parameters, or an empty string if it can."""
    if name in OWN_KEYS:
        return f"has its own key: write it as postgres.{name}"
    if name in _OURS:
        return f"cannot be set: {_OURS[name]}"
    known = _known_parameters()
    return "" if name in known else f"is not a connection parameter of libpq{did_you_mean(name, known)}"


@cache
def _known_parameters() -> frozenset[str]:
    from psycopg import pq  # noqa: PLC0415 - loads libpq, needed only for parameters

    return frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults())
