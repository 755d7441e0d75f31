"""Tests the runbook's advice about the slot, the checkpoint and the topics."""

import json
from collections.abc import Callable, Mapping

import pytest

from pgsluice.cut import CUT_MAX
from tests.support.kafka import commit, create_topic, delete_records, delete_topic, read_committed
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.runbook import Scenario, Scene, Stage

pytestmark = pytest.mark.usefixtures("restored_logging")


def replace_checkpoints(scene: Scene, which: Callable[[list[bytes]], bytes]) -> None:
    """Leave only one record in the checkpoint topic, as if the others had been lost."""
    topic = scene.topic("checkpoint")
    found = [one.value() for one in read_committed(scene.pipeline.kafka, topic)]
    kept = which([one for one in found if one is not None])
    delete_topic(scene.pipeline.kafka, topic)
    create_topic(scene.pipeline.kafka, topic, cleanup_policy="compact")
    write_checkpoint(scene, kept)


def write_checkpoint(scene: Scene, value: bytes) -> None:
    """Write a checkpoint with the pipeline's key, as another program might."""
    commit(scene.pipeline.kafka, scene.topic("checkpoint"), value, key=scene.daemon.name.encode())


def last_checkpoint(scene: Scene) -> Mapping[str, object]:
    value = read_committed(scene.pipeline.kafka, scene.topic("checkpoint"))[-1].value()
    assert value is not None
    found: dict[str, object] = json.loads(value)
    return found


def drop_slot(scene: Scene) -> None:
    assert scene.command("slot", "drop") == 0


def create_slot(scene: Scene, plugin: str = "pgoutput") -> None:
    """Create the slot without pgsluice, as another program might."""
    scene.execute(f"SELECT pg_create_logical_replication_slot('{scene.pipeline.slot}', '{plugin}')")


def lose_checkpoints_and_slot(scene: Scene) -> None:
    """Replace the slot, and leave only the first checkpoint in Kafka, which announced the former slot."""
    with scene.stopped():
        replace_checkpoints(scene, lambda found: found[0])
        drop_slot(scene)
        scene.pipeline.write()
        create_slot(scene)


def lose_last_checkpoints(scene: Scene) -> None:
    scene.deliver()
    scene.deliver()
    with scene.stopped():
        replace_checkpoints(scene, lambda found: found[-4])


def write_former_checkpoint(scene: Scene) -> None:
    with scene.stopped():
        write_checkpoint(scene, read_committed(scene.pipeline.kafka, scene.topic("checkpoint"))[-2].value() or b"")


def write_enormous_numbers(scene: Scene) -> None:
    """Write a checkpoint with a very large cut number.

    First delete all cut records, because they would contradict this checkpoint.
    """
    with scene.stopped():
        delete_records(scene.pipeline.kafka, scene.topic("transactions"))
        write_checkpoint(scene, json.dumps({**last_checkpoint(scene), "cut": CUT_MAX}).encode())


def write_no_checkpoint(scene: Scene) -> None:
    with scene.stopped():
        write_checkpoint(scene, b"no checkpoint")


def choose_another_prefix(scene: Scene) -> None:
    """Choose a prefix whose topics are still empty, and load the tables into them."""
    scene.daemon.settings["kafka"]["topic_prefix"] = f"{scene.daemon.name}-new"
    scene.adopt_and_load()


def change_slot(scene: Scene) -> None:
    with scene.stopped():
        scene.daemon.settings["postgres"]["slot"] = f"{scene.pipeline.slot}_2"


def set_slot_back(scene: Scene) -> None:
    del scene.daemon.settings["postgres"]["slot"]
    scene.daemon.start()


def advance_slot(scene: Scene) -> None:
    with scene.stopped():
        scene.pipeline.write()
        scene.execute(f"SELECT pg_replication_slot_advance('{scene.pipeline.slot}', pg_current_wal_lsn())")


def drop_slot_while_stopped(scene: Scene) -> None:
    with scene.stopped():
        drop_slot(scene)
        scene.pipeline.write()


def forbid_creation(scene: Scene) -> None:
    """Set create_slot to false, and choose a new prefix, because create_slot matters only before the first delivery."""
    with scene.stopped():
        drop_slot(scene)
        scene.daemon.settings["postgres"]["create_slot"] = False
        scene.daemon.settings["kafka"]["topic_prefix"] = f"{scene.daemon.name}-new"


def create_the_slot(scene: Scene) -> None:
    assert scene.command("slot", "create") == 0
    scene.adopt_and_load()


SCENARIOS = (
    Scenario(
        "Cut … was delivered, but the checkpoint that belongs to it is lost, and the slot is a new one",
        65,
        lose_checkpoints_and_slot,
        Scene.adopt_and_load,
    ),
    Scenario(
        "Cut … is recorded as delivered, but the last checkpoint belongs to cut …",
        65,
        lose_last_checkpoints,
        Scene.adopt,
    ),
    Scenario(
        "The last checkpoint is that of cut … but the cut records say that …", 65, write_former_checkpoint, Scene.adopt
    ),
    Scenario("The checkpoint was written for slot …, but postgres.slot is …", 65, change_slot, set_slot_back),
    Scenario(
        "Slot … is at …, but only changes before … are in Kafka",
        65,
        advance_slot,
        Scene.adopt_and_load,
        also=("a new history begins",),
    ),
    Scenario(
        "Slot … does not exist on this server, but changes before … were delivered from it",
        65,
        drop_slot_while_stopped,
        Scene.adopt_and_load,
    ),
    Scenario(
        "The topics in Kafka have epoch … and cut …, but pgsluice never assigns such high numbers",
        65,
        write_enormous_numbers,
        choose_another_prefix,
    ),
    Scenario("… is not one that this version of pgsluice can read", 65, write_no_checkpoint, choose_another_prefix),
    Scenario("Slot … does not exist and postgres.create_slot is false", 78, forbid_creation, create_the_slot),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.message)
def test_the_advice_helps(scenario: Scenario, stage: Stage) -> None:
    stage.play(scenario)
