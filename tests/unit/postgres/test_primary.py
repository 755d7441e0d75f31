"""The check of the server from which rows are loaded if changes come from a standby."""

import pytest

from pgsluice.errors import PermissionDenied, PrimaryUnavailable
from pgsluice.postgres.primary import Primary

PRIMARY = Primary("7001", 26)

Answer = tuple[str | None, ...]


async def check(*answer: str | None) -> None:
    async def query(sql: str) -> list[Answer]:
        assert "pg_is_in_recovery" in sql
        return [answer]

    await PRIMARY.check(query)


async def test_the_primary_of_the_same_cluster_and_timeline_is_accepted() -> None:
    await check("false", "7001", "0000001A")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (("false", "7002", "0000001A"), "belongs to the cluster with system identifier 7002, .* cluster with 7001"),
        (("true", "7001", None), "is a standby"),
        (("false", "7001", "0000001B"), "is on timeline 27, but the stream is on timeline 26: .* remove snapshot"),
    ],
)
async def test_other_servers_are_refused(answer: Answer, reason: str) -> None:
    with pytest.raises(PrimaryUnavailable, match=f"^The server that snapshot.primary names {reason}"):
        await check(*answer)


def test_an_unreachable_primary_is_named_by_its_setting() -> None:
    found = PRIMARY.unreachable(PermissionDenied("PostgreSQL refused the password."))
    assert str(found).startswith("snapshot.primary: PostgreSQL refused the password. No rows are read for now. ")
