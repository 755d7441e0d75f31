"""Properties of librdkafka that users may not set, because exactly-once delivery depends on them.

The settings model uses this module for ``kafka.client``. Every property that the module does not refuse is passed to
librdkafka, which checks its name. The module also says which values may be printed.

https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

_ALL_REPLICAS = "changes are confirmed to PostgreSQL only after all in-sync replicas have them"
_IDEMPOTENCE = "retries must neither double nor reorder records"
_QUEUE = "the producer's queue is sized from delivery.inflight_max: set that instead"
_READER = "pgsluice reads its own topics by partition and offset, without a consumer group"
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
    "enable.gapless.guarantee": "one failed record aborts the whole transaction anyway",
    "delivery.report.only.error": "pgsluice decides which deliveries are reported",
    "transactional.id": "it fences former owners, and is made from the settings kafka.topic_prefix and name",
    "transaction.timeout.ms": _TIMEOUT,
    "message.timeout.ms": _TIMEOUT,
    "delivery.timeout.ms": _TIMEOUT,
    "partitioner": "each key has to stay in its partition, so it is always murmur2, as in the Java clients",
    "message.max.bytes": "only the brokers' message.max.bytes and the topics' max.message.bytes limit a record's size",
    "queue.buffering.max.messages": _QUEUE,
    "queue.buffering.max.kbytes": _QUEUE,
    "queue.buffering.max.ms": "write it as linger.ms",
    "compression.codec": "write it as compression.type",
    "allow.auto.create.topics": "topics are created as kafka.topics says, before their first record",
    "bootstrap.servers": _SERVERS,
    "metadata.broker.list": _SERVERS,
    "client.id": "clients are named after the pipeline: change its name (`name`) instead",
    "group.id": _READER,
    "group.instance.id": _READER,
    "enable.auto.commit": _READER,
    "enable.auto.offset.store": _READER,
    "auto.offset.reset": _READER,
    "enable.partition.eof": _READER,
    "fetch.wait.max.ms": _READER,
    "isolation.level": "pgsluice reads checkpoints in both ways, with read_committed and with read_uncommitted",
}
"""For each property, why it cannot be set, or what to set instead."""


_SHOWN = frozenset(
    """
    api.version.fallback.ms api.version.request api.version.request.timeout.ms batch.num.messages batch.size
    broker.address.family broker.address.ttl broker.version.fallback check.crcs client.dns.lookup client.rack
    compression.level compression.type connections.max.idle.ms debug enable.metrics.push
    enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification fetch.error.backoff.ms fetch.max.bytes
    fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms heartbeat.interval.ms https.ca.location
    https.ca.pem linger.ms log.connection.close log.thread.name log_level max.partition.fetch.bytes
    max.poll.interval.ms message.copy.max.bytes metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy plugin.library.paths queue.buffering.backpressure.threshold
    queued.max.messages.kbytes queued.min.messages receive.message.max.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism
    sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.id sasl.oauthbearer.grant.type
    sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.username security.protocol
    session.timeout.ms socket.blocking.max.ms socket.connection.setup.timeout.ms socket.keepalive.enable
    socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
    ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.cipher.suites
    ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location
    ssl.key.location ssl.keystore.location ssl.providers ssl.sigalgs.list statistics.interval.ms
    sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    """.split()  # noqa: SIM905 - a list would take a hundred lines
)
"""Properties whose values are not secret. All others are treated as secret, because even the value of a misspelt
property may be a password."""


def may_be_shown(name: str) -> bool:
    """Return whether the value of property ``name`` may be printed. Secrets in URLs are hidden in any case."""
    return name in _SHOWN


def with_dots(name: str) -> str:
    """Return the property that ``name`` means.

    ``name`` may have underscores in place of dots, because names of environment variables cannot contain dots. Only a
    few properties really have an underscore in their name.
    """
    return name if name == "log_level" or _takes_function(name) else name.replace("_", ".")


def _takes_function(name: str) -> bool:
    return name.endswith("_cb") or name in ("logger", "on_delivery")


def refusal(name: str) -> str:
    """Return why property ``name`` cannot be set, or an empty string if it can."""
    if _takes_function(name):
        return "cannot be set: it takes a function, which settings cannot hold"
    return f"cannot be set: {REFUSED[name]}" if name in REFUSED else ""
