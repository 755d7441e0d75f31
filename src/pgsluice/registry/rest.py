"""Confluent's own registry client, with a time limit for every request and a pgsluice error for every failure.

:mod:`.confluent`, :mod:`.checks` and :mod:`.export` use it. The client is asynchronous, so no request blocks the
event loop. Only the parsing of answers keeps the loop busy. The client tries the addresses in schema_registry.url in
turn.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html#errors
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    ConfigCompatibilityLevel,
    Schema,
    SchemaRegistryError,
    ServerConfig,
)
from confluent_kafka.schema_registry.common._httpx_compat import httpx

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, PoisonError, RegistryUnavailable
from pgsluice.registry.schema_record import MAX_ID

T = TypeVar("T")

WORDS_MAX: Final = 500
"""A message quotes at most this many characters of the registry's answer. Some registries answer with a page of
HTML."""

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_NOT_NOW: Final = frozenset((408, 425, 429))
_SERVER_ERROR: Final = 500
_REDIRECT: Final = range(300, 400)
_MISSING: Final = range(40401, 40500)
"""Error codes for a missing subject, version or schema. A server that does not know the path sends other codes."""

_TOKEN: Final = re.compile(r"[!-~]+")
"""The characters that a header may have. We check the token before it is used, because the HTTP library's error for a
wrong header would quote the token."""

_TLS_REMEDIES: Final = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted: name its authority in schema_registry.ca_file",
    "alert": "it refuses the TLS connection, perhaps because it requires a client certificate: check "
    "schema_registry.cert_file and key_file",
}


@dataclass(frozen=True, slots=True)
class RestOptions:
    """How to reach the registry's server.

    ``url`` is one address, or several addresses separated by commas. ``token`` and ``username`` exclude each other.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout_s: float = 10.0
    """The time limit of one request to one address."""
    answered: Callable[[str, float], None] = lambda _result, _seconds: None
    """Called after every request, with "ok" or the failure, and with the seconds that the request took."""

    @property
    def patience_s(self) -> float:
        """The time that one request may take at all addresses together."""
        return self.timeout_s * (self.url.count(",") + 1)


class Conflict(RegistryUnavailable):
    """A schema is incompatible with the subject's earlier schemas. ``words`` is the registry's own error message.

    If the subject's level was just set to NONE, the server may not know the new level yet. The session tries again in
    this case, because a Conflict is a RegistryUnavailable.
    """

    def __init__(self, message: str, words: str) -> None:
        super().__init__(message)
        self.words = words


class RestClient:
    """The requests that pgsluice sends to the registry's server.

    After RegistryUnavailable, the caller may try again. Any other error says what the operator has to do.
    """

    def __init__(self, options: RestOptions, client: AsyncSchemaRegistryClient) -> None:
        self._options = options
        self._client = client

    @classmethod
    async def open(cls, options: RestOptions) -> Self:
        """Return a client. Raise ConfigError if the token or the certificate files cannot be used."""
        if options.token is not None and not _TOKEN.fullmatch(options.token):
            raise ConfigError(
                "schema_registry.token has a blank, a line break or a character beyond ASCII, or is empty: correct "
                "it, or the file that it is read from."
            )
        try:  # in a thread, because it reads the file of trusted authorities
            client = await asyncio.to_thread(AsyncSchemaRegistryClient, _properties(options))
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise ConfigError(
                f"The schema registry's client cannot be set up: {error}. Check ca_file, cert_file and key_file under "
                "schema_registry; a key must not be encrypted."
            ) from None
        return cls(options, client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def look_up(self, subject: str, text: str) -> int | None:
        """Return the id of a schema in ``subject``, or None if the subject does not have it."""
        doing = f"Looking for a schema of subject {subject}"
        found = await self._unless_missing(doing, lambda: self._client.lookup_schema(subject, Schema(text, "AVRO")))
        return None if found is None else _identifier(found.schema_id, doing)

    async def register(self, subject: str, text: str) -> int:
        """Register a schema in ``subject``, and return its id. Raise Conflict if it is incompatible."""
        doing = f"Registering a schema of subject {subject}"
        return _identifier(
            await self._ask(doing, lambda: self._client.register_schema(subject, Schema(text, "AVRO"))), doing
        )

    async def subject_level(self, subject: str) -> str | None:
        """Return the compatibility level of ``subject``, or None if it has no settings of its own."""
        doing = f"Asking for the compatibility of subject {subject}"
        found = await self._unless_missing(doing, lambda: self._client.get_config(subject))
        if found is None:
            return None
        level = found.compatibility_level
        # Do not return None here. The caller restores the returned level with `set_level` later, and set_level(None)
        # would delete the subject's other settings.
        return str(level) if level is not None else await self.level()

    async def level(self) -> str | None:
        """Return the compatibility level of subjects without a level of their own."""
        return await self._unless_missing("Asking for the compatibility level", self._client.get_compatibility)

    async def set_level(self, subject: str, level: str | None) -> None:
        """Set the compatibility level of ``subject``. None deletes all settings of the subject, including its level."""
        doing = f"Setting the compatibility of subject {subject} to {level or 'that of the registry'}"
        if level is None:
            await self._unless_missing(doing, lambda: self._client.delete_config(subject))
        else:
            config = ServerConfig(compatibility=ConfigCompatibilityLevel(level))
            await self._ask(doing, lambda: self._client.set_config(subject, config))

    async def mode(self) -> str | None:
        """Return the registry's mode, or None if it has no modes."""
        return await self._unless_missing("Asking for the mode", self._client.get_global_mode)

    async def subject_mode(self, subject: str) -> str | None:
        """Return the mode that is set for ``subject``, or None if none is set."""
        doing = f"Asking for the mode of subject {subject}"
        return await self._unless_missing(doing, lambda: self._client.get_mode(subject))

    async def set_mode(self, subject: str, mode: str | None) -> None:
        """Set the mode of ``subject``, even if it has schemas. None removes the subject's own mode."""
        doing = f"Setting the mode of subject {subject} to {mode or 'that of the registry'}"
        if mode is None:
            await self._unless_missing(doing, lambda: self._client.delete_mode(subject))
        else:
            await self._ask(doing, lambda: self._client.update_mode(subject, mode, force=True))

    async def versions(self, subject: str) -> list[int]:
        """Return the version numbers of ``subject``."""
        doing = f"Asking for the versions of subject {subject}"
        return await self._unless_missing(doing, lambda: self._client.get_versions(subject)) or []

    async def subjects_of(self, identifier: int) -> list[str]:
        """Return the subjects that have schema ``identifier``."""
        doing = f"Asking where schema {identifier} is used"
        return await self._unless_missing(doing, lambda: self._client.get_subjects_by_schema_id(identifier)) or []

    async def text_of(self, identifier: int) -> str:
        """Return the text of a schema."""
        found = await self._ask(f"Asking for schema {identifier}", lambda: self._client.get_schema(identifier))
        return str(found.schema_str)

    async def bring_in(self, subject: str, text: str, identifier: int, version: int) -> int:
        """Import a schema into ``subject``, which is in mode IMPORT. Return the id that it has at the server.

        A server that does not support imports may return another id than ``identifier``.
        """
        doing = f"Importing schema {identifier} into subject {subject}"
        schema = _Imported(text, identifier, version)
        return _identifier(await self._ask(doing, lambda: self._client.register_schema(subject, schema)), doing)

    async def subjects(self) -> list[str]:
        """Return every subject."""
        found: list[str] = await self._ask("Asking for the subjects", self._client.get_subjects)
        return found

    async def _unless_missing(self, doing: str, request: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        try:
            return await self._ask(doing, request)
        except _Missing:
            return None

    async def _ask(self, doing: str, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop = asyncio.get_running_loop()
        begun, result = loop.time(), "ok"
        try:
            async with asyncio.timeout(self._options.patience_s):
                return await request()
        except SchemaRegistryError as error:
            result = str(error.http_status_code)
            raise _failure(error, doing) from None
        except (httpx.RequestError, OSError) as error:  # TLS alerts and a TimeoutError are OSErrors
            result = "no answer"
            raise _silence(error, f"{doing} at {self._options.url}") from None
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            result = "no registry"
            raise RegistryUnavailable(
                f"{doing}: {self._options.url} answers, but not as a schema registry does ({type(error).__name__}). "
                "If that lasts, correct schema_registry.url."
            ) from error
        finally:
            self._options.answered(result, loop.time() - begun)


class _Imported(Schema):  # type: ignore[misc]  # the library has no types
    """A schema that is sent with its id and version. The client's own class has no parameters for them."""

    def __init__(self, text: str, identifier: int, version: int) -> None:
        super().__init__(text, "AVRO")
        # The base class is frozen, so an ordinary assignment would raise an error.
        object.__setattr__(self, "_place", {"id": identifier, "version": version})

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the request."""
        return {**super().to_dict(), **self._place}


class _Missing(RegistryUnavailable):
    """The registry does not have the requested object. Callers that need the object try again."""


def _properties(options: RestOptions) -> dict[str, Any]:
    """Return the client's configuration. The client never tries again, because the pipeline does."""
    properties = {
        "url": options.url,
        "timeout": options.timeout_s,
        "max.retries": 0,
        "ssl.ca.location": options.ca_file,
        "ssl.certificate.location": options.cert_file,
        "ssl.key.location": options.key_file,
        # Without a password, the library would ask for one on the terminal if the key is encrypted.
        "ssl.key.password": "" if options.cert_file else None,
    }
    if options.token is not None:
        # The client sends the token to any server. It also requires the name of a cluster, although only Confluent
        # Cloud uses this name.
        properties |= {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": options.token,
            "bearer.auth.logical.cluster": "-",
        }
    elif options.username is not None:
        properties["basic.auth.user.info"] = f"{options.username}:{options.password or ''}"
    return {name: value for name, value in properties.items() if value is not None}


def _identifier(found: object, doing: str) -> int:
    if type(found) is int and 1 <= found <= MAX_ID:
        return found
    raise RegistryUnavailable(f"{doing}: the answer has no schema id. Check that schema_registry.url names a registry.")


def _failure(error: SchemaRegistryError, doing: str) -> Exception:
    """Return the error for an answer that is not a success."""
    status, code = error.http_status_code, error.error_code
    words = str(error.error_message)[:WORDS_MAX]
    said = f"{doing}: the schema registry says {words!r} (HTTP {status}, code {code})"
    if status == _CONFLICT:
        return Conflict(f"{said}.", words)
    if status == _NOT_FOUND and code in _MISSING:
        return _Missing(f"{said}.")
    if status in _NOT_NOW or status >= _SERVER_ERROR:
        return RegistryUnavailable(f"{said}.")
    kind, remedy = _meaning(status, code)
    return kind(f"{said}. {remedy}")


_POISON: Final = (
    PoisonError,
    "It can never take this schema: leave the table out (tables.exclude), or use another registry.",
)
_UNKNOWN_WORD: Final = (ConfigError, "It does not know this compatibility level or mode: use a registry that does.")
_MEANINGS: Final[dict[int, tuple[type[PgsluiceError], str]]] = {
    401: (PermissionDenied, "Check username and password, or the token, under schema_registry."),
    403: (PermissionDenied, "The user of schema_registry needs the right to read and write this subject."),
    413: _POISON,
    422: _POISON,
    42203: _UNKNOWN_WORD,
    42204: _UNKNOWN_WORD,
    42205: (ConfigError, "Its mode, or the subject's mode, does not allow this. Set the mode to READWRITE."),
}
"""The meaning of an error and the remedy, by the registry's code or by the HTTP status."""


def _meaning(status: int, code: int) -> tuple[type[PgsluiceError], str]:
    if status in _REDIRECT:
        return ConfigError, "Set schema_registry.url to the address that it redirects to."
    base = (
        "schema_registry.url has to be the base of Confluent's API: http://host:8081, or with Apicurio "
        "http://host:8080/apis/ccompat/v7."
    )
    return _MEANINGS.get(code) or _MEANINGS.get(status) or (ConfigError, base)


def _silence(error: Exception, doing: str) -> PgsluiceError:
    """Return the error for a missing answer."""
    reason = str(error) or type(error).__name__
    # The TLS alert "internal error" reports an error in the server, which may be temporary.
    is_settled = "SSL" in reason and "internal error" not in reason
    for mark, remedy in _TLS_REMEDIES.items():
        if is_settled and mark in reason:
            return ConfigError(f"{doing}: {remedy} ({reason}).")
    return RegistryUnavailable(f"{doing}: no answer ({reason}).")
