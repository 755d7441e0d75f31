"""The read side of Confluent's Schema Registry REST API, as a pure function over a :class:`SchemaStore`.

:mod:`pgsluice.app.http` serves it. This side of the API is enough for every deserializer that uses the API, for Kafka
Connect's converters, and for the usual user interfaces. Only pgsluice itself registers schemas. Requests to write are
refused in the way that clients know from a registry in READONLY mode. Optional parts of a request may be missing, and
unknown parts are ignored.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn, TypeAlias
from urllib.parse import unquote

from pgsluice.avro.wire import Schema
from pgsluice.registry import look_up
from pgsluice.registry.schema_record import MAX_ID, Registered
from pgsluice.registry.store import SchemaStore

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"

SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
SUBJECT_CONFIG_NOT_FOUND: Final = 40408
SUBJECT_MODE_NOT_FOUND: Final = 40409
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
OPERATION_NOT_PERMITTED: Final = 42205
AMBIGUOUS_ID: Final = 409
"""An error code of our own. In Confluent's registry an id has one schema, but here each prefix has its own ids."""

_CONFIG: Final = {"compatibilityLevel": "NONE"}
"""This registry does not check compatibility, because ``avro.schema`` decides how schemas may change."""
_MODE: Final = {"mode": "READONLY"}
_ANY: Final = "*"
"""Stands for a subject, a version or an id in the pattern of a path."""
_ALL_CONTEXTS: Final = ":*:"
_DEFAULT_CONTEXT: Final = ":.:"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request. ``body`` is sent as JSON. ``allow`` are the methods that the path allows.

    ``early`` is set if the schema was not found, but may exist, because we may not have read it from Kafka yet. A
    client that asks for an id has usually seen a message with this id, so the id is usually correct.
    """

    status: int
    body: object
    allow: tuple[str, ...] = ()
    early: bool = False


Search: TypeAlias = Callable[[], Answer]
"""A slow search for an answer. It may be called in any thread, because it shares no data. It raises nothing."""


def answer(store: SchemaStore, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer | Search:
    """Answer one request. ``path`` is as it was sent, with percent encoding. This raises nothing."""
    segments = [unquote(segment) for segment in path.strip("/").split("/")]
    pattern, handlers = next((route for route in _ROUTES if _matches(route[0], segments)), ((), {}))
    if not handlers:
        return _error(404, "HTTP 404 Not Found")
    handler = handlers.get("GET" if method == "HEAD" else method)
    if handler is None:
        return _error(405, "HTTP 405 Method Not Allowed", allow=tuple(handlers))
    if not store.complete:
        return _error(503, "The schemas have not been read from Kafka yet: try again")
    names = [segment for part, segment in zip(pattern, segments, strict=True) if part == _ANY]
    found = _answered(partial(handler, _Request(store, names, query, body)))
    return partial(_answered, found.body) if callable(found.body) else found


def _answered(find: Callable[[], object]) -> Answer:
    try:
        return Answer(200, find())
    except _ApiError as refusal:
        return _error(refusal.code, str(refusal), early=refusal.early)


def _matches(pattern: Sequence[str], segments: Sequence[str]) -> bool:
    return len(pattern) == len(segments) and all(
        part in (_ANY, segment) for part, segment in zip(pattern, segments, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Request:
    store: SchemaStore
    names: Sequence[str]
    """The parts of the path that stand for a subject, a version or an id."""
    query: Mapping[str, str]
    body: bytes

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"


_Handler: TypeAlias = Callable[[_Request], object]
"""Returns the body of the answer or, if the search for it is slow, a callable that does the search."""


class _ApiError(Exception):
    """An error of the API."""

    def __init__(self, code: int, message: str, *, early: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.early = early


def _error(code: int, message: str, *, allow: tuple[str, ...] = (), early: bool = False) -> Answer:
    status = int(str(code)[:3])  # Confluent's codes are an HTTP status, some with two more digits
    return Answer(status, {"error_code": code, "message": message}, allow, early)


def _root(_: _Request) -> object:
    return {}


def _types(_: _Request) -> object:
    return ["AVRO"]


def _schema_by_id(request: _Request) -> object:
    found: dict[str, object] = {"schema": _schema_meant(request)}
    if request.flag("fetchMaxId"):
        found["maxId"] = request.store.max_id()
    return found


def _bare_schema_by_id(request: _Request) -> object:
    return json.loads(_schema_meant(request))


def _versions_by_id(request: _Request) -> object:
    return [{"subject": use.subject, "version": use.version} for use in _chosen_uses(request)]


def _subjects_by_id(request: _Request) -> object:
    return [use.subject for use in _chosen_uses(request)]


def _schema_by_guid(request: _Request) -> NoReturn:
    raise _ApiError(SCHEMA_NOT_FOUND, f"Schema {request.names[0]} not found")


def _subjects(request: _Request) -> object:
    prefix = request.query.get("subjectPrefix", "").removeprefix(_ALL_CONTEXTS).removeprefix(_DEFAULT_CONTEXT)
    return _page(request, [name for name in request.store.subjects() if name.startswith(prefix)])


def _versions(request: _Request) -> object:
    return _page(request, [entry.version for entry in _known_subject(request)])


def _version(request: _Request) -> object:
    wanted = request.names[1]
    number = _number(wanted)
    if wanted not in ("latest", "-1") and number is None:
        raise _ApiError(
            INVALID_VERSION,
            f"The specified version '{wanted}' is not a valid version id. "
            'Allowed values are between [1, 2^31-1] and the string "latest"',
        )
    versions = _known_subject(request)
    entry = versions[-1] if number is None else request.store.version(request.names[0], number)
    if entry is None:
        raise _ApiError(VERSION_NOT_FOUND, f"Version {wanted} not found.")
    return _described(entry)


def _look_up(request: _Request) -> object:
    subject, versions, body = request.names[0], request.store.versions(request.names[0]), request.body

    def search() -> object:
        found = _find(versions, body)
        if found is not None:
            return _described(found)
        if not versions:
            raise _unknown(subject)
        raise _ApiError(SCHEMA_NOT_FOUND, "Schema not found")

    return search


def _register(request: _Request) -> object:
    subject, versions, body = request.names[0], request.store.versions(request.names[0]), request.body

    def search() -> object:
        found = _find(versions, body)
        if found is not None:
            return {"id": found.id}
        raise _read_only(
            f"Subject '{subject}' does not have this schema, and only pgsluice can register schemas. It registers a "
            "schema when it publishes the first row with this schema, so readers need not register schemas. To write "
            "to your own topics, use your own registry"
        )

    return search


def _config(_: _Request) -> object:
    return _CONFIG


def _subject_config(request: _Request) -> object:
    if not request.flag("defaultToGlobal"):
        message = f"Subject '{request.names[0]}' does not have subject-level compatibility configured"
        raise _ApiError(SUBJECT_CONFIG_NOT_FOUND, message)
    return _CONFIG


def _mode(_: _Request) -> object:
    return _MODE


def _subject_mode(request: _Request) -> object:
    if not request.flag("defaultToGlobal"):
        message = f"Subject '{request.names[0]}' does not have subject-level mode configured"
        raise _ApiError(SUBJECT_MODE_NOT_FOUND, message)
    return _MODE


def _write(_: _Request) -> NoReturn:
    raise _read_only("Schemas and their versions cannot be changed or deleted: messages in Kafka need them")


def _read_only(message: str) -> _ApiError:
    return _ApiError(OPERATION_NOT_PERMITTED, f"{message} (this registry is in READONLY mode).")


_ROUTES: Final[Sequence[tuple[tuple[str, ...], Mapping[str, _Handler]]]] = (
    (("",), {"GET": _root}),
    (("schemas", "types"), {"GET": _types}),
    (("schemas", "ids", _ANY), {"GET": _schema_by_id}),
    (("schemas", "ids", _ANY, "schema"), {"GET": _bare_schema_by_id}),
    (("schemas", "ids", _ANY, "versions"), {"GET": _versions_by_id}),
    (("schemas", "ids", _ANY, "subjects"), {"GET": _subjects_by_id}),
    (("schemas", "guids", _ANY), {"GET": _schema_by_guid}),
    (("schemas", "guids", _ANY, "ids"), {"GET": _schema_by_guid}),
    (("subjects",), {"GET": _subjects}),
    (("subjects", _ANY), {"POST": _look_up, "DELETE": _write}),
    (("subjects", _ANY, "versions"), {"GET": _versions, "POST": _register}),
    (("subjects", _ANY, "versions", _ANY), {"GET": _version, "DELETE": _write}),
    (("config",), {"GET": _config, "PUT": _write, "DELETE": _write}),
    (("config", _ANY), {"GET": _subject_config, "PUT": _write, "DELETE": _write}),
    (("mode",), {"GET": _mode, "PUT": _write, "DELETE": _write}),
    (("mode", _ANY), {"GET": _subject_mode, "PUT": _write, "DELETE": _write}),
)


def _uses(request: _Request) -> list[Registered]:
    wanted = request.names[0]
    number = _number(wanted)
    uses = [] if number is None else request.store.uses(number, request.query.get("subject"))
    if not uses:
        raise _ApiError(SCHEMA_NOT_FOUND, f"Schema {wanted} not found", early=number is not None)
    return uses


def _schema_meant(request: _Request) -> str:
    """Return the schema of an id.

    If the id stands for several schemas, the subject in the request decides. If the request names no subject with this
    id, refuse the request, because messages would be misread after a wrong guess.
    """
    uses, subject = _uses(request), request.query.get("subject")
    if uses[0].subject != subject and len({use.schema for use in uses}) > 1:
        subjects = ", ".join(use.subject for use in uses)
        raise _ApiError(
            AMBIGUOUS_ID,
            f"Id {request.names[0]} stands for different schemas in the subjects {subjects}: add ?subject= to the "
            "request, or run a registry for each prefix",
        )
    return uses[0].schema


def _chosen_uses(request: _Request) -> list[Registered]:
    uses = _uses(request)
    subject = request.query.get("subject")
    return [] if request.flag("deletedOnly") else [use for use in uses if subject in (None, use.subject)]


def _known_subject(request: _Request) -> list[Registered]:
    versions = request.store.versions(request.names[0])
    if not versions:
        raise _unknown(request.names[0])
    return versions


def _unknown(subject: str) -> _ApiError:
    return _ApiError(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def _described(entry: Registered) -> object:
    return {"subject": entry.subject, "version": entry.version, "id": entry.id, "schema": entry.schema}


def _page(request: _Request, items: Sequence[object]) -> Sequence[object]:
    """Return the items from the request's ``offset`` on, but not more than its ``limit``.

    Nothing is ever deleted, so ``deletedOnly`` returns nothing.
    """
    if request.flag("deletedOnly"):
        return []
    first = _number(request.query.get("offset", "")) or 0
    limit = _number(request.query.get("limit", "")) or len(items)
    return items[first : first + limit]


def _number(text: str) -> int | None:
    """Return an id, version or count, which is at least 1. Return None for everything else."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_ID))):
        return None
    return int(text) if 1 <= int(text) <= MAX_ID else None


def _find(versions: Sequence[Registered], body: bytes) -> Registered | None:
    try:
        return look_up.find(versions, _schema(body))
    except ValueError as error:
        raise _ApiError(INVALID_SCHEMA, f"Invalid schema: {error}") from None


def _schema(body: bytes) -> Schema:
    try:
        request = json.loads(body)
        text = request["schema"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _ApiError(400, 'The body is not a JSON object with a "schema"') from None
    if request.get("schemaType") not in (None, "AVRO"):
        raise ValueError(f"type {str(request['schemaType'])[:100]!r}; all schemas here are AVRO")
    if not isinstance(text, str):
        raise ValueError("not a string")  # noqa: TRY004 - wrong data, not a wrong argument
    try:
        return json.loads(text)  # type: ignore[no-any-return]  # the look-up checks it
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
