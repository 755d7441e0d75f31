"""The sources of schemas: a registry's REST API, or the Kafka topic of pgsluice's own registry.

Used by :mod:`.changes` and other modules, which accept any object that has :meth:`Registry.versions`.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

import base64
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final, Protocol

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.schema import SchemaVersion

_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
_SUBJECT_NOT_FOUND: Final = 40401
_REQUESTS: Final = 8
"""The maximum number of simultaneous requests."""
_PAUSE_S: Final = 0.5
"""How long to wait before the next request to a registry that may be restarting."""
_REDIRECTS: Final = range(300, 400)
_UNAVAILABLE: Final = 503


class RegistryError(Exception):
    """The schema registry does not answer, or its answer cannot be used."""


class Registry(Protocol):
    """A source of schemas."""

    def versions(self, subjects: Collection[str]) -> Sequence[SchemaVersion]:
        """Return all versions of ``subjects``, the oldest of each subject first.

        A subject that does not exist has no versions. Every call asks the registry again, so the result contains all
        schemas that were registered before the call.
        """


@dataclass(frozen=True, slots=True)
class RestRegistry:
    """A server with the REST API of Confluent's Schema Registry, which pgsluice itself also serves.

    Set ``tls`` for https with your own certificate authority or with a client certificate. Redirects are not followed.
    As usual in Python, ``http_proxy`` in the environment is used. Without TLS, such a proxy sees the credentials.
    ``timeout_s`` limits the time for each answer, and the time for which a server that is unavailable is asked again.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    timeout_s: float = 30.0
    _known: dict[tuple[str, int], SchemaVersion] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The versions that were read before. They stay valid, because a registry never changes a version."""

    def __post_init__(self) -> None:
        if "@" in urllib.parse.urlsplit(self.url).netloc:
            raise ValueError("the registry's URL contains a user: give the user as username and password")
        if not self.url.startswith(("http://", "https://")):
            # The message does not quote the URL, because without a scheme, its beginning may be a password.
            raise ValueError("the registry's URL must begin with http:// or https://")

    def versions(self, subjects: Collection[str]) -> list[SchemaVersion]:
        """See :meth:`Registry.versions`."""
        return [version for subject in subjects for version in self._versions(subject)]

    def _versions(self, subject: str) -> list[SchemaVersion]:
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        numbers = self._get(path)
        if numbers is None:
            return []
        if not isinstance(numbers, list) or any(type(number) is not int for number in numbers):
            raise RegistryError(f"{self.url}{path} does not answer with a list of versions")
        unknown = [number for number in numbers if (subject, number) not in self._known]
        with ThreadPoolExecutor(_REQUESTS) as pool:
            found = pool.map(lambda number: self._version(path, number), unknown)
            self._known.update(zip(((subject, number) for number in unknown), found, strict=True))
        return [self._known[subject, number] for number in sorted(numbers)]

    def _version(self, path: str, number: int) -> SchemaVersion:
        answer = self._get(f"{path}/{number}")
        try:
            return SchemaVersion(answer["subject"], answer["version"], answer["id"], answer["schema"])
        except (TypeError, KeyError):
            raise RegistryError(f"{self.url}{path}/{number} does not answer with a schema") from None

    def _get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON in the answer, or None if the registry does not have the subject.

        A registry may be restarting, so if it refuses the connection or answers 503, try again for ``timeout_s``.
        """
        until = time.monotonic() + self.timeout_s
        while True:
            try:
                return self._answer(path)
            except RegistryError as error:
                if time.monotonic() >= until or not _may_be_restarting(error.__cause__):
                    raise
            time.sleep(_PAUSE_S)

    def _answer(self, path: str) -> Any:  # noqa: ANN401 - JSON
        # Request deleted versions as well, because there may still be messages that were written with them.
        url = f"{self.url.rstrip('/')}{path}?deleted=true"
        request = urllib.request.Request(url, headers=self._headers())  # noqa: S310 - the scheme was checked
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=self.tls), _NoRedirects)
        try:
            with opener.open(request, timeout=self.timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if _error_code(error) == _SUBJECT_NOT_FOUND:
                    return None
                raise _refused(error, url) from error
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            raise RegistryError(f"{url} does not give a usable answer: {error}") from error

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _ACCEPT}
        if self.username is not None:
            credentials = f"{self.username}:{self.password or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
        return headers


def _may_be_restarting(error: BaseException | None) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code == _UNAVAILABLE
    return isinstance(error, ConnectionError) or isinstance(getattr(error, "reason", None), ConnectionError)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error, because the standard library would send the credentials to any host in a redirect."""

    def http_error_302(self, *_: object) -> None:
        """Return None, which makes urllib treat the redirect as an error."""

    # The type is ignored because this method takes its arguments only by position.
    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302  # type: ignore[assignment]


def _refused(error: urllib.error.HTTPError, url: str) -> RegistryError:
    """Return the error for an unsuccessful answer."""
    location = error.headers.get("Location")
    if error.code not in _REDIRECTS or location is None:
        return RegistryError(f"{url} answers {error.code} {error.reason}")
    return RegistryError(
        f"{url} redirects to {_target(location)}, but pgsluice_spark does not follow redirects, because the "
        "credentials are only for the first address. Give the address of the registry itself."
    )


def _target(location: str) -> str:
    """Return scheme, host and port of a redirect. User, path and query are left out, because they may be secret."""
    try:
        parts = urllib.parse.urlsplit(location)
    except ValueError:  # brackets that do not match
        return "an address that cannot be read"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}" if host else "another path"


def _error_code(error: urllib.error.HTTPError) -> int | None:
    """Return the registry's own error code, or None if the answer does not come from a registry."""
    try:
        code: int = json.load(error)["error_code"]
    except (OSError, HTTPException, ValueError, RecursionError, TypeError, KeyError):
        return None
    return code


@dataclass(frozen=True, slots=True)
class TopicRegistry:
    """The compacted topic ``<prefix>.schemas`` of pgsluice's own registry. To read it, no server but Kafka is needed.

    ``kafka_options`` has further options of Spark's Kafka source, such as ``kafka.security.protocol``.
    """

    spark: SparkSession
    bootstrap_servers: str
    topic: str
    kafka_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def versions(self, subjects: Collection[str]) -> list[SchemaVersion]:
        """See :meth:`Registry.versions`. Each call reads the topic from its beginning to its present end."""
        options = {
            **self.kafka_options,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "endingOffsets": "latest",
        }
        text = F.col("value").cast("string")
        records = (
            self.spark.read.format("kafka")
            .options(**options)
            .load()
            .where(F.get_json_object(text, "$.subject").isin(*subjects))
            .select("offset", text.alias("value"))
            .collect()
        )
        return parse_records([(record["offset"], record["value"]) for record in records], self.topic)


def parse_records(records: Sequence[tuple[int, str]], topic: str) -> list[SchemaVersion]:
    """Return the schemas in ``records`` (offset and JSON value) of a schema topic, the oldest of each subject first."""
    versions: dict[tuple[str, int], SchemaVersion] = {}
    for offset, value in sorted(records):
        try:
            version = _version(json.loads(value))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RegistryError(f"{topic}, offset {offset}: not a record of pgsluice's registry") from None
        versions[version.subject, version.id] = version
    return sorted(versions.values(), key=lambda version: (version.subject, version.version))


def _version(entry: dict[str, Any]) -> SchemaVersion:
    """Return the schema in a record. Raise TypeError or KeyError if the record does not contain a schema."""
    found = SchemaVersion(entry["subject"], entry["version"], entry["id"], entry["schema"])
    if [type(part) for part in (found.subject, found.version, found.id, found.schema)] != [str, int, int, str]:
        raise TypeError
    return found
