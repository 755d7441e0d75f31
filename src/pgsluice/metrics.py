"""All metrics, each with its name, its labels and its help text.

Metrics are updated per batch, cut or session, never per row. docs/metrics.md says what each of them is for.

https://prometheus.io/docs/practices/naming/
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pgsluice import dead_letter
from pgsluice.cut import Cut

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)


TOPICS_MAX = 500
"""The maximum number of topics that have their own time series. The number is limited because each series takes memory
in Prometheus, and there can be thousands of tables."""

TOTALS_MAX = 5000
"""The maximum number of topics whose events are counted separately for the status page, which shows the busiest
topics."""

OTHER_TOPICS = "(other)"
"""The label of all topics beyond ``TOPICS_MAX``. No topic has this name, because Kafka does not allow brackets."""

ROUND_RESULTS = ("placed", "no_place", "failed")
"""The results of a round of a load: the rows were placed in the stream, no position in the stream fitted the rows, or
the rows could not be read."""

WAL_STATUS = ("reserved", "extended", "unreserved", "lost")
"""The values of ``pg_replication_slots.wal_status``."""


class Known(Collector):
    """A metric that has no samples while its value is unknown, so that alerts never see a guess.

    It is a gauge, or, if ``counts`` is true, a counter whose value another program maintains.
    """

    def __init__(self, name: str, text: str, label: str | None = None, *, counts: bool = False) -> None:
        self._family = CounterMetricFamily if counts else GaugeMetricFamily
        self._name = name
        self._text = text
        self._labels = [] if label is None else [label]
        self._values: Mapping[str, float] = {}

    def set(self, value: float | None) -> None:
        """Set the value of a gauge without label. None means that it is unknown."""
        self._values = {} if value is None else {"": value}

    def set_all(self, values: Mapping[str, float]) -> None:
        """Set all values of a gauge with a label. ``values`` maps each value of the label to a value of the metric."""
        self._values = values

    def collect(self) -> Iterator[Metric]:
        """Return the known samples."""
        family = self._family(self._name, self._text, labels=self._labels)
        for label, value in self._values.items():
            family.add_metric([label] if self._labels else [], value)
        yield family


class TopicEvents:
    """Counts the events of each topic. Topics beyond TOPICS_MAX share one time series per op."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._named: set[str] = set()
        self.totals: dict[str, int] = {}
        """The events by topic, for at most TOTALS_MAX topics and OTHER_TOPICS."""

    def add(self, topic: str, op: str, count: int) -> None:
        """Count events of a topic."""
        if topic in self._named or len(self._named) < TOPICS_MAX:
            self._named.add(topic)
            self._counter.labels(topic, op).inc(count)
        else:
            self._counter.labels(OTHER_TOPICS, op).inc(count)
        key = topic if topic in self.totals or len(self.totals) < TOTALS_MAX else OTHER_TOPICS
        self.totals[key] = self.totals.get(key, 0) + count


@dataclass(frozen=True, slots=True)
class Delivered:
    """The sums over all cuts delivered since the start. ``seconds``: the time that their commits took."""

    cuts: int = 0
    transactions: int = 0
    events: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def plus(self, cut: Cut, seconds: float) -> "Delivered":
        """Return the sums after one more cut."""
        return Delivered(
            self.cuts + 1,
            self.transactions + cut.transactions,
            self.events + cut.events,
            self.bytes + cut.size,
            self.seconds + seconds,
        )

    def since(self, earlier: "Delivered") -> "Delivered":
        """Return what was delivered after ``earlier``."""
        return Delivered(
            self.cuts - earlier.cuts,
            self.transactions - earlier.transactions,
            self.events - earlier.events,
            self.bytes - earlier.bytes,
            self.seconds - earlier.seconds,
        )


class Labelled(Collector):
    """All metrics of a registry with additional labels, which distinguish several pipelines.

    The samples with the creation times of counters (``_created``) are left out, because nobody uses them, and they
    would double the number of time series.
    """

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = dict(labels)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics. In each sample, the additional labels come first."""
        for family in self._registry.collect():
            found = Metric(family.name, family.documentation, family.type, family.unit)
            found.samples = [
                one._replace(labels={**self._labels, **one.labels})
                for one in family.samples
                if one.name != f"{family.name}_created"
            ]
            yield found


def labelled(registry: CollectorRegistry, **labels: str) -> CollectorRegistry:
    """Return a registry with the metrics of ``registry``, each with these ``labels``."""
    found = CollectorRegistry()
    found.register(Labelled(registry, labels))
    return found


def registry_metrics(subjects: Callable[[], int]) -> CollectorRegistry:
    """Return the metrics of ``pgsluice registry``. ``subjects`` returns how many subjects the registry serves."""
    found = CollectorRegistry()
    ProcessCollector(registry=found)
    served = Gauge("pgsluice_registry_subjects", "Subjects that are served.", registry=found)
    served.set_function(subjects)
    return found


Span = Callable[[str, float, Mapping[str, str | int]], None]
"""Called when an operation has ended, with its name, its duration in seconds, and attributes."""


def _no_span(_name: str, _seconds: float, _attributes: Mapping[str, str | int]) -> None:
    """Do nothing, because spans are off."""


class Metrics:
    """All metrics of one pipeline's process, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.span: Span = _no_span
        self.delivered = Delivered()
        self.last_commit_ts: int | None = None
        """The commit time of the last delivered transaction, in µs since 2000-01-01 UTC."""
        ProcessCollector(registry=self.registry)
        self._add_work()
        self._add_sessions()
        self._add_positions()
        self._add_slot()
        self._add_certificates()
        self._add_memory()
        self._add_snapshots()

    def _add_work(self) -> None:
        self.state = self._gauge("state", "1 for the state of the process, 0 for all other states.", "state")
        self.events = self._counter("events", "Change events committed to Kafka.", "op")
        self.topic_events = TopicEvents(
            self._counter(
                "topic_events",
                f'Change events committed to Kafka by topic; topics after the first {TOPICS_MAX} are "{OTHER_TOPICS}".',
                "topic",
                "op",
            )
        )
        self.dead_letters = self._counter("dead_letters", "Changes that a dead letter replaces in Kafka.")
        self.quarantined_tables = self._gauge(
            "quarantined_tables", "Tables that cannot be published with these settings; at most 100 are counted."
        )
        self.event_bytes = self._counter("event_bytes", "Bytes of keys and values committed to Kafka.")
        self.transactions = self._counter("transactions", "PostgreSQL transactions committed to Kafka.")
        self.cuts = self._counter("cuts", "Cuts committed to Kafka.", "kind")
        self.resent = self._counter("resent_transactions", "Transactions that were sent again and skipped.")
        self.received_bytes = self._counter("received_bytes", "Bytes received from the replication slot.")

    def _add_sessions(self) -> None:
        self.sessions = self._counter("sessions", "Sessions begun; all but the first are reconnects.")
        self.session_errors = self._counter("session_errors", "Sessions ended by an error.", "error")
        self.kafka_errors = self._known(
            "kafka_errors", "Errors that the Kafka clients reported, by librdkafka's name.", "kind", counts=True
        )
        self.loop_delay_seconds = Histogram(
            "pgsluice_event_loop_delay_seconds",
            "Delay of a scheduled task on the event loop, measured once a second.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.cut_seconds = Histogram(
            "pgsluice_cut_seconds", "Time to commit a cut.", registry=self.registry, buckets=_SECONDS
        )
        self.registry_seconds = Histogram(
            "pgsluice_registry_seconds",
            'Time of a request to the schema registry server; result is "ok", an HTTP status, "no answer" or '
            '"no registry".',
            ("result",),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.schema_versions = self._counter("schema_versions", "New versions of schemas that were registered.")

    def _add_positions(self) -> None:
        self.active = self._gauge("active", "1 while this process streams from the slot, 0 while it waits.")
        self.paused = self._known(
            "paused", "1 while `pgsluice pause` keeps the pipeline from delivering, 0 otherwise; absent on a standby."
        )
        self.info = self._gauge(
            "info", "Always 1; the labels describe the process.", "version", "pipeline", "encoder", "mode"
        )
        self.lsn = self._gauge(
            "lsn", "Positions in the WAL, in bytes: server, received, delivered, confirmed.", "position"
        )
        self.lag_bytes = self._known(
            "lag_bytes", "WAL between the position confirmed to the server and the server's last known position."
        )
        self.stage_lag_bytes = self._known(
            "stage_lag_bytes",
            "WAL between the server's last known position and the received one (receive), between the received and the "
            "delivered one (deliver), and between the delivered and the confirmed one (confirm).",
            "stage",
        )
        self.source_lag_seconds = self._known(
            "source_lag_seconds",
            "Time since the commit of the last delivered transaction, 0 when everything is delivered.",
        )
        self.lag_seconds = self._known(
            "lag_seconds", "Time for which there have been changes to deliver, 0 when everything is delivered."
        )

    def _add_slot(self) -> None:
        self.slot_exists = self._known("slot_exists", "1 if the slot exists on the server, 0 otherwise.")
        self.slot_active = self._known("slot_active", "1 while a process streams from the slot, 0 otherwise.")
        self.slot_retained_bytes = self._known(
            "slot_retained_bytes", "WAL that the server keeps for the slot, from the slot's restart_lsn on."
        )
        self.slot_safe_bytes = self._known(
            "slot_safe_bytes",
            "WAL that can be written before the slot may lose WAL (safe_wal_size); absent without a limit.",
        )
        self.slot_wal_status = self._known(
            "slot_wal_status", "1 for the slot's wal_status, 0 for all others; absent before PostgreSQL 13.", "status"
        )
        self.slot_xmin_age = self._known(
            "slot_xmin_age_transactions", "Age of the slot's catalog_xmin, which limits VACUUM in catalogs."
        )
        self.slot_decoded_bytes = self._known(
            "slot_decoded_bytes", "Bytes of changes that the server has decoded for the slot.", counts=True
        )
        self.slot_spilled_transactions = self._known(
            "slot_spilled_transactions",
            "Transactions that the server has written to its disk while it decoded them.",
            counts=True,
        )
        self.slot_spilled_bytes = self._known(
            "slot_spilled_bytes", "Bytes that the server has written to its disk while it decoded.", counts=True
        )
        self.slot_streamed_bytes = self._known(
            "slot_streamed_bytes",
            "Bytes of transactions that the server has streamed before their commit.",
            counts=True,
        )
        self.slot_sampled = self._known(
            "slot_sampled_timestamp_seconds", "Unix time of the last successful query of the slot."
        )

    def _add_certificates(self) -> None:
        self.certificate_expiry = self._known(
            "tls_certificate_expiry_timestamp_seconds",
            "Unix time at which the certificates in a file expire: the earliest time for a chain, the latest time for "
            "several authorities.",
            "setting",
        )

    def _add_memory(self) -> None:
        self.buffered_bytes = self._known("buffered_bytes", "Encoded bytes on their way to Kafka.")
        self.buffered_limit_bytes = self._gauge(
            "buffered_limit_bytes", "The limit of buffered_bytes: delivery.inflight_max."
        )
        self.waiting_transactions = self._known(
            "waiting_transactions", "Streamed and prepared transactions whose rows wait for the commit."
        )
        self.waiting_bytes = self._known("waiting_bytes", "Bytes of rows that wait for their commit.", "place")
        self.waiting_limit_bytes = self._gauge(
            "waiting_limit_bytes", "The limits of waiting_bytes: buffer.memory_max and buffer.spill_max.", "place"
        )
        self.prepared_transactions = self._known(
            "prepared_transactions", "Prepared transactions that were received and have not ended."
        )
        self.oldest_prepared_seconds = self._known(
            "oldest_prepared_seconds",
            "Age of the oldest prepared transaction with changes, which holds the slot back; 0 if there is none.",
        )

    def _add_snapshots(self) -> None:
        self.snapshot_tables = self._known("snapshot_tables", "Published tables, by the state of their load.", "state")
        self.snapshot_rows = self._known(
            "snapshot_rows", "Rows read so far from tables that are loaded or will be loaded."
        )
        self.snapshot_estimated_rows = self._known(
            "snapshot_estimated_rows",
            "Estimate of snapshot_rows at the end of all loads, from PostgreSQL's statistics.",
        )
        self.snapshot_rounds = self._counter(
            "snapshot_rounds", "Rounds, each of which reads a chunk of rows, by result.", "result"
        )
        for result in ROUND_RESULTS:
            self.snapshot_rounds.labels(result)
        self.snapshot_held_seconds = self._counter(
            "snapshot_held_seconds", "Time in which changes waited for rows to be read."
        )
        self.snapshot_round_seconds = Histogram(
            "pgsluice_snapshot_round_seconds",
            "Time of a round, from the lock of the table to the insertion of its rows into the stream.",
            registry=self.registry,
            buckets=_SECONDS,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"pgsluice_{name}", text, labels, registry=self.registry)

    def count_cut(self, cut: Cut, seconds: float) -> None:
        """Count a cut that was committed, and the ``seconds`` that its commit took."""
        for topic, use in cut.topics.items():
            for op, count in use.counts.items():
                if op == dead_letter.OP:
                    self.dead_letters.inc(count)
                else:
                    self.events.labels(op).inc(count)
                    self.topic_events.add(topic, op, count)
        self.event_bytes.inc(cut.size)
        self.transactions.inc(cut.transactions)
        self.cuts.labels("data" if cut.events else "heartbeat").inc()
        self.cut_seconds.observe(seconds)
        self.delivered = self.delivered.plus(cut, seconds)
        self.span("cut", seconds, {"events": cut.events, "transactions": cut.transactions, "bytes": cut.size})
        if cut.last is not None:
            self.last_commit_ts = cut.last[0].commit_ts

    def count_round(self, seconds: float) -> None:
        """Record the duration of a round that has read its rows."""
        self.snapshot_round_seconds.observe(seconds)
        self.span("snapshot round", seconds, {})

    def count_request(self, result: str, seconds: float) -> None:
        """Record the result and the duration of a request to the schema registry server."""
        self.registry_seconds.labels(result).observe(seconds)
        self.span("registry request", seconds, {"result": result})

    def set_state(self, state: str, states: Iterable[str]) -> None:
        """Show ``state``, which is one of ``states``, as the state of the process."""
        for one in states:
            self.state.labels(one).set(one == state)

    def _known(self, name: str, text: str, label: str | None = None, *, counts: bool = False) -> Known:
        found = Known(f"pgsluice_{name}", text, label, counts=counts)
        self.registry.register(found)
        return found

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"pgsluice_{name}", text, labels, registry=self.registry)
