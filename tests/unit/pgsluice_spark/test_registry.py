"""Unit tests of pgsluice_spark.registry, with the daemon's REST API. tests/spark tests the reader of the topic."""

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import pytest

from pgsluice.registry import api
from pgsluice.registry.store import SchemaStore
from pgsluice_spark.registry import RegistryError, RestRegistry, parse_records
from pgsluice_spark.schema import SchemaVersion

Handler = Callable[[BaseHTTPRequestHandler], tuple[int, bytes]]

SUBJECT = "shop.public.x/ö-value"
SCHEMAS = ['"int"', '"long"']
REDIRECTS = (301, 302, 303, 307, 308)


@pytest.fixture
def serve() -> Iterator[Callable[[Handler], str]]:
    """Provide a function that starts a server with a handler, and returns its URL."""
    servers = []

    def start(handler: Handler) -> str:
        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = handler(self)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if status in REDIRECTS:
                    self.send_header("Location", body.decode())
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def store() -> SchemaStore:
    store = SchemaStore()
    for schema in SCHEMAS:
        store.add(store.propose(SUBJECT, json.loads(schema), None)[0])
    store.complete = True
    return store


def daemon(store: SchemaStore) -> Handler:
    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        url = urlsplit(request.path)
        found = api.answer(store, "GET", url.path, dict(parse_qsl(url.query)), b"")
        assert isinstance(found, api.Answer), "only a POST is a search"
        return found.status, json.dumps(found.body).encode()

    return answer


def test_versions_are_read_over_rest(serve: Callable[[Handler], str], store: SchemaStore) -> None:
    url = serve(daemon(store))
    ids = [store.propose(SUBJECT, json.loads(schema), None)[0].id for schema in SCHEMAS]
    expected = [SchemaVersion(SUBJECT, 1, ids[0], SCHEMAS[0]), SchemaVersion(SUBJECT, 2, ids[1], SCHEMAS[1])]
    assert RestRegistry(f"{url}/").versions(["missing-value", SUBJECT]) == expected


def test_a_version_is_read_once(serve: Callable[[Handler], str], store: SchemaStore) -> None:
    """A long query asks for the versions again and again, and there may be a thousand of them."""
    paths: list[str] = []

    def recorded(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        paths.append(urlsplit(request.path).path.rpartition("/")[2])
        return daemon(store)(request)

    registry = RestRegistry(serve(recorded))
    assert len(registry.versions([SUBJECT])) == 2
    store.add(store.propose(SUBJECT, "string", None)[0])
    assert [version.schema for version in registry.versions([SUBJECT])] == [*SCHEMAS, '"string"']
    assert sorted(paths) == ["1", "2", "3", "versions", "versions"]


def test_deleted_versions_are_asked_for(serve: Callable[[Handler], str]) -> None:
    paths = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        paths.append(request.path)
        return 200, b"[]"

    assert RestRegistry(serve(answer)).versions(["a"]) == []
    assert paths == ["/subjects/a/versions?deleted=true"]


def test_credentials_are_sent(serve: Callable[[Handler], str]) -> None:
    sent = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        sent.append(request.headers["Authorization"])
        return 200, b"[]"

    url = serve(answer)
    for registry in (RestRegistry(url), RestRegistry(url, "u", "secret:ö"), RestRegistry(url, "u")):
        registry.versions(["a"])
        assert "secret" not in repr(registry)
    assert sent[0] is None
    passwords = [base64.b64decode(header.removeprefix("Basic ")).decode() for header in sent[1:]]
    assert passwords == ["u:secret:ö", "u:"]


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (401, b"{}", "answers 401"),
        (404, b"<html>", "answers 404"),
        (404, b"[]", "answers 404"),
        (404, b'{"error_code": 404}', "answers 404"),
        (500, b'{"error_code": 50001}', "answers 500"),
        (200, b"<html>", "does not give a usable answer"),
        (200, b"[1]", "does not answer with a schema"),
        (200, b'[1, "2"]', "does not answer with a list of versions"),
        (200, b'{"a": 1}', "does not answer with a list of versions"),
        (200, b"[" * 100_000, "does not give a usable answer"),
        (404, b"[" * 100_000, "answers 404"),
    ],
)
def test_unusable_answers_are_refused(serve: Callable[[Handler], str], status: int, body: bytes, problem: str) -> None:
    with pytest.raises(RegistryError, match=problem):
        RestRegistry(serve(lambda _: (status, body))).versions(["a"])


@pytest.mark.parametrize("status", REDIRECTS)
def test_credentials_follow_no_redirect(serve: Callable[[Handler], str], status: int) -> None:
    asked = []

    def elsewhere(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        asked.append(request.headers["Authorization"])
        return 200, b"[]"

    target = serve(elsewhere)
    location = f"{target.replace('//', '//u:hunter2@')}/subjects?key=hunter2".encode()
    url = serve(lambda _: (status, location))
    sentence = f"{url}/subjects/a/versions[?]deleted=true redirects to {target}, .* Give the address of the registry"
    with pytest.raises(RegistryError, match=sentence) as caught:
        RestRegistry(url, "u", "secret").versions(["a"])
    assert "hunter2" not in str(caught.value)
    assert asked == []


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/login", "another path"),
        ("http://[broken", "an address that cannot be read"),
        ("file:///etc/passwd", "another path"),
    ],
)
def test_redirects_to_unusual_addresses_are_refused(
    serve: Callable[[Handler], str], location: str, target: str
) -> None:
    url = serve(lambda _: (302, location.encode()))
    with pytest.raises(RegistryError, match=f"redirects to {target}, "):
        RestRegistry(url).versions(["a"])


@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[]"])
def test_a_server_that_does_not_speak_http_is_reported(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as beside:

        def serve_once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        serving = beside.submit(serve_once)
        with pytest.raises(RegistryError, match="does not give a usable answer"):
            RestRegistry(f"http://127.0.0.1:{server.getsockname()[1]}").versions(["a"])
        serving.result()


@pytest.mark.parametrize(
    "url",
    ["https://u:hunter2@registry:8081", "u:hunter2@registry:8081", "http:/u:hunter2@registry", "ftp://u:hunter2@r"],
)
def test_a_user_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match=r"as username and password|must begin with http") as caught:
        RestRegistry(url)
    assert "hunter2" not in str(caught.value)


def test_a_server_that_restarts_is_asked_again(serve: Callable[[Handler], str]) -> None:
    statuses = iter((503, 200))
    assert RestRegistry(serve(lambda _: (next(statuses), b"[]"))).versions(["a"]) == []
    with socket.create_server(("127.0.0.1", 0)) as reserved, ThreadPoolExecutor(1) as beside:
        port = reserved.getsockname()[1]
        reserved.close()
        asking = beside.submit(RestRegistry(f"http://127.0.0.1:{port}").versions, ["a"])
        time.sleep(0.2)
        with socket.create_server(("127.0.0.1", port)) as server, server.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
        assert asking.result() == []


def test_a_server_that_is_missing_is_reported() -> None:
    with pytest.raises(RegistryError, match="does not give a usable answer"):
        RestRegistry("http://127.0.0.1:1", timeout_s=0.1).versions(["a"])
    with pytest.raises(ValueError, match="must begin with http"):
        RestRegistry("file:///etc/passwd")


def test_records_of_the_schema_topic_are_read() -> None:
    def record(version: int, identifier: int) -> str:
        return json.dumps({"subject": "a", "version": version, "id": identifier, "schema": f'"{identifier}"'})

    # The records are out of order, and the schema with id 7 was registered again as another version.
    records = [(9, record(3, 7)), (5, record(1, 7)), (7, record(2, 8)), (6, record(1, 9))]
    found = parse_records(records, "shop.schemas")
    assert [(version.version, version.id) for version in found] == [(1, 9), (2, 8), (3, 7)]
    foreign = ['{"subject": "a"}', "[" * 100_000, '{"subject": "a", "version": "1", "id": 9, "schema": "{}"}', "5", "x"]
    for value in foreign:
        with pytest.raises(RegistryError, match=r"shop\.schemas, offset 4: not a record"):
            parse_records([(4, value)], "shop.schemas")
