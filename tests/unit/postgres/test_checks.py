import pytest

from pgsluice.finding import Verdict
from pgsluice.postgres.catalog import Catalog, PublishedTable, Server
from pgsluice.postgres.checks import (
    _KNOWN_BUGS,
    TABLES_NAMED_MAX,
    _has_bug,
    _identities,
    _Surroundings,
    _version,
)
from pgsluice.postgres.options import ConnectionOptions, StreamOptions

CONCURRENT_ALTER, TORN_START = (fixed for _, fixed in _KNOWN_BUGS)


def server(version: int) -> Server:
    return Server(version, "shop", "pgsluice", "UTF8", in_recovery=False, tls=None)


@pytest.mark.parametrize(
    ("version", "concurrent_alter", "torn_start"),
    [
        (110022, True, True),
        (120022, True, False),
        (130021, True, False),
        (130022, False, False),
        (140012, True, True),
        (140019, False, False),
        (170005, True, False),
        (170006, False, False),
        (180000, False, False),
        (190000, False, False),
    ],
)
def test_known_bugs_of_a_server_version_are_reported(version: int, *, concurrent_alter: bool, torn_start: bool) -> None:
    assert _has_bug(server(version), CONCURRENT_ALTER) == concurrent_alter
    assert _has_bug(server(version), TORN_START) == torn_start


def test_tables_without_identity_are_named_up_to_a_limit() -> None:
    lacking = [
        PublishedTable("public", f'odd "{number}"', "d", has_identity=False, publishes_old_rows=True)
        for number in range(TABLES_NAMED_MAX + 2)
    ]
    harmless = PublishedTable("public", "inserts", "d", has_identity=False, publishes_old_rows=False)
    finding = _identities([*lacking, harmless])
    assert finding.verdict is Verdict.WARN
    assert finding.detail.endswith(f'public."odd ""{TABLES_NAMED_MAX - 1}""" and 2 more')
    assert 'ALTER TABLE "public"."odd ""0""" REPLICA IDENTITY FULL;' in finding.remedy
    assert "inserts" not in finding.detail
    assert _identities([harmless]).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("version", "verdict", "words"),
    [
        (90624, Verdict.FAIL, "has no pgoutput"),
        (120022, Verdict.WARN, "no longer maintained"),
        (170005, Verdict.WARN, "can lose changes"),
        (180004, Verdict.OK, "18.4"),
    ],
)
async def test_unsupported_server_versions_are_reported(version: int, verdict: Verdict, words: str) -> None:
    options = ConnectionOptions()
    around = _Surroundings(
        Catalog(options), server(version), options, "slot", [], create_slot=True, stream=StreamOptions()
    )
    (finding,) = await _version(around)
    assert finding.verdict is verdict
    assert words in finding.detail
