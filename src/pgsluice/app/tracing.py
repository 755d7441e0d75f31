"""Sends OpenTelemetry spans for sessions, cuts, rounds of loads, and requests to the schema registry server.

The environment variables ``OTEL_...`` configure the spans, and the extra ``otel`` installs OpenTelemetry. Without the
variables or the extra, nothing is imported. A span is created only when its work has ended, so it costs nothing while
the work is in progress.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog

from pgsluice import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

CLOSE_S: Final = 2.0
"""The longest time that the process, when it ends, waits for the last spans to be sent."""

_ASK_FOR_SPANS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")

log = structlog.get_logger(__name__)


class Tracing:
    """Sends spans to the collector that the environment names."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("pgsluice", __version__)

    def span(self, name: str, seconds: float, attributes: Mapping[str, str | int]) -> None:
        """Queue a span of work that has just ended and took ``seconds``. A thread of OpenTelemetry sends it later."""
        end_ns = time.time_ns()
        begun = self._tracer.start_span(
            name,
            start_time=end_ns - round(seconds * 1e9),
            attributes={f"pgsluice.{key}": value for key, value in attributes.items()},
        )
        begun.end(end_ns)

    def close(self) -> None:
        """Send the remaining spans. Wait at most ``CLOSE_S``, because the collector may not answer."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def tracing(pipeline: str) -> Tracing | None:
    """Return the sender of spans. Return None if the environment asks for no spans, or if the extra is missing."""
    wanted = any(os.environ.get(name) for name in _ASK_FOR_SPANS)
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not wanted or is_off or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - as above
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        log.warning("OTEL_... asks for spans, but none are sent: pip install 'pgsluice[otel]'", missing=error.name)
        return None
    name = os.environ.get("OTEL_SERVICE_NAME") or "pgsluice"
    resource = Resource.create({"service.name": name, "service.version": __version__, "pgsluice.pipeline": pipeline})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)
