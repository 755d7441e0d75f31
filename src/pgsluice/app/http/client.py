"""Sends requests to the HTTP server of a running daemon, for ``pgsluice status`` and ``pgsluice health``.

``tests/unit/app/http/test_access.py`` covers this module.
"""

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from pgsluice.config.secret_file import read_token_file
from pgsluice.errors import ConfigError, PermissionDenied, UnavailableError, UsageError
from pgsluice.printable import without_url_secrets

TIMEOUT_S: Final = 5.0

_UNAUTHORIZED: Final = 401


def ask(url: str, path: str, *, token_file: str | None = None, cert_file: str | None = None) -> tuple[int, str]:
    """Return the status code and the answer of the daemon at ``url``. Send the token in ``token_file``.

    ``cert_file`` has the certificate that the server has to present. Requests within the machine need ``cert_file``,
    because their URL has an IP address, and the certificate has a host name. Without ``cert_file``, the server's
    certificate is verified with the system's certificate authorities.
    """
    parts = _split(url)
    connection = _connection(parts, cert_file)
    where = without_url_secrets(url)
    try:
        connection.connect()
        if cert_file is not None:
            _check_certificate(connection, cert_file, where)
        connection.request("GET", parts.path.rstrip("/") + path, headers=_headers(token_file))
        response = connection.getresponse()
        code, body = response.status, response.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise UnavailableError(f"no daemon answers at {where}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if code == _UNAUTHORIZED:
        raise PermissionDenied(f"the daemon at {where} refuses us. Set http.token_file to the file that it uses.")
    return code, body


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port):
            parts.hostname.encode("idna")
            return parts
    except ValueError:
        pass  # the port is not a number, a bracket is missing, or no host can have this name
    raise UsageError(f"--url {without_url_secrets(url)}: must look like http://127.0.0.1:8080")


def _connection(parts: SplitResult, cert_file: str | None) -> HTTPConnection:
    assert parts.hostname is not None, "_split() has checked it"
    if parts.scheme == "http":
        return HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    context = ssl.create_default_context()
    if cert_file is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # see _check_certificate()
    return HTTPSConnection(parts.hostname, parts.port, timeout=TIMEOUT_S, context=context)


def _check_certificate(connection: HTTPConnection, cert_file: str, where: str) -> None:
    """Raise UnavailableError if the server does not present the first certificate in the file."""
    assert isinstance(connection.sock, ssl.SSLSocket), "only https has a certificate"
    try:
        own = ssl.PEM_cert_to_DER_cert(_first_certificate(Path(cert_file).read_text(encoding="ascii")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"http.tls_cert_file: {cert_file} cannot be read: {error}") from None
    if connection.sock.getpeercert(binary_form=True) != own:
        raise UnavailableError(
            f"the server at {where} shows another certificate than http.tls_cert_file. Nothing was sent to it. "
            "A daemon reads a renewed file within seconds. So try again, or check which process listens there."
        )


def _first_certificate(text: str) -> str:
    begin, end = text.find(ssl.PEM_HEADER), text.find(ssl.PEM_FOOTER)
    return text[begin : end + len(ssl.PEM_FOOTER)] if begin >= 0 else text


def _headers(token_file: str | None) -> dict[str, str]:
    if token_file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {read_token_file(token_file)}"}
    except ValueError as error:
        raise ConfigError(f"http.token_file: {error}") from None
