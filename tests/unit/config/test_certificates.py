import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pgsluice.config.certificates import check, expiries, not_after
from pgsluice.finding import Verdict
from tests.support.authority import Authority
from tests.support.settings import settings


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.mark.parametrize("year", [1999, 2049, 2050, 9999], ids=str)
def test_dates_are_read_as_they_were_written(year: int, authority: Authority) -> None:
    """Read both forms of dates. Certificates use UTCTime for dates until 2049, and GeneralizedTime for later dates."""
    expires = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    certificate, _ = authority.issue("client", ["localhost"], expires=expires)
    found = expiries(settings(postgres={"sslcert": str(certificate)}))
    assert found == {"postgres.sslcert": expires.timestamp()}


def test_the_first_of_a_chain_and_the_last_authority_decide(authority: Authority, tmp_path: Path) -> None:
    soon, late = (datetime(year, 1, 1, tzinfo=UTC) for year in (2030, 2040))
    parts = [authority.issue(str(one.year), expires=one)[0].read_text() for one in (late, soon)]
    both = tmp_path / "both.pem"
    both.write_text("a comment\n".join(parts))
    client = {"ssl.certificate.location": str(both), "ssl.ca.location": str(both)}
    assert expiries(settings(kafka={"client": client})) == {
        "kafka.client.ssl.certificate.location": soon.timestamp(),
        "kafka.client.ssl.ca.location": late.timestamp(),
    }


def test_the_certificate_of_the_http_server_is_read(authority: Authority) -> None:
    certificate, key = authority.issue("server", ["localhost"], expires=datetime(2040, 1, 1, tzinfo=UTC))
    http = {"tls_cert_file": str(certificate), "tls_key_file": str(key)}
    assert expiries(settings(http=http)) == {"http.tls_cert_file": datetime(2040, 1, 1, tzinfo=UTC).timestamp()}


def test_a_check_warns_of_certificates_that_expire_soon(authority: Authority) -> None:
    now = datetime.now(UTC)
    old, soon, late = (
        authority.issue(str(days), ["localhost"], expires=now + timedelta(days=days))[0] for days in (-1, 13, 15)
    )
    expiring = {"sslcert": str(old), "sslrootcert": str(late)}
    found = check(settings(postgres=expiring, kafka={"client": {"ssl.certificate.location": str(soon)}}))
    assert [(one.verdict, one.detail) for one in found] == [
        (Verdict.WARN, f"postgres.sslcert expired on {now - timedelta(days=1):%Y-%m-%d} UTC"),
        (Verdict.WARN, f"kafka.client.ssl.certificate.location expires on {now + timedelta(days=13):%Y-%m-%d} UTC"),
    ]
    (valid,) = check(settings(postgres={"sslrootcert": str(late)}))
    assert valid.verdict is Verdict.OK
    assert valid.detail == f"the first to expire is postgres.sslrootcert, on {now + timedelta(days=15):%Y-%m-%d} UTC"
    assert check(settings()) == []


@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_unreadable_files_are_left_out(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_text(content)
    assert expiries(settings(postgres={"sslrootcert": str(file)})) == {}
    assert expiries(settings(postgres={"sslrootcert": "system"})) == {}


def test_truncated_certificates_are_refused(authority: Authority) -> None:
    whole = ssl.PEM_cert_to_DER_cert(authority.certificate.read_text())
    until = whole.index(b"Z", whole.index(b"Z") + 1)
    for end in range(until):
        with pytest.raises((ValueError, IndexError)):
            not_after(whole[:end])
    assert not_after(whole) == pytest.approx(authority.expires.timestamp())
