"""Tests topics that other programs change while the daemon is stopped or running.

The daemon must report each change, and can be configured to accept it.
"""

from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.support.kafka import add_partitions, delete_topic, end_of, read_committed
from tests.support.weather import SETTINGS, Pipeline, Start, fails

FULL_CUT_PATIENCE_S = 120.0
"""How long to wait for the next full cut, which is written about once a minute. Without traffic, only full cuts compare
the topics with their known state."""


def topic_of(pipeline: Pipeline) -> str:
    return f"{pipeline.daemon.name}.public.numbers"


def cuts(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return all cut records so far."""
    topic = f"{pipeline.daemon.name}.transactions"
    context = SerializationContext(topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": pipeline.daemon.url}) as registry:
        deserialize = AvroDeserializer(registry)
        return [deserialize(message.value(), context) for message in read_committed(pipeline.kafka, topic)]


def accept_changes(pipeline: Pipeline, *, accept: bool) -> None:
    topics = SETTINGS["kafka"]["topics"]
    pipeline.daemon.settings["kafka"] = {"topics": {**topics, "changed": "accept" if accept else "stop"}}


class TestWhileItIsDown:
    @pytest.mark.long
    def test_a_deleted_topic_stops_the_daemon_until_this_is_accepted(self, start: Start) -> None:
        """Check that the topic is created again, because its table still exists."""
        pipeline = start()
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        assert pipeline.daemon.stop() == 0
        delete_topic(pipeline.kafka, topic_of(pipeline))
        for _ in range(2):
            code, log = fails(pipeline)
            assert (code, f"Topic {topic_of(pipeline)} was deleted. Consumers miss" in log) == (65, True), log
        accept_changes(pipeline, accept=True)
        pipeline.daemon.start()
        pipeline.write(5)
        assert pipeline.read(5) == [6, 7, 8, 9, 10]
        pipeline.wait_until_confirmed()
        assert pipeline.daemon.log_text().count("a topic has changed, which is accepted") == 1
        accept_changes(pipeline, accept=False)
        pipeline.daemon.restart()
        pipeline.write(5)
        assert pipeline.read(10) == list(range(6, 16))

    @pytest.mark.long
    def test_a_topic_deleted_with_its_table_has_to_be_accepted_once(self, start: Start) -> None:
        """Check that the loss has to be accepted only once, because the next full cut does not list the topic."""
        pipeline = start()
        with pipeline.database.connect() as connection:
            connection.execute("CREATE TABLE others (n int PRIMARY KEY)")
            connection.execute("INSERT INTO others VALUES (1)")
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        others = f"{pipeline.daemon.name}.public.others"
        (listed,) = [topic for cut in cuts(pipeline) for topic in cut["topics"] if topic["topic"] == others]
        assert listed["topic_id"]
        assert pipeline.daemon.stop() == 0
        with pipeline.database.connect() as connection:
            connection.execute("DROP TABLE others")
        delete_topic(pipeline.kafka, others)
        accept_changes(pipeline, accept=True)
        pipeline.daemon.start()
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        *_, full = [cut for cut in cuts(pipeline) if cut["full"]]
        assert [topic["topic"] for topic in full["topics"]] == [topic_of(pipeline)]
        accept_changes(pipeline, accept=False)
        pipeline.daemon.restart()
        pipeline.assert_complete()

    def test_deleted_cut_records_stop_the_daemon(self, start: Start) -> None:
        pipeline = start()
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        assert pipeline.daemon.stop() == 0
        delete_topic(pipeline.kafka, f"{pipeline.daemon.name}.transactions")
        code, log = fails(pipeline)
        assert (code, f"Topic {pipeline.daemon.name}.transactions is empty, but cut " in log) == (65, True), log
        accept_changes(pipeline, accept=True)
        pipeline.daemon.start()
        pipeline.write(5)
        pipeline.assert_complete()
        assert topic_of(pipeline) in {
            topic["topic"] for cut in cuts(pipeline) for topic in cut["topics"] if cut["full"]
        }

    def test_a_deleted_checkpoint_needs_a_new_epoch(self, start: Start) -> None:
        """Check that the epoch increases, so that later positions are greater than those that readers have seen."""
        pipeline = start()
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        for epoch in (2, 3):
            assert pipeline.daemon.stop() == 0
            delete_topic(pipeline.kafka, f"{pipeline.daemon.name}.checkpoint")
            code, log = fails(pipeline)
            assert (code, "there is no checkpoint for it in Kafka" in log) == (65, True), log
            pipeline.daemon.start("--adopt-slot")
            pipeline.wait_for(epoch=epoch)
            pipeline.write(5)
            pipeline.wait_until_confirmed()
        assert [change["epoch"] for change in pipeline.changes(15)] == [1] * 5 + [2] * 5 + [3] * 5
        numbers = [cut["cut"] for cut in cuts(pipeline)]
        assert numbers == list(range(1, len(numbers) + 1))

    def test_deleted_schemas_stop_the_daemon(self, start: Start) -> None:
        """Check that pgsluice stops, because without the schemas, consumers cannot read the existing records."""
        pipeline = start()
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        assert pipeline.daemon.stop() == 0
        delete_topic(pipeline.kafka, f"{pipeline.daemon.name}.schemas")
        for _ in range(2):
            code, log = fails(pipeline)
            assert (code, f"The schemas of topic {topic_of(pipeline)} are not registered any more" in log) == (65, True)
        accept_changes(pipeline, accept=True)
        pipeline.daemon.start()
        pipeline.write(5)
        pipeline.assert_complete()


class TestWhileItRuns:
    def test_a_topic_deleted_while_in_use_stops_the_daemon(self, start: Start) -> None:
        """Check that pgsluice does not wait for the Kafka transaction's timeout, which is a quarter of an hour."""
        pipeline = start()
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        delete_topic(pipeline.kafka, topic_of(pipeline))
        pipeline.write(5)
        assert pipeline.daemon.wait() == 65
        assert f"Topic {topic_of(pipeline)} was deleted. Consumers miss" in pipeline.daemon.log_text()

    @pytest.mark.long
    def test_added_partitions_are_noticed_without_traffic(self, start: Start) -> None:
        """Check that the change is noticed even without traffic, and that everything is delivered."""
        pipeline = start()
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        add_partitions(pipeline.kafka, topic_of(pipeline), 4)
        pipeline.write(5)
        pipeline.assert_complete()
        assert pipeline.daemon.wait(FULL_CUT_PATIENCE_S) == 65
        said = f"Topic {topic_of(pipeline)} has 4 partitions now instead of 1, so keys move"
        assert said in pipeline.daemon.log_text()
        accept_changes(pipeline, accept=True)
        pipeline.daemon.start()
        pipeline.write(50)
        pipeline.wait_until_confirmed()
        assert all(end_of(pipeline.kafka, topic_of(pipeline), partition) for partition in range(4))
