from collections.abc import Iterator
from typing import Literal

import pytest

from pgsluice.errors import ConfigError
from pgsluice.finding import Finding, Verdict
from pgsluice.registry.checks import check
from pgsluice.registry.rest import RestOptions
from tests.support.registry_server import Fault, RegistryServer

NAMES = ["schema registry reachable", "schema registry mode", "schema registry compatibility"]
SCHEMA = {"type": "string"}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


async def look(server: RegistryServer, on_incompatible: Literal["stop", "force"] = "stop") -> list[Finding]:
    return await check(lambda: RestOptions(server.url), on_incompatible, "shop.transactions-value", SCHEMA)


async def test_a_correct_registry_has_no_problems(server: RegistryServer) -> None:
    server.level = "NONE"
    assert await look(server) == [
        Finding(NAMES[0], Verdict.OK, "answers; nothing is registered yet"),
        Finding(NAMES[1], Verdict.OK, "READWRITE"),
        Finding(NAMES[2], Verdict.OK, "NONE"),
    ]


async def test_a_check_does_not_write(server: RegistryServer) -> None:
    await look(server)
    assert {request.split()[0] for request in server.requests} == {"GET", "POST"}
    assert server.subjects == {}


@pytest.mark.parametrize(
    ("level", "verdict", "refused"),
    [
        ("BACKWARD", Verdict.OK, "a key that gains a column or is replaced by another key will stop pgsluice"),
        ("FORWARD_TRANSITIVE", Verdict.WARN, "a column that becomes wider"),
        ("FULL", Verdict.WARN, "gains or loses a column"),
    ],
)
async def test_schemas_that_will_be_refused_are_reported(
    server: RegistryServer, level: str, verdict: Verdict, refused: str
) -> None:
    server.level = level
    found = (await look(server))[2]
    assert found.verdict is verdict
    assert found.detail.startswith(f"{level}; ")
    assert refused in found.detail
    assert "on_incompatible" in found.remedy
    forced = (await look(server, "force"))[2]
    assert (forced.verdict, forced.remedy) == (Verdict.OK, "")


async def test_a_read_only_registry_is_reported(server: RegistryServer) -> None:
    server.mode = "READONLY"
    assert [finding.verdict for finding in await look(server)] == [Verdict.OK, Verdict.FAIL, Verdict.OK]


async def test_a_registry_without_modes_has_no_problem(server: RegistryServer) -> None:
    server.faults = [Fault("GET /mode", 404, {"error_code": 40401, "message": "no such thing"})]
    assert [finding.verdict for finding in await look(server)] == [Verdict.OK] * 3


async def test_refused_requests_are_reported(server: RegistryServer) -> None:
    server.authorization = "Basic x"
    findings = await look(server)
    assert [finding.name for finding in findings] == NAMES
    assert {finding.verdict for finding in findings} == {Verdict.FAIL}
    assert "Check username and password" in findings[0].detail


async def test_settings_that_cannot_be_used_are_reported() -> None:
    def unreadable() -> RestOptions:
        raise ConfigError("schema_registry.password_file: it is not there")

    (finding,) = await check(unreadable, "stop", "a", SCHEMA)
    assert (finding.verdict, finding.detail) == (Verdict.FAIL, "schema_registry.password_file: it is not there")
