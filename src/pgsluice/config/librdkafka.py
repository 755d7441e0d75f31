"""Properties of librdkafka that are not the user's to set: the promise of delivery rests on them.

Used by the settings model for ``kafka.client``. Any other is handed to the library, which knows its names.

https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

_ALL_REPLICAS = "nothing is confirmed to PostgreSQL before all in-sync replicas have it"
_IDEMPOTENCE = "retries must neither double nor reorder records"
_QUEUE = "the producer's queue is sized from delivery.inflight_max: set that instead"
_READER = "pgsluice reads its own topics by partition and offset, in no group"
_TIMEOUT = "a Kafka transaction and its records share one deadline: set delivery.transaction_timeout instead"
_SERVERS = "set kafka.bootstrap_servers instead"

REFUSED = {
    "acks": _ALL_REPLICAS,
    "request.required.acks": _ALL_REPLICAS,
    "enable.idempotence": _IDEMPOTENCE,
    "max.in.flight": _IDEMPOTENCE,
    "max.in.flight.requests.per.connection": _IDEMPOTENCE,
    "retries": _IDEMPOTENCE,
    "message.send.max.retries": _IDEMPOTENCE,
    "enable.gapless.guarantee": "a record that fails already aborts its whole transaction",
    "delivery.report.only.error": "the delivery of every record is accounted for",
    "transactional.id": "it fences former owners, and follows from kafka.topic_prefix and name",
    "transaction.timeout.ms": _TIMEOUT,
    "message.timeout.ms": _TIMEOUT,
    "delivery.timeout.ms": _TIMEOUT,
    "partitioner": "keys keep their partitions: it is murmur2, as in the Java clients",
    "message.max.bytes": "records may be as large as the topics and the brokers take: set max.message.bytes there",
    "queue.buffering.max.messages": _QUEUE,
    "queue.buffering.max.kbytes": _QUEUE,
    "queue.buffering.max.ms": "write it as linger.ms",
    "compression.codec": "write it as compression.type",
    "allow.auto.create.topics": "topics are created as kafka.topics says, before their first record",
    "bootstrap.servers": _SERVERS,
    "metadata.broker.list": _SERVERS,
    "client.id": "clients are named after the pipeline: set name instead",
    "group.id": _READER,
    "group.instance.id": _READER,
    "enable.auto.commit": _READER,
    "enable.auto.offset.store": _READER,
    "auto.offset.reset": _READER,
    "enable.partition.eof": _READER,
    "fetch.wait.max.ms": _READER,
    "isolation.level": "checkpoints are read both committed and uncommitted, on purpose",
}
"""Property → why it cannot be set, or what to set instead."""


def refusal(name: str) -> str:
    """Return why property ``name`` cannot be set, nothing when it can."""
    # "_cb" as it is, ".cb" as an environment variable would say it
    if name.endswith(("_cb", ".cb")) or name in ("logger", "on_delivery"):
        return "cannot be set: it takes a function, which settings cannot hold"
    return f"cannot be set: {REFUSED[name]}" if name in REFUSED else ""
