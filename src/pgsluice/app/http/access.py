"""Access to the HTTP server: its certificate, and the token that requests have to carry.

The files are read again when they change, so a renewed certificate or token takes effect without a restart.
"""

import asyncio
import base64
import binascii
import hmac
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import structlog

from pgsluice.config.problems import unreadable
from pgsluice.config.secret_file import read_token_file
from pgsluice.errors import ConfigError

LOOK_S: Final = 5.0
"""How often to check whether the files have changed."""

log = structlog.get_logger(__name__)

_Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class AccessFiles:
    """The files of ``[http]``. ``cert_file`` and ``key_file`` are set together."""

    cert_file: str | None = None
    key_file: str | None = None
    token_file: str | None = None


OPEN: Final = AccessFiles()
"""The value for a server without encryption and without a token."""


class Access:
    """The certificate and the token of one server."""

    def __init__(self, files: AccessFiles = OPEN) -> None:
        """Read the files. Raise ConfigError if a file cannot be used."""
        self._files = files
        self.tls: ssl.SSLContext | None = None
        """The TLS context of connections, or None if connections are not encrypted."""
        self._token: bytes | None = None
        watched: list[tuple[tuple[str, ...], Callable[[], None]]] = []
        if files.cert_file is not None and files.key_file is not None:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.minimum_version = ssl.TLSVersion.TLSv1_2
            watched.append(((files.cert_file, files.key_file), self._load_certificate))
        if files.token_file is not None:
            watched.append(((files.token_file,), self._load_token))
        self._watched = watched
        self._loaded = [_signature(names) for names, _ in watched]
        for _, load in watched:
            load()

    @property
    def needs_token(self) -> bool:
        """Whether requests need a token."""
        return self._token is not None

    def allows(self, authorization: str) -> bool:
        """Return whether a request with this Authorization header is allowed.

        The token is a bearer token, or the password of basic authentication, which browsers and clients of registries
        can send. The comparison takes the same time for every wrong token, so its duration reveals nothing about the
        token.
        """
        if self._token is None:
            return True
        scheme, _, credentials = authorization.partition(" ")
        token = credentials.strip().encode(errors="replace")
        if scheme.lower() == "basic":
            token = _password(token)
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(token, self._token)

    async def watch(self) -> NoReturn:
        """Read changed files again. If they cannot be used, keep the former certificate or token. Never return."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Check which files have changed since the last check, and read these files again."""
        for index, (names, load) in enumerate(self._watched):
            signature = _signature(names)
            if signature == self._loaded[index]:
                continue
            self._loaded[index] = signature
            try:
                load()
            except ConfigError as error:
                log.warning("the HTTP server keeps its former certificate or token", reason=str(error))
            else:
                log.info("the HTTP server has read its files again", files=list(names))

    def _load_certificate(self) -> None:
        """Load certificate and key.

        Load both files into a new context first. If this fails, the context that the server uses is still unchanged.
        """
        cert_file, key_file = self._files.cert_file, self._files.key_file
        assert cert_file is not None, "called only if both files are set"
        assert key_file is not None, "called only if both files are set"
        assert self.tls is not None, "__init__() has made it"
        for setting, name in (("tls_cert_file", cert_file), ("tls_key_file", key_file)):
            try:
                Path(name).read_bytes()
            except OSError as error:
                raise ConfigError(f"http.{setting}: {name} {unreadable(error)}") from None
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.tls):
            try:
                context.load_cert_chain(cert_file, key_file, password="")
            except ssl.SSLError as error:
                raise ConfigError(_not_a_pair(cert_file, key_file, error)) from None

    def _load_token(self) -> None:
        assert self._files.token_file is not None, "called only if the file is set"
        try:
            self._token = read_token_file(self._files.token_file).encode()
        except ValueError as error:
            raise ConfigError(f"http.token_file: {error}") from None


def _not_a_pair(cert_file: str, key_file: str, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"http.tls_key_file: {key_file} is not the key of the certificate in {cert_file}. Use the key that belongs "
            "to the certificate. The first certificate in the file has to be the server's own."
        )
    return (
        f"http.tls_cert_file: {cert_file} and {key_file} are not a certificate and a key in PEM format, or the key "
        f"has a password ({error.reason or error}). Correct the files."
    )


def _password(credentials: bytes) -> bytes:
    """Return the password in the credentials of basic authentication, or empty bytes if they have none."""
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _signature(names: tuple[str, ...]) -> _Signature:
    """Return a value that changes when the files change.

    The value includes the inodes of the files, because Kubernetes renews a file by replacing a symbolic link.
    """
    return tuple(map(_stat, names))


def _stat(name: str) -> tuple[int, int, int] | None:
    try:
        found = Path(name).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
