"""Tests the runbook's advice about topics that other programs have changed."""

from collections.abc import Callable

import pytest
from confluent_kafka.admin import ConfigResource

from tests.support.kafka import commit, configure, create_topic, delete_topic
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.runbook import Scenario, Scene, Stage

pytestmark = pytest.mark.usefixtures("restored_logging")


def delete_the_topic(scene: Scene) -> None:
    with scene.stopped():
        delete_topic(scene.pipeline.kafka, scene.topic("public.numbers"))


def create_the_topic_again(scene: Scene) -> None:
    with scene.stopped():
        delete_topic(scene.pipeline.kafka, scene.topic("public.numbers"))
        create_topic(scene.pipeline.kafka, scene.topic("public.numbers"))


def accept_and_load(scene: Scene) -> None:
    """Follow the runbook's advice. At the end, restart the daemon without the setting that accepts changed topics."""
    scene.accept()
    scene.load()
    scene.daemon.restart()


def write_no_cut_record(scene: Scene) -> None:
    with scene.stopped():
        commit(scene.pipeline.kafka, scene.topic("transactions"), b"no cut record")


def delete_the_checkpoint(scene: Scene) -> None:
    """Delete the checkpoint topic and write a row. The next session finds that the topic is missing."""
    delete_topic(scene.pipeline.kafka, scene.topic("checkpoint"))
    scene.pipeline.write()


def write_to_the_topic(scene: Scene) -> None:
    """Write a tombstone, as another program might. Consumers ignore it."""
    commit(scene.pipeline.kafka, scene.topic("public.numbers"), None)
    scene.pipeline.write()


def misuse_service_topics(scene: Scene) -> None:
    """Create topics with the names that pgsluice uses, before the first start with this prefix."""
    with scene.stopped():
        scene.daemon.settings["kafka"]["topic_prefix"] = f"{scene.daemon.name}-new"
        create_topic(scene.pipeline.kafka, scene.topic("checkpoint"), 2)
        create_topic(scene.pipeline.kafka, scene.topic("schemas"), 2)


def policy(scene: Scene, name: str, value: str) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, scene.topic(name))
    configure(scene.pipeline.kafka, resource, "cleanup.policy", value)


def repair_service_topics(scene: Scene) -> None:
    """Do what pgsluice's error messages say, one after another. Each topic has two faults."""
    for name in ("schemas", "checkpoint"):
        delete_topic(scene.pipeline.kafka, scene.topic(name))
        create_topic(scene.pipeline.kafka, scene.topic(name), cleanup_policy="delete")
        scene.start_in_vain()
        policy(scene, name, "compact")
        scene.start_in_vain()
    scene.adopt_and_load()


def nothing(_: Scene) -> None:
    """Do nothing. This is the runbook's advice."""


def then(*steps: Callable[[Scene], object]) -> Callable[[Scene], None]:
    def follow(scene: Scene) -> None:
        for step in steps:
            step(scene)

    return follow


SCENARIOS = (
    Scenario("Topic … was deleted. Consumers miss", 65, delete_the_topic, accept_and_load),
    Scenario("Topic … was deleted and created again", 65, create_the_topic_again, accept_and_load),
    Scenario(
        "Topic …, which says how far changes were delivered, was deleted or changed",
        65,
        delete_the_checkpoint,
        Scene.adopt,
        also=("Slot … exists, but there is no checkpoint for it in Kafka",),
    ),
    Scenario("Partition … of topic … ends at offset … instead of …", None, write_to_the_topic, nothing),
    Scenario("Topic … has a record that is not a cut record", 65, write_no_cut_record, Scene.accept),
    Scenario(
        "Topic … has … partitions, but a schema topic has one",
        78,
        misuse_service_topics,
        repair_service_topics,
        also=(
            "Topic … has … partitions, but it is one of pgsluice's own topics, which have one",
            "Topic … has cleanup.policy=…, so Kafka would delete records that a restart needs",
            "Topic … has cleanup.policy=…, so Kafka would delete schemas that messages still need",
        ),
    ),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.message)
def test_the_advice_helps(scenario: Scenario, stage: Stage) -> None:
    stage.play(scenario)
