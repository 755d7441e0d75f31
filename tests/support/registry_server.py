"""A registry server in memory that behaves like Confluent's. Tests can schedule faults.

It has features that Apicurio lacks: it can refuse credentials, demand certificates, be slow or overloaded, be in mode
READONLY, and import schemas with their ids. It also distinguishes a subject without its own compatibility
level from a subject with the same level as the registry.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

import json
import re
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_WR
from threading import RLock, Thread
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

Answer = tuple[int, Any]


@dataclass
class Fault:
    """A fault of the next ``times`` requests whose "METHOD path" matches ``match``.

    Each request is delayed by ``delay_s``. If ``status`` is set, the answer is ``status`` and ``body``.
    """

    match: str = ""
    status: int | None = None
    body: Any = None
    delay_s: float = 0.0
    times: int = 1_000_000


@dataclass
class Subject:
    schemas: dict[int, tuple[int, str]] = field(default_factory=dict)
    """The id and the text of each version."""
    level: str | None = None
    mode: str | None = None


class RegistryServer:
    """A server that runs in a thread until the context ends."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.subjects: dict[str, Subject] = {}
        self.ids: dict[int, str] = {}
        self.level = "BACKWARD"
        self.mode = "READWRITE"
        self.authorization: str | None = None
        """The Authorization header that every request must have, or None if the header is not checked."""
        self.ignores_properties = False
        """Whether schemas that differ only in properties are treated as the same."""
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self._lock = RLock()
        self._tls = tls

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if self._tls is not None:
            # The connection's own thread does the handshake.
            self._server.socket = self._tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        scheme, host = ("https", "localhost") if self._tls is not None else ("http", "127.0.0.1")
        return f"{scheme}://{host}:{self._server.server_address[1]}"

    def texts(self, subject: str) -> list[str]:
        return [text for _, text in self.subjects[subject].schemas.values()] if subject in self.subjects else []

    def reset(self) -> None:
        """Return to the initial state without subjects."""
        self.subjects, self.ids, self.level, self.mode = {}, {}, "BACKWARD", "READWRITE"
        self.authorization, self.faults, self.requests = None, [], []

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> Answer:  # noqa: ANN401 - a mapping
        parts = urlsplit(target)
        request = f"{method} {unquote(parts.path)}"
        fault = self._note(request)
        if fault is not None:
            time.sleep(fault.delay_s)
            if fault.status is not None:
                return fault.status, fault.body
        if self.authorization not in (None, headers["Authorization"]):
            return 401, {"error_code": 401, "message": "Unauthorized"}
        path = tuple(unquote(part) for part in parts.path.strip("/").split("/"))
        query = {name: values[0].lower() for name, values in parse_qs(parts.query).items()}
        with self._lock:
            return self._route(method, path, query, json.loads(body) if body else {})

    def _note(self, request: str) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times and re.search(fault.match, request):
                    fault.times -= 1
                    return fault
        return None

    def _route(  # noqa: PLR0911 - one answer for each kind of request
        self, method: str, path: tuple[str, ...], query: dict[str, str], body: dict[str, Any]
    ) -> Answer:
        match (method, *path):
            case ("GET", "subjects"):
                return 200, sorted(self.subjects)
            case ("POST", "subjects", name):
                return self._look_up(name, body["schema"])
            case ("POST", "subjects", name, "versions"):
                return self._register(name, body)
            case ("GET", "subjects", name, "versions") if self.texts(name):
                return 200, list(self.subjects[name].schemas)
            case ("GET", "schemas", "ids", number) if int(number) in self.ids:
                return 200, {"schema": self.ids[int(number)]}
            case ("GET", "schemas", "ids", number, "subjects") if int(number) in self.ids:
                return 200, self._users(int(number))
            case ("GET", "config" | "mode" as what, *names):
                return self._get(what, names, query)
            case ("PUT", "config" | "mode" as what, *names):
                return self._put(what, names, query, body)
            case ("DELETE", "config" | "mode" as what, name):
                setattr(self._subject(name), "level" if what == "config" else what, None)
                return 200, {"compatibilityLevel" if what == "config" else "mode": "NONE"}
        code = {"schemas": 40403, "subjects": 40401}.get(path[0], 404)
        return 404, {"error_code": code, "message": "not found"}

    def _users(self, number: int) -> list[str]:
        return [name for name, one in self.subjects.items() if number in {known for known, _ in one.schemas.values()}]

    def _subject(self, name: str) -> Subject:
        return self.subjects.setdefault(name, Subject())

    def _look_up(self, name: str, text: str) -> Answer:
        if not self.texts(name):
            return 404, {"error_code": 40401, "message": f"Subject '{name}' not found."}
        for version, (number, known) in self.subjects[name].schemas.items():
            if self._parsed(known) == self._parsed(text):
                return 200, {"subject": name, "version": version, "id": number, "schema": known}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _parsed(self, text: str) -> Any:  # noqa: ANN401 - any schema
        def without(fields: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in fields.items() if not name.startswith("pg.")}

        return json.loads(text, object_hook=without if self.ignores_properties else None)

    def _register(self, name: str, body: dict[str, Any]) -> Answer:
        subject, text = self._subject(name), body["schema"]
        mode = subject.mode or self.mode
        if mode == "READONLY":
            return _not_permitted(f"Subject {name} is in read-only mode")
        if mode == "IMPORT":
            return self._import(name, body)
        if "id" in body:
            return _not_permitted(f"Subject {name} is not in import mode")
        status, found = self._look_up(name, text)
        if status == 200:
            return 200, {"id": found["id"]}
        if (subject.level or self.level) != "NONE" and not all(_reads(text, known) for known in self.texts(name)):
            return 409, {"error_code": 409, "message": "Schema being registered is incompatible with an earlier schema"}
        known = next((number for number, one in self.ids.items() if json.loads(one) == json.loads(text)), None)
        return self._place(subject, max(subject.schemas, default=0) + 1, known or max(self.ids, default=0) + 1, text)

    def _import(self, name: str, body: dict[str, Any]) -> Answer:
        text, number = body["schema"], body.get("id")
        if number is None:
            return _not_permitted(f"Subject {name} is in import mode")
        if json.loads(self.ids.get(number, text)) != json.loads(text):
            return _not_permitted(f"Overwrite new schema with id {number} is not permitted.")
        return self._place(self._subject(name), body["version"], number, text)

    def _place(self, subject: Subject, version: int, number: int, text: str) -> Answer:
        subject.schemas[version] = (number, text)
        self.ids[number] = text
        return 200, {"id": number}

    def _get(self, what: str, names: list[str], query: dict[str, str]) -> Answer:
        attribute, code = ("level", 40408) if what == "config" else ("mode", 40409)
        found = getattr(self, attribute)
        if names:
            own = getattr(self.subjects.get(names[0], Subject()), attribute)
            if own is None and query.get("defaultToGlobal") != "true":
                return 404, {"error_code": code, "message": f"Subject '{names[0]}' has no {attribute} of its own"}
            found = own or found
        return 200, {"compatibilityLevel" if what == "config" else "mode": found}

    def _put(self, what: str, names: list[str], query: dict[str, str], body: dict[str, Any]) -> Answer:
        attribute = "level" if what == "config" else "mode"
        value = body["compatibility" if what == "config" else "mode"]
        if value == "IMPORT" and query.get("force") != "true" and (self.texts(names[0]) if names else self.ids):
            return _not_permitted("Cannot import since found existing subjects")
        setattr(self._subject(names[0]) if names else self, attribute, value)
        return 200, body

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer: Callable[..., Answer] = self.answer

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, found = answer(self.command, self.path, self.headers, body)
                text = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_DELETE = _do  # noqa: N815 - the library's names

            def log_message(self, *_: object) -> None:
                """Log nothing."""

            def handle(self) -> None:
                try:
                    super().handle()
                # The client has closed the connection, or one side does not trust the other.
                except (ssl.SSLError, ConnectionError):
                    self.close_connection = True
                    with suppress(OSError):  # if the server closed immediately, the client could not read the TLS alert
                        self.connection.shutdown(SHUT_WR)
                        while self.connection.recv(65536):
                            pass

        return Handler


def _not_permitted(message: str) -> Answer:
    return 422, {"error_code": 42205, "message": message}


def _reads(new: str, old: str) -> bool:
    """Return whether a reader with schema ``new`` can read data that was written with schema ``old``.

    For records, compare only the names and the defaults of the fields.
    """
    reader, writer = json.loads(new), json.loads(old)
    if not isinstance(reader, dict) or "fields" not in reader:
        return bool(reader == writer)
    written = {one["name"] for one in writer["fields"]}
    return all(one["name"] in written or "default" in one for one in reader["fields"])
