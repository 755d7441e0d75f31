"""Spans as a collector receives them, and the behaviour without a collector."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from pgsluice.app.tracing import tracing
from pgsluice.cut import Cut
from pgsluice.metrics import Metrics


class Collector(HTTPServer):
    """A collector that receives spans with OTLP over HTTP."""

    def __init__(self) -> None:
        self.received: list[ExportTraceServiceRequest] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{found.server_port}")
        yield found
        found.shutdown()


def values(attributes: "list[KeyValue]") -> dict[str, str | int]:
    return {one.key: one.value.string_value or one.value.int_value for one in attributes}


def test_a_collector_gets_spans_with_their_times_and_attributes(collector: Collector) -> None:
    metrics, traced = Metrics(), tracing("shop")
    assert traced is not None
    metrics.span = traced.span
    metrics.count_cut(Cut(events=7, transactions=2, size=300), 0.25)
    metrics.count_round(0.5)
    metrics.count_request("ok", 0.125)
    traced.close()
    (request,) = collector.received
    (resource,) = request.resource_spans
    assert values(list(resource.resource.attributes))["service.name"] == "pgsluice"
    assert values(list(resource.resource.attributes))["pgsluice.pipeline"] == "shop"
    spans = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    took = {name: span.end_time_unix_nano - span.start_time_unix_nano for name, span in spans.items()}
    assert took == {"cut": 250_000_000, "snapshot round": 500_000_000, "registry request": 125_000_000}
    cut = values(list(spans["cut"].attributes))
    assert cut == {"pgsluice.events": 7, "pgsluice.transactions": 2, "pgsluice.bytes": 300}
    assert values(list(spans["registry request"].attributes)) == {"pgsluice.result": "ok"}


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
def test_the_environment_can_disable_spans(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert tracing("shop") is None


def test_without_settings_there_are_no_spans() -> None:
    assert tracing("shop") is None


def test_a_collector_that_is_away_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsluice.app.tracing.CLOSE_S", 0.1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    traced = tracing("shop")
    assert traced is not None
    traced.span("cut", 0.1, {})
    traced.close()
