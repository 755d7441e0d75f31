import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import pq

from pgsluice.postgres import async_libpq
from pgsluice.postgres.async_libpq import Wire
from pgsluice.postgres.failures import ServerError
from tests.support.walsender import Walsender, message


@pytest.fixture
async def server() -> AsyncIterator[Walsender]:
    async with Walsender() as walsender:
        yield walsender


@pytest.fixture
async def wire(server: Walsender) -> AsyncIterator[Wire]:
    conninfo = f"host=127.0.0.1 port={server.port} sslmode=disable gssencmode=disable"
    connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
    yield Wire(connection.pgconn)
    await connection.close()


async def test_the_results_of_a_query_end_when_it_opens_a_copy(wire: Wire) -> None:
    (result,) = await wire.query("START_REPLICATION")
    assert result.status == pq.ExecStatus.COPY_BOTH


async def test_a_refused_query_has_all_its_fields(wire: Wire, server: Walsender) -> None:
    server.answers_queries = False
    asking = asyncio.create_task(wire.query("nonsense"))
    await server.query.wait()
    server.refuse(S="ERROR", C="42601", M="syntax error", D="detail", R="scanner_yyerror", W="context")
    server.ready()
    with pytest.raises(ServerError) as caught:
        await asking
    error = caught.value
    assert (error.sqlstate, error.message, error.detail) == ("42601", "syntax error", "detail")
    assert (error.routine, error.context) == ("scanner_yyerror", "context")


async def test_results_survive_a_cancelled_wait(wire: Wire, server: Walsender) -> None:
    server.answers_queries = False
    asking = asyncio.create_task(wire.query("SELECT 1; SELECT 2"))
    await server.query.wait()
    server.send(message(b"C", b"SELECT 1\0"))
    while not wire._results:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    server.send(message(b"C", b"SELECT 2\0"))
    server.ready()
    assert [result.command_status for result in await wire.results()] == [b"SELECT 1", b"SELECT 2"]


async def test_a_query_without_an_answer_breaks_the_connection(
    wire: Wire, server: Walsender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_libpq, "ANSWER_TIMEOUT_S", 0.1)
    server.answers_queries = False
    with pytest.raises(psycopg.OperationalError, match=r"^no answer within 0\.1 s$"):
        await wire.query("SELECT 1")
    assert wire.pgconn.status == pq.ConnStatus.BAD


async def test_a_patient_query_has_no_time_limit(
    wire: Wire, server: Walsender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_libpq, "ANSWER_TIMEOUT_S", 0.1)
    server.answers_queries = False
    asking = asyncio.create_task(wire.query("CREATE_REPLICATION_SLOT", patient=True))
    await asyncio.sleep(0.3)
    server.send(message(b"C", b"SELECT 1\0"))
    server.ready()
    (result,) = await asking
    assert result.command_status == b"SELECT 1"


async def test_a_lost_connection_is_not_reported_as_a_missing_answer(wire: Wire, server: Walsender) -> None:
    server.answers_queries = False
    asking = asyncio.create_task(wire.query("SELECT 1"))
    await server.query.wait()
    server.vanish()
    with pytest.raises(psycopg.OperationalError, match="closed the connection"):
        await asking


async def test_a_wait_can_be_interrupted(wire: Wire) -> None:
    wire.interrupt(RuntimeError("nobody waits"))
    waiting = asyncio.create_task(wire.readable())
    await asyncio.sleep(0)
    wire.interrupt(RuntimeError("stop waiting"))
    wire.interrupt(RuntimeError("once is enough"))
    with pytest.raises(RuntimeError, match="stop waiting"):
        await waiting


async def test_an_interruption_takes_precedence_over_data(wire: Wire, server: Walsender) -> None:
    waiting = asyncio.create_task(wire.readable())
    await asyncio.sleep(0)
    server.keepalive()
    wire.interrupt(RuntimeError("stop waiting"))
    with pytest.raises(RuntimeError, match="stop waiting"):
        await waiting
