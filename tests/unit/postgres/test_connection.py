import asyncio

import pytest

from pgsluice.errors import ConfigError, SourceUnavailable
from pgsluice.history import TimelineSwitch
from pgsluice.postgres.connection import ReplicationConnection, _start_command, parse_timeline_history
from pgsluice.postgres.options import ConnectionOptions
from tests.support.walsender import Walsender


def test_a_history_names_each_ancestor() -> None:
    content = "1\t0/3000000\tno recovery target specified\n\n# a comment\n2\t1/0A000000\tbefore 2020-01-01\n"
    assert parse_timeline_history(content) == [TimelineSwitch(1, 0x3000000), TimelineSwitch(2, 0x1_0A00_0000)]
    assert parse_timeline_history("") == []


@pytest.mark.parametrize(
    ("server_version", "proto_version"),
    [(100023, 1), (130023, 1), (140023, 2), (150018, 3), (160014, 4), (190000, 4)],
)
def test_the_newest_protocol_version_is_requested(server_version: int, proto_version: int) -> None:
    assert _start_command("s", ["p"], server_version, {}) == (
        f"START_REPLICATION SLOT \"s\" LOGICAL 0/0 (proto_version '{proto_version}', publication_names '\"p\"')"
    )


def test_publication_names_are_quoted_as_identifiers_and_as_a_literal() -> None:
    command = _start_command("s", ["it's", 'a "b" c', r"d\e", "f,g"], 170000, {"origin": "none"})
    literal = r"""'"it''s","a ""b"" c","d\e","f,g"'"""
    assert command.endswith(f"publication_names {literal}, origin 'none')")


def options_for(server: Walsender) -> ConnectionOptions:
    parameters = {"host": "127.0.0.1", "port": str(server.port), "sslmode": "disable", "gssencmode": "disable"}
    return ConnectionOptions(parameters)


async def test_a_server_without_pgoutput_is_refused() -> None:
    async with Walsender("9.6.24") as server:
        with pytest.raises(ConfigError, match="upgrade the server"):
            await ReplicationConnection.open(options_for(server))


async def test_a_server_that_vanishes_at_once_is_retried() -> None:
    async with Walsender() as server:
        server.answers_queries = False
        opening = asyncio.create_task(ReplicationConnection.open(options_for(server)))
        await server.query.wait()
        server.vanish()
        with pytest.raises(SourceUnavailable, match="the connection to PostgreSQL broke"):
            await opening
