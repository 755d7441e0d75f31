"""Print the events of one pipeline as they arrive: the consumer of ``deploy/compose.yaml``.

    events.py BOOTSTRAP_SERVERS REGISTRY_URL TOPIC_PREFIX

This program needs confluent-kafka with its extras avro and schemaregistry, which the image of pgsluice contains.
"""

import re
import sys
from uuid import uuid4

from confluent_kafka import Consumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

DISCOVERY_MS = 1000
"""The interval at which the consumer looks for new topics. A table's topic is created with the table's first row."""


def main(bootstrap_servers: str, registry_url: str, prefix: str) -> None:
    """Print all events, beginning with the oldest, until interrupted."""
    decode = AvroDeserializer(SchemaRegistryClient({"url": registry_url}))
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"first-look-{uuid4()}",  # a new group, so this consumer gets all events
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "topic.metadata.refresh.interval.ms": DISCOVERY_MS,
        }
    )
    # The topics of tables are named prefix.schema.table. pgsluice's own topics, named prefix.name, are left out.
    consumer.subscribe([rf"^{re.escape(prefix)}\.[^.]+\..+"])
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise SystemExit(str(message.error()))
        event = decode(message.value(), SerializationContext(message.topic(), MessageField.VALUE))
        print(message.topic(), event["op"], event["before"], "->", event["after"], flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
