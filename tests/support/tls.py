"""A PostgreSQL server with TLS, and a certificate for ``localhost``."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox.postgres import Postgres


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate for ``localhost`` and its key. Return the paths of both files."""
    certificate, key = directory / "server.crt", directory / "server.key"
    command = ["openssl", "req", "-new", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return certificate, key


@contextmanager
def tls_postgres(version: int, certificate: Path, key: Path) -> Iterator[Postgres]:
    """Start a server with TLS and this certificate."""
    with Postgres(version) as server:
        server.write_file("server.crt", certificate.read_text())
        server.write_file("server.key", key.read_text())
        (server.data_directory / "server.key").chmod(0o600)
        server.settings["ssl"] = "on"
        server.restart()
        yield server
