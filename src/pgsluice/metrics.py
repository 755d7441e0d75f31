"""Every metric: its name, its labels, its help.

Counted per batch, cut or session, never per row. https://prometheus.io/docs/practices/naming/
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)


class Metrics:
    """All metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = self._counter("events", "Change events committed to Kafka.", "op")
        self.dead_letters = self._counter("dead_letters", "Changes that a dead letter stands for in Kafka.")
        self.quarantined_tables = self._gauge(
            "quarantined_tables", "Tables that cannot be published as the settings are; at most 100 are counted."
        )
        self.event_bytes = self._counter("event_bytes", "Bytes of keys and values committed to Kafka.")
        self.transactions = self._counter("transactions", "PostgreSQL transactions committed to Kafka.")
        self.cuts = self._counter("cuts", "Cuts committed to Kafka.", "kind")
        self.resent = self._counter("resent_transactions", "Transactions that came again and were left out.")
        self.received_bytes = self._counter("received_bytes", "Bytes received from the replication slot.")
        self.sessions = self._counter("sessions", "Sessions begun; all but the first are reconnects.")
        self.session_errors = self._counter("session_errors", "Sessions ended by an error.", "error")
        self.kafka_errors = self._gauge(
            "kafka_client_errors", "Errors that the Kafka clients reported since the start."
        )
        self.cut_seconds = Histogram(
            "pgsluice_cut_seconds", "Time to commit a cut.", registry=self.registry, buckets=_SECONDS
        )
        self.registry_seconds = Histogram(
            "pgsluice_registry_seconds",
            'Time of a request to the schema registry server; result is "ok", an HTTP status, or what else went wrong.',
            ("result",),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.schema_versions = self._counter("schema_versions", "New versions of schemas that were registered.")
        self.lsn = self._gauge(
            "lsn", "Positions in the WAL, in bytes: server, received, delivered, confirmed.", "position"
        )
        self.lag_bytes = self._gauge(
            "lag_bytes", "WAL written by the server and not yet confirmed by us; NaN while no session streams."
        )
        self.lag_seconds = self._gauge(
            "lag_seconds", "Age of the oldest commit received and not yet delivered, 0 when there is none."
        )
        self.buffered_bytes = self._gauge("buffered_bytes", "Encoded bytes on their way to Kafka.")
        self.waiting_transactions = self._gauge(
            "waiting_transactions", "Streamed and prepared transactions whose rows wait for the commit."
        )
        self.waiting_bytes = self._gauge("waiting_bytes", "Bytes of rows that wait for their commit.", "place")
        self.prepared_transactions = self._gauge(
            "prepared_transactions", "Prepared transactions received that have not ended."
        )
        self.oldest_prepared_seconds = self._gauge(
            "oldest_prepared_seconds",
            "Age of the oldest prepared transaction with changes: it keeps the slot from moving; 0 without one.",
        )
        self.active = self._gauge("active", "1 while this process streams from the slot, 0 while it waits.")
        self.info = self._gauge("info", "1; labels tell what runs.", "version", "pipeline", "encoder", "mode")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"pgsluice_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"pgsluice_{name}", text, labels, registry=self.registry)
