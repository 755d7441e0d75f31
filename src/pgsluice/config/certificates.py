"""Finds out when the certificates in the settings expire, so that an alert can warn before connections fail.

Python's ssl module returns expiry dates only for certificates of authorities. So this module parses certificates
itself, up to the expiry date.

https://datatracker.ietf.org/doc/html/rfc5280#section-4.1
"""

import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pgsluice.config.model import Settings
from pgsluice.finding import Finding, Verdict

SOON: Final = timedelta(days=14)
"""``pgsluice check`` warns of a certificate that expires within this time. The alert
PgsluiceCertificateExpires uses the same time."""

_PEM = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_FILE_BYTES_MAX = 4 * 1024 * 1024
_UTC_TIME, _EXPLICIT_VERSION = 0x17, 0xA0
_LONG_FORM = 0x80


def check(settings: Settings) -> list[Finding]:
    """Return a warning for each setting whose certificates have expired or expire soon.

    If there is no warning, return one finding, which names the setting whose certificates expire first. Return an empty
    list if the settings name no files of certificates, or if none of the files can be read.
    """
    expire = {name: datetime.fromtimestamp(time, UTC) for name, time in expiries(settings).items()}
    now = datetime.now(UTC)
    warnings = [_warning(name, at, now) for name, at in expire.items() if at - now < SOON]
    if warnings or not expire:
        return warnings
    name, at = min(expire.items(), key=lambda item: item[1])
    return [Finding("certificates", Verdict.OK, f"the first to expire is {name}, on {at:%Y-%m-%d} UTC")]


def _warning(name: str, at: datetime, now: datetime) -> Finding:
    return Finding(
        "certificates",
        Verdict.WARN,
        f"{name} {'expired' if at <= now else 'expires'} on {at:%Y-%m-%d} UTC",
        "Renew the certificate, and replace its file. pgsluice reads the new file without a restart.",
    )


def expiries(settings: Settings) -> dict[str, float]:
    """Return the Unix time at which the certificates of each setting expire. Leave out files that cannot be read.

    A chain expires with the first of its certificates. A file of authorities expires with the last of its
    certificates, because it may contain old authorities together with their successors.
    """
    postgres, client, registry = settings.postgres, settings.kafka.client, settings.schema_registry
    chains = {
        "postgres.sslcert": postgres.sslcert,
        "kafka.client.ssl.certificate.location": client.get("ssl.certificate.location"),
        "schema_registry.cert_file": registry.cert_file,
        "http.tls_cert_file": settings.http.tls_cert_file,
    }
    authorities = {
        "postgres.sslrootcert": postgres.sslrootcert,
        "kafka.client.ssl.ca.location": client.get("ssl.ca.location"),
        "schema_registry.ca_file": registry.ca_file,
    }
    read = {name: _expiries_of(str(file)) for name, file in (chains | authorities).items() if file is not None}
    return {name: min(times) if name in chains else max(times) for name, times in read.items() if times}


def _expiries_of(file: str) -> list[float]:
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(_FILE_BYTES_MAX).decode("ascii", "replace")
        return [not_after(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(text)]
    except (OSError, ValueError, IndexError):
        return []  # the connection that needs the file reports the reason


def not_after(certificate: bytes) -> float:
    """Return the end of a certificate's validity as a Unix time. ``certificate`` is in DER.

    Raise ValueError or IndexError if ``certificate`` is not a certificate in DER.
    """
    _, at, _ = _element(certificate, 0)  # Certificate
    _, at, _ = _element(certificate, at)  # TBSCertificate
    tag, _, end = _element(certificate, at)
    if tag == _EXPLICIT_VERSION:
        at = end
    for _ in ("serialNumber", "signature", "issuer"):
        _, _, at = _element(certificate, at)
    _, at, _ = _element(certificate, at)  # Validity
    _, _, at = _element(certificate, at)  # notBefore
    tag, at, end = _element(certificate, at)
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(certificate[at:end].decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of the element at ``at``, and the offsets at which its content begins and ends."""
    tag, length, at = der[at], der[at + 1], at + 2
    if length & _LONG_FORM:
        size = length & ~_LONG_FORM
        length, at = int.from_bytes(der[at : at + size]), at + size
    return tag, at, at + length
