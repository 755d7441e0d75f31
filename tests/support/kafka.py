"""Functions for topics, transactions and records. They use Kafka's client library, and not pgsluice's own clients."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from pgsluice.kafka.client import ClientOptions
from sandbox.kafka import Kafka

TIMEOUT_S = 180

LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="right"'
USERS = ("reader", "pgsluice", "registry", "reports", "operator")
CREDENTIALS = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "admin"}


KEY = b"shop"
"""The key of the records that tests write. The checkpoints of pipeline shop have the same key."""


class SecuredKafka(Kafka):
    """A broker with passwords and access control lists. At first, only "admin" has rights."""

    def __init__(self) -> None:
        users = " ".join(f'user_{name}="right"' for name in ("admin", *USERS))
        super().__init__(
            settings={
                "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.plaintext.plain.sasl.jaas.config": f"{LOGIN} {users};",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS;User:admin",
            }
        )

    def properties(self, user: str = "admin", password: str = "right") -> dict[str, str]:  # noqa: S107 - a password for tests
        return {
            "bootstrap.servers": self.bootstrap_servers,
            **CREDENTIALS,
            "sasl.username": user,
            "sasl.password": password,
        }

    def _is_complete(self) -> bool:
        try:
            return bool(AdminClient({**self.properties(), "log_level": 0}).list_topics(timeout=5).brokers)
        except KafkaException:
            return False


def properties(kafka: Kafka) -> dict[str, str]:
    """Return the properties of a client that connects to a broker as a user with all rights."""
    return kafka.properties() if isinstance(kafka, SecuredKafka) else {"bootstrap.servers": kafka.bootstrap_servers}


def client_options(kafka: Kafka) -> ClientOptions:
    """Return the options with which pgsluice's own clients connect to a broker."""
    return ClientOptions(properties(kafka), "pgsluice-test")


def admin(kafka: Kafka) -> AdminClient:
    """Return a client for requests about topics. The caller must keep it until its requests have been answered."""
    return AdminClient(properties(kafka))


def create_topic(kafka: Kafka, topic: str, partitions: int = 1, **config: str) -> None:
    """Create a topic, and wait until the broker reports it. In names of settings, underscores stand for dots."""
    named = {name.replace("_", "."): value for name, value in config.items()}
    client, resource = admin(kafka), ConfigResource(ConfigResource.Type.TOPIC, topic)
    client.create_topics([NewTopic(topic, partitions, 1, config=named)])[topic].result(TIMEOUT_S)
    while True:
        try:
            client.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
            client.describe_configs([resource])[resource].result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        else:
            return


def delete_topic(kafka: Kafka, topic: str) -> None:
    """Delete a topic, and wait until it no longer exists."""
    client = admin(kafka)
    client.delete_topics([topic])[topic].result(TIMEOUT_S)
    while topic in client.list_topics(timeout=TIMEOUT_S).topics:
        time.sleep(0.05)


def add_partitions(kafka: Kafka, topic: str, partitions: int) -> None:
    """Increase the number of a topic's partitions to ``partitions``, and wait until the broker reports it."""
    client = admin(kafka)
    client.create_partitions([NewPartitions(topic, partitions)])[topic].result(TIMEOUT_S)
    while len(client.list_topics(timeout=TIMEOUT_S).topics[topic].partitions) < partitions:
        time.sleep(0.05)


def configure(kafka: Kafka, of: ConfigResource, name: str, value: str) -> None:
    """Change a setting while the brokers run."""
    of.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    client = admin(kafka)
    client.incremental_alter_configs([of])[of].result(TIMEOUT_S)


def delete_records(kafka: Kafka, topic: str, partition: int = 0) -> None:
    """Delete all records of a partition, as retention does."""
    client, place = admin(kafka), TopicPartition(topic, partition, OFFSET_END)
    client.delete_records([place])[place].result(TIMEOUT_S)


def grant(kafka: SecuredKafka, topic: str, operation: AclOperation) -> None:
    """Grant the user "reader" the right to ``operation`` on one topic."""
    allow(kafka, "reader", ResourceType.TOPIC, topic, operation)


def allow(
    kafka: SecuredKafka,
    user: str,
    kind: ResourceType,
    name: str,
    *operations: AclOperation,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> None:
    """Grant a user rights to the resource ``name``.

    If ``pattern`` is prefixed, grant the rights to all resources whose names begin with ``name``.
    """
    rights = [
        AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    client = admin(kafka)
    for right in client.create_acls(rights).values():
        right.result(TIMEOUT_S)


@contextmanager
def paused(kafka: Kafka, *nodes: int) -> Iterator[None]:
    """Freeze these brokers, or by default all brokers, until the block ends."""
    kafka.pause(*nodes)
    try:
        yield
    finally:
        kafka.resume(*nodes)


@contextmanager
def transaction(
    kafka: Kafka, topic: str, values: Sequence[bytes | None], name: str | None = None, key: bytes = KEY
) -> Iterator[Producer]:
    """Provide a producer that has written ``values`` in an open transaction. The block must end the transaction."""
    producer = Producer({**properties(kafka), "transactional.id": name or f"other-{topic}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, key, 0)
    assert producer.flush(TIMEOUT_S) == 0
    yield producer


def commit(kafka: Kafka, topic: str, *values: bytes | None, key: bytes = KEY) -> None:
    """Write a committed transaction."""
    with transaction(kafka, topic, values, key=key) as producer:
        producer.commit_transaction(TIMEOUT_S)


def abort(kafka: Kafka, topic: str, *values: bytes | None) -> None:
    """Write a transaction, and abort it."""
    with transaction(kafka, topic, values) as producer:
        producer.abort_transaction(TIMEOUT_S)


def end_of(kafka: Kafka, topic: str, partition: int = 0) -> int:
    """Return the end offset of a partition, including open transactions and markers."""
    client, place, level = admin(kafka), TopicPartition(topic, partition), IsolationLevel.READ_UNCOMMITTED
    found = client.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place].result(TIMEOUT_S)
    return int(found.offset)


def wait_for_end(kafka: Kafka, topic: str, end: int) -> None:
    """Wait until partition 0 has the end offset ``end``. Kafka writes markers shortly after a transaction has ended."""
    while end_of(kafka, topic) < end:
        time.sleep(0.05)


def read_committed(kafka: Kafka, topic: str, partition: int = 0, *, end: int | None = None) -> list[Message]:
    """Return the committed records of a partition before ``end``, or by default before its current end.

    If an open transaction hides some of them, wait until it has ended. Raise TimeoutError if this takes too long.
    """
    wanted, position, found = end_of(kafka, topic, partition) if end is None else end, 0, []
    consumer = Consumer(
        {
            **properties(kafka),
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    deadline = time.monotonic() + TIMEOUT_S
    while position < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} [{partition}] cannot be read beyond {position}, its end is {wanted}")
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                position = message.offset() + 1
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                position = max(position, message.offset())
            else:
                raise KafkaException(message.error())
    consumer.close()
    return [message for message in found if message.offset() < wanted]
