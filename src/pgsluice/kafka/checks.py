"""The checks of ``pgsluice check`` for Kafka: the connection, the rights and the topics. No check changes anything."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from confluent_kafka.admin import AclOperation

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, TableRefused
from pgsluice.finding import Finding, Verdict
from pgsluice.kafka.options import Mode, SinkOptions
from pgsluice.kafka.topic_spec import TopicSpec, check_compacted
from pgsluice.kafka.topics import Topics
from pgsluice.kafka.transactional import REFUSED_TIMEOUT_MS, try_transactional_id

_NEEDED = (AclOperation.READ, AclOperation.WRITE)
"""The rights that pgsluice needs on each of its service topics."""

_TRANSACTIONAL_ID = "kafka transactional id"

_GRANT = "Grant what is missing to the Kafka user, with kafka-acls. SECURITY.md lists all rights that pgsluice needs."

_TO_CREATE = "Allow CREATE on the prefix, correct [kafka.topics], or create every topic by hand."

_MODES: Mapping[Mode, str] = {
    "exactly_once": "exactly once, by Kafka transactions",
    "at_least_once": "at least once, without transactions",
}


def check(options: SinkOptions, *, has_schemas: bool = True) -> list[Finding]:
    """Return the findings, good and bad. This takes some seconds if Kafka does not answer.

    ``has_schemas``: whether the pipeline keeps its schemas in a topic.
    """
    try:
        topics = Topics(options.producer.client, threading.Event())
        with closing(topics):
            return _findings(topics, options, has_schemas=has_schemas)
    except PgsluiceError as error:
        remedy = "Check kafka.bootstrap_servers, kafka.client and the password, and that a broker listens there."
        if isinstance(error, ConfigError):
            remedy = "Correct the setting; no broker was contacted."
        return [Finding("kafka reachable", Verdict.FAIL, str(error), remedy, error.exit_code)]


def refused_tables(options: SinkOptions, specs: Sequence[TopicSpec]) -> list[str]:
    """Return the reasons why tables with these topics could not be published to this cluster. This blocks."""
    try:
        with closing(Topics(options.producer.client, threading.Event())) as topics:
            return [*_full(options, specs), *_unsuitable(topics, specs), *_refused(topics, specs)]
    except PgsluiceError:
        return []  # the other findings say why Kafka does not answer


def _full(options: SinkOptions, specs: Sequence[TopicSpec]) -> Iterator[str]:
    count, limit = len({spec.name for spec in specs} | options.reserved_topics), options.topics_max
    if count > limit:
        yield (
            f"The published tables need {count} topics, but only {limit} are allowed (kafka.topics.max). A table gets "
            "its topic when its first row arrives, so the last tables get none."
        )


def _unsuitable(topics: Topics, specs: Sequence[TopicSpec]) -> Iterator[str]:
    found = topics.settings({spec.name for spec in specs})
    for spec in specs:
        try:
            topics.check_owner(spec.name)
            if spec.name in found:
                topics.check(spec, found[spec.name])
        except TableRefused as error:
            yield str(error)
        except ConfigError:
            continue  # the topic takes only small batches, which _batches reports


def _refused(topics: Topics, specs: Sequence[TopicSpec]) -> Iterator[str]:
    """Yield why Kafka would not create missing topics. Kafka is asked about one of those with the same settings."""
    known = topics.describe({spec.name for spec in specs})
    missing = {
        (spec.partitions, spec.replication_factor, tuple(spec.config.items())): spec
        for spec in specs
        if spec.name not in known
    }
    for spec in missing.values():
        error = topics.refusal_to_create(spec)
        if isinstance(error, (PermissionDenied, ConfigError)):
            yield str(error)


def _findings(topics: Topics, options: SinkOptions, *, has_schemas: bool) -> list[Finding]:
    brokers = topics.brokers()
    reachable = Finding("kafka reachable", Verdict.OK, f"{len(brokers)} broker(s)")
    mode = Finding("delivery mode", Verdict.OK, _MODES[options.mode])
    looks = _looks(topics, options, has_schemas=has_schemas)
    return [reachable, mode, *(_guarded(name, look) for name, look in looks)]


def _looks(topics: Topics, options: SinkOptions, *, has_schemas: bool) -> Iterator[tuple[str, Callable[[], Finding]]]:
    if options.mode == "exactly_once":
        yield "kafka transaction timeout", lambda: _transaction_timeout(topics, options)
        yield _TRANSACTIONAL_ID, lambda: _transactional_id(topics, options)
    prefix = options.transactions_topic.name.removesuffix("transactions")
    schemas = TopicSpec(f"{prefix}schemas", 1, config={"cleanup.policy": "compact"}) if has_schemas else None
    others = [one for one in (schemas, options.snapshots_topic, options.commands_topic) if one is not None]
    for spec in (options.transactions_topic, options.checkpoint_topic, *others):
        yield f"topic {spec.name}", partial(_service_topic, topics, spec)
    yield "kafka may create topics", lambda: _creation(topics, options)
    yield "size of batches", lambda: _batches(topics, options)


def _guarded(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except PgsluiceError as error:
        return Finding(name, Verdict.FAIL, str(error), "See the reason that Kafka gave.", error.exit_code)


def _transaction_timeout(topics: Topics, options: SinkOptions) -> Finding:
    name = "kafka transaction timeout"
    allowed_ms = topics.max_transaction_timeout_ms()
    wanted = options.producer.timeout_s
    if allowed_ms is None:
        remedy = (
            "Allow DESCRIBE_CONFIGS on the cluster, or make sure that transaction.max.timeout.ms is at least "
            "delivery.transaction_timeout."
        )
        return Finding(name, Verdict.WARN, "transaction.max.timeout.ms cannot be read", remedy)
    if allowed_ms < wanted * 1000:
        remedy = (
            "Raise transaction.max.timeout.ms on the brokers if you expect transactions that take longer than this."
        )
        return Finding(name, Verdict.OK, f"{wanted:g} s wanted, {allowed_ms / 1000:g} s allowed and used", remedy)
    return Finding(name, Verdict.OK, f"{wanted:g} s")


def _transactional_id(topics: Topics, options: SinkOptions) -> Finding:
    """Check whether we may use the transactional id, without fencing the producer that uses it."""
    name = options.producer.transactional_id
    if not topics.refuse_transaction_timeout_ms(REFUSED_TIMEOUT_MS):
        detail = f"{name}; only `pgsluice run` will show whether it may be used"
        return Finding(_TRANSACTIONAL_ID, Verdict.OK, detail)
    try:
        try_transactional_id(options.producer)
    except PermissionDenied as error:
        detail = f"the right to Write to {name} is missing"
        return Finding(_TRANSACTIONAL_ID, Verdict.FAIL, detail, _GRANT, error.exit_code)
    return Finding(_TRANSACTIONAL_ID, Verdict.OK, name)


def _service_topic(topics: Topics, spec: TopicSpec) -> Finding:
    topic = spec.name
    name, state = f"topic {topic}", topics.describe([topic]).get(topic)
    if state is None:
        error = topics.refusal_to_create(spec)
        if error is None:
            return Finding(name, Verdict.OK, "will be created")
        return Finding(name, Verdict.FAIL, str(error), _TO_CREATE, error.exit_code)
    if state.partitions != 1:
        remedy = (
            "It is one of pgsluice's own topics, which have one partition. Choose another kafka.topic_prefix if "
            "somebody else uses the topic. Otherwise delete it."
        )
        return Finding(name, Verdict.FAIL, f"has {state.partitions} partitions", remedy)
    if not state.has_leaders:
        return Finding(
            name, Verdict.FAIL, "its partition has no leader", "See why the brokers that hold the partition are down."
        )
    if spec.config.get("cleanup.policy") == "compact":
        check_compacted(topic, *topics.settings_of(topic))
    return _rights(topics, topic) or Finding(name, Verdict.OK, "exists")


def _rights(topics: Topics, topic: str) -> Finding | None:
    """Return a finding if a right is missing. Return None if none is missing, or if brokers do not report rights."""
    found = topics.rights_to(topic)
    missing = [] if found is None else [right for right in _NEEDED if right not in found]
    if not missing:
        return None
    names = " and ".join(right.name.capitalize() for right in missing)
    detail = f"the right to {names} is missing"
    return Finding(f"topic {topic}", Verdict.FAIL, detail, _GRANT, PermissionDenied.exit_code)


def _creation(topics: Topics, options: SinkOptions) -> Finding:
    name = "kafka may create topics"
    spec = options.transactions_topic
    error = topics.refusal_to_create(spec)
    if error is None:  # the topic may exist, and then Kafka has not looked at the settings
        another = topics.refusal_to_create(replace(spec, name=f"{spec.name}-check"))
        error = None if isinstance(another, PermissionDenied) else another
    if error is None:
        return Finding(name, Verdict.OK, "as configured")
    return Finding(name, Verdict.WARN, str(error), _TO_CREATE)


def _batches(topics: Topics, options: SinkOptions) -> Finding:
    """Check whether Kafka could refuse many small rows in one batch, although it would accept each row alone."""
    name, size = "size of batches", topics.batch_bytes
    small = topics.small_topics(options.transactions_topic.name.removesuffix("transactions"))
    if not small:
        return Finding(name, Verdict.OK, f"{size} bytes (batch.size)")
    topic, limit = next(iter(small.items()))
    others = f"; so are the limits of {len(small) - 1} more topics" if len(small) > 1 else ""
    remedy = f"Raise max.message.bytes, or set batch.size under kafka.client to {min(small.values())} or less."
    detail = (
        f"topic {topic} accepts batches of up to {limit} bytes (max.message.bytes), which is less than the {size} "
        f"bytes that a batch may have (batch.size){others}"
    )
    return Finding(name, Verdict.FAIL, detail, remedy)
