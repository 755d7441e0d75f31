import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx2
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pgsluice.app.http import server as module
from pgsluice.app.http.health import Health, Role
from pgsluice.app.http.server import BODY_MAX_BYTES, HttpServer
from pgsluice.avro.wire import Schema
from pgsluice.errors import ConfigError
from pgsluice.registry.api import Answer
from pgsluice.registry.store import SchemaStore

SUBJECT = "s.p.Größe 50 %/a-value"


@dataclass
class Process:
    """A process whose status and health a test sets."""

    status: dict[str, object] = field(default_factory=dict)
    dead: str | None = None
    unready: dict[Role, str] = field(default_factory=dict)

    @property
    def health(self) -> Health:
        return Health(lambda: self.status, lambda: self.dead, self.unready.get)


@asynccontextmanager
async def running(
    process: Process,
    metrics: CollectorRegistry | None = None,
    registry: SchemaStore | None = None,
    allowed_hosts: Sequence[str] = (),
) -> AsyncIterator[httpx2.AsyncClient]:
    server = HttpServer("127.0.0.1:0", process.health, metrics or CollectorRegistry(), registry, allowed_hosts)
    await server.start()
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
            yield client
    finally:
        await server.stop()


@pytest.fixture
def store() -> SchemaStore:
    store = SchemaStore()
    store.add(store.propose(SUBJECT, {"type": "string"}, None)[0])
    store.complete = True
    return store


class TestHealth:
    async def test_a_live_process_answers_ok(self) -> None:
        async with running(Process()) as client:
            answer = await client.get("/livez")
        assert (answer.status_code, answer.text) == (200, "ok\n")

    async def test_a_dead_process_says_why(self) -> None:
        async with running(Process(dead="the reader made no progress for 61 s")) as client:
            answer = await client.get("/livez")
        assert (answer.status_code, answer.text) == (503, "the reader made no progress for 61 s\n")

    async def test_a_reason_is_one_line_without_control_characters(self) -> None:
        async with running(Process(dead="PostgreSQL says a\x1b[2J\nok")) as client:
            answer = await client.get("/livez")
        assert answer.text == "PostgreSQL says a\\x1b[2J\\nok\n"

    async def test_readiness_depends_on_the_role(self) -> None:
        async with running(Process(unready={Role.ACTIVE: "waiting as a hot standby"})) as client:
            standby, owner = await client.get("/readyz"), await client.get("/readyz?role=active")
        assert standby.status_code == 200
        assert (owner.status_code, owner.text) == (503, "waiting as a hot standby\n")

    async def test_an_unknown_role_is_refused(self) -> None:
        async with running(Process()) as client:
            answer = await client.get("/readyz?role=leader")
        assert answer.status_code == 400
        assert answer.json() == {"error_code": 400, "message": "HTTP 400 role is one of any, active"}

    async def test_head_requests_are_answered(self) -> None:
        async with running(Process()) as client:
            assert (await client.head("/livez")).status_code == 200


class TestHeaders:
    @pytest.mark.parametrize("path", ["/", "/livez", "/metrics", "/status", "/subjects", "/nothing"])
    async def test_headers_prevent_type_guessing_and_hide_the_version(self, path: str) -> None:
        async with running(Process()) as client:
            answer = await client.get(path)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Server"] == "pgsluice"

    async def test_answers_to_other_protocols_hide_the_version(self) -> None:
        async with running(Process()) as client:
            url = client.base_url
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(b"G\0T / HTTP/1.1\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            writer.close()
        assert head.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
        assert b"Server: pgsluice\r\n" in head


class TestMetrics:
    @pytest.fixture
    def metrics(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        Counter("pgsluice_events", "Change events.", registry=registry).inc(3)
        return registry

    @pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=0.0.4", "text/plain;version=x.y"])
    async def test_metrics_are_served_as_text(self, metrics: CollectorRegistry, accept: str) -> None:
        async with running(Process(), metrics) as client:
            answer = await client.get("/metrics", headers={"Accept": accept})
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert "pgsluice_events_total 3.0\n" in answer.text

    @pytest.mark.parametrize("parameters", [";version=1.0.0,text/plain;version=0.0.4;q=0.5", ";version=x.y", ""])
    async def test_metrics_are_served_as_openmetrics(self, metrics: CollectorRegistry, parameters: str) -> None:
        accept = f"application/openmetrics-text{parameters}"
        async with running(Process(), metrics) as client:
            answer = await client.get("/metrics", headers={"Accept": accept})
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        (family,) = text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
        assert family.name == "pgsluice_events"


STATUS: dict[str, object] = {"state": "streaming", "lag": {"bytes": 0}, "topics": ["a", "b"]}


class TestStatus:
    async def test_the_status_is_served_as_json(self) -> None:
        async with running(Process(STATUS)) as client:
            answer = await client.get("/status")
        assert answer.headers["Content-Type"].startswith("application/json")
        assert answer.json() == STATUS

    @pytest.mark.parametrize("accept", ["*/*", "text/html,application/json", "application/json"])
    async def test_the_status_is_served_as_a_page(self, accept: str) -> None:
        async with running(Process(STATUS)) as client:
            answer = await client.get("/", headers={"Accept": accept})
        assert answer.headers["Content-Type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "streaming" in answer.text

    async def test_the_page_leaves_the_root_to_registry_clients(self, store: SchemaStore) -> None:
        async with running(Process(STATUS), registry=store) as client:
            answer = await client.get("/", headers={"Accept": "application/vnd.schemaregistry.v1+json"})
            page = await client.get("/", headers={"Accept": "text/html,*/*"})
        assert answer.json() == {}
        assert page.headers["Content-Type"].startswith("text/html")


class TestRegistry:
    @pytest.mark.parametrize("accept", ["*/*", "application/json", "text/html", "application/xml", ""])
    async def test_the_registry_answers_for_any_accept_header(self, store: SchemaStore, accept: str) -> None:
        async with running(Process(), registry=store) as client:
            answer = await client.get("/subjects", headers={"Accept": accept})
        assert answer.headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
        assert answer.json() == [SUBJECT]

    async def test_subjects_arrive_as_they_were_encoded(self, store: SchemaStore) -> None:
        path = "/subjects/s.p.Gr%C3%B6%C3%9Fe%2050%20%25%2Fa-value/versions/latest"
        async with running(Process(), registry=store) as client:
            answer = await client.get(path)
        assert answer.json()["subject"] == SUBJECT

    async def test_the_registry_reads_the_body_of_a_request(self, store: SchemaStore) -> None:
        async with running(Process(), registry=store) as client:
            answer = await client.post("/subjects/unheard-of", json={"schema": '"string"'})
        assert answer.status_code == 404
        assert answer.json() == {"error_code": 40401, "message": "Subject 'unheard-of' not found."}

    async def test_a_request_waits_for_a_schema_that_comes_a_moment_late(self, store: SchemaStore) -> None:
        late, _ = store.propose("late", {"type": "long"}, None)
        async with running(Process(), registry=store) as client:
            asking = asyncio.create_task(client.get(f"/schemas/ids/{late.id}"))
            await asyncio.sleep(0.2)
            store.add(late)
            answer = await asking
        assert answer.json() == {"schema": '{"type":"long"}'}

    async def test_a_request_does_not_wait_for_ever(self, store: SchemaStore) -> None:
        async with running(Process(), registry=store) as client:
            answer = await client.get("/schemas/ids/1")
        assert answer.json() == {"error_code": 40403, "message": "Schema 1 not found"}

    async def test_errors_are_json(self, store: SchemaStore) -> None:
        async with running(Process(), registry=store) as client:
            missing, wrong = await client.get("/nothing"), await client.put("/subjects")
            large = await client.post("/subjects/a", content=b"x" * (BODY_MAX_BYTES + 1))
        assert missing.json() == {"error_code": 404, "message": "HTTP 404 Not Found"}
        assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET")
        assert (large.status_code, large.json()["error_code"]) == (413, 413)

    async def test_without_a_registry_errors_are_json(self) -> None:
        async with running(Process()) as client:
            missing, wrong = await client.get("/subjects"), await client.post("/livez")
        assert missing.json() == {"error_code": 404, "message": "HTTP 404 Not Found"}
        assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET,HEAD")

    @pytest.mark.parametrize("path", ["/livez", "/subjects"])
    async def test_an_expect_header_is_met_or_refused(self, path: str, store: SchemaStore) -> None:
        async with running(Process(), registry=store) as client:
            met = await client.get(path, headers={"Expect": "100-Continue"})
            refused = await client.get(path, headers={b"Expect": b"\x94"})
        assert (met.status_code, refused.status_code) == (200, 417)

    async def test_a_request_line_has_a_limit(self, store: SchemaStore) -> None:
        async with running(Process(), registry=store) as client:
            answer = await client.get("/subjects/" + "a" * 10_000)
        assert answer.status_code == 400


class TestBrowsers:
    """A web page can make a browser send requests without its user's knowledge."""

    async def test_requests_for_a_foreign_host_name_are_refused(self) -> None:
        async with running(Process(STATUS)) as client:
            answer = await client.get("/status", headers={"Host": "evil.example"})
        assert answer.status_code == 421
        assert "http.allowed_hosts" in answer.text

    async def test_host_names_can_be_allowed(self) -> None:
        async with running(Process(STATUS), allowed_hosts=["pgsluice.example.com"]) as client:
            answer = await client.get("/status", headers={"Host": "pgsluice.example.com"})
        assert answer.status_code == 200

    @pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 404)])
    async def test_other_sites_may_not_post(self, store: SchemaStore, site: str, status: int) -> None:
        async with running(Process(), registry=store) as client:
            headers = {"Sec-Fetch-Site": site}
            answer = await client.post("/subjects/unheard-of", json={"schema": '"string"'}, headers=headers)
        assert answer.status_code == status

    @pytest.mark.parametrize(
        ("origin", "status"),
        [("http://evil.example", 403), ("null", 403), ("http://[", 403), ("http://10.0.0.5:8080", 404)],
    )
    async def test_other_origins_may_not_post(self, store: SchemaStore, origin: str, status: int) -> None:
        async with running(Process(), registry=store) as client:
            headers = {"Host": "10.0.0.5:8080", "Origin": origin}
            answer = await client.post("/subjects/unheard-of", json={"schema": '"string"'}, headers=headers)
        assert answer.status_code == status

    async def test_the_page_is_shown_in_no_frame(self) -> None:
        async with running(Process()) as client:
            answer = await client.get("/")
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


class TestLimits:
    async def test_the_time_for_a_body_is_limited(self, store: SchemaStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "ANSWER_S", 0.1)

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(5)

        async with running(Process(), registry=store) as client:
            answer = await client.post("/subjects/a", content=body())
        assert (answer.status_code, answer.json()["error_code"]) == (408, 408)

    async def test_encoded_bodies_are_refused(self, store: SchemaStore) -> None:
        async with running(Process(), registry=store) as client:
            answer = await client.post("/subjects/a", content=b"x", headers={"Content-Encoding": "gzip"})
        assert answer.status_code == 415

    async def test_the_size_of_names_in_a_schema_is_limited(self, store: SchemaStore) -> None:
        """Refuse a schema with one long namespace, which is part of each of its thousands of names."""
        union: Schema = ["n"] * 100_000
        fields = [{"name": "f", "type": union}]
        schema = {"type": "record", "name": "n", "namespace": "a" * 4000, "fields": fields}
        async with running(Process(), registry=store) as client:
            answer = await client.post(f"/subjects/{quote(SUBJECT, safe='')}", json={"schema": json.dumps(schema)})
        assert answer.status_code == 422
        assert answer.json()["message"] == "Invalid schema: its names take more than 8388608 characters"

    async def test_a_look_up_does_not_block_the_event_loop(self, store: SchemaStore) -> None:
        loop, searching, done = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def search() -> Answer:
            loop.call_soon_threadsafe(searching.set)
            assert done.wait(10)
            return Answer(200, {})

        server = HttpServer("127.0.0.1:0", Process().health, CollectorRegistry(), store)
        waiting = asyncio.create_task(server._complete(search))
        await searching.wait()
        done.set()
        assert (await waiting).status == 200
        await server.stop()


class TestListening:
    def server(self, listen: str) -> HttpServer:
        return HttpServer(listen, Process().health, CollectorRegistry())

    @pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "[::1]:0", ":0", "0.0.0.0:0"])
    async def test_the_server_listens_at_an_address(self, listen: str) -> None:
        server = self.server(listen)
        await server.start()
        assert server.port > 0
        await server.stop()

    async def test_an_address_that_is_taken_is_refused(self) -> None:
        async with AsyncExitStack() as stack:
            owner = self.server("127.0.0.1:0")
            await owner.start()
            stack.push_async_callback(owner.stop)
            listen = f"127.0.0.1:{owner.port}"
            message = f"Cannot listen on {listen}: Address already in use.*PGSLUICE_HTTP__LISTEN"
            with pytest.raises(ConfigError, match=message):
                await self.server(listen).start()

    async def test_an_address_of_another_machine_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"Cannot listen on 192.0.2.1:8080: "):
            await self.server("192.0.2.1:8080").start()

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (OSError("no socket"), "no socket"),
            (OSError(98, "error while attempting to bind on address"), "Address already in use"),
            (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        ],
    )
    def test_the_reason_why_an_address_cannot_be_used_is_named(self, error: OSError, words: str) -> None:
        assert module._reason(error) == words

    @pytest.mark.parametrize("listen", ["", "8080", "host", "host:", "host:x", "host:65536", "::1:80", "a:b:80"])
    def test_invalid_addresses_are_refused(self, listen: str) -> None:
        with pytest.raises(ConfigError, match=r"http.listen: .* is not an address"):
            self.server(listen)

    async def test_a_client_that_hangs_does_not_delay_the_stop(self) -> None:
        server = self.server("127.0.0.1:0")
        await server.start()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /livez HTTP/1.1\r\n")
        await writer.drain()
        await server.stop()
        writer.close()


async def test_requests_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(Process()) as client:
        await client.get("/livez")
    assert [record for record in caplog.records if not record.name.startswith("http")] == []
