"""A certificate authority that signs any certificate that tests need, even expired ones."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """An authority with its own name. The file ``certificate`` contains its certificate."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.expires = datetime.now(UTC).replace(microsecond=0) + 3650 * DAY
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        builder = self._builder(self._name, self._key, self.expires).add_extension(constraints, critical=True)
        self.certificate = directory / f"{name}.crt"
        self.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, hosts: Sequence[str] = (), *, expires: datetime | None = None) -> tuple[Path, Path]:
        """Return the files of a new certificate for ``name`` and of its key.

        The new files replace those of an earlier certificate for this name.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key, expires or datetime.now(UTC) + 100 * DAY)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_name_of(host) for host in hosts]), critical=False
            )
        certificate, key_file = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        key_file.touch()
        key_file.chmod(0o600)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, key_file

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, expires: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(expires, datetime.now(UTC)) - 10 * DAY)
            .not_valid_after(expires)
        )


def expired() -> datetime:
    """Return a time in the past, for certificates that have expired."""
    return datetime.now(UTC) - DAY


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
