"""A function that creates topics for tests that write topics themselves, and a registry for their schemas."""

from collections.abc import Collection
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient, NewTopic

from pgsluice_spark import SchemaVersion
from sandbox.kafka import Kafka
from tests.spark.events import Json, versions


@dataclass
class Registered:
    """A registry that has the schemas of a test, by subject and id."""

    schemas: dict[str, dict[int, Json]]

    def versions(self, subjects: Collection[str]) -> list[SchemaVersion]:
        return [version for name in subjects for version in versions(name, self.schemas.get(name, {}))]


def create(kafka: Kafka, topic: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([topic])[topic.topic].result()
