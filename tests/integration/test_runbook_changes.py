"""Tests the runbook's advice about changes that cannot be delivered, and about tables that cannot be published."""

from collections.abc import Callable, Mapping

import pytest
from confluent_kafka.admin import ConfigResource

from tests.support.kafka import configure
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.runbook import Scenario, Scene, Stage

pytestmark = pytest.mark.usefixtures("restored_logging")

NOISE = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) AS i)"
"""An SQL expression for a text of 32 kB that remains large under any compression."""


def limit(scene: Scene, topic: str, setting: str, value: str) -> None:
    """Change a setting of a topic, as ``kafka-configs --alter`` does."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, scene.topic(topic))
    configure(scene.pipeline.kafka, resource, setting, value)


def insert_large(scene: Scene) -> None:
    scene.execute(f"INSERT INTO numbers SELECT max(n) + 1000, {NOISE} FROM numbers")


def start_with(scene: Scene, **settings: Mapping[str, object]) -> None:
    """Start the daemon with changed settings."""
    for section, keys in settings.items():
        scene.daemon.settings[section] = {**scene.daemon.settings.get(section, {}), **keys}
    scene.daemon.start()


def with_settings(**settings: Mapping[str, object]) -> Callable[[Scene], None]:
    return lambda scene: start_with(scene, **settings)


def small_batches(scene: Scene) -> dict[str, object]:
    return {**scene.daemon.settings["kafka"], "client": {"batch.size": "10000"}}


def write_a_large_record(scene: Scene) -> None:
    limit(scene, "public.numbers", "max.message.bytes", "10000")
    with scene.restarted(kafka=small_batches(scene)):
        insert_large(scene)


def lower_the_limit(scene: Scene) -> None:
    with scene.stopped():
        limit(scene, "public.numbers", "max.message.bytes", "10000")
        scene.pipeline.write()


def lower_the_batches(scene: Scene) -> None:
    scene.daemon.settings["kafka"] = small_batches(scene)
    scene.daemon.start()


def raise_the_limit(scene: Scene) -> None:
    limit(scene, "public.numbers", "max.message.bytes", "10485760")
    scene.daemon.start()


def refuse_a_dead_letter(scene: Scene) -> None:
    limit(scene, "public.numbers", "max.message.bytes", "10000")
    delivery = {**scene.daemon.settings["delivery"], "poison": "dead_letter"}
    with scene.restarted(kafka=small_batches(scene), delivery=delivery):
        limit(scene, "dead_letters", "max.message.bytes", "100")
        insert_large(scene)


def raise_the_limit_of_dead_letters(scene: Scene) -> None:
    """Raise the limit of the dead letters' topic, so that a dead letter replaces the row.

    Then raise the limit of the table's topic, and load the row.
    """
    limit(scene, "dead_letters", "max.message.bytes", "1048588")
    scene.daemon.start()
    scene.pipeline.wait_until_confirmed()
    (letter,) = scene.events("dead_letters")
    assert letter["reason"] == "record_too_large"
    scene.daemon.stop_well()
    raise_the_limit(scene)
    scene.load()


def choose_a_wrong_topic_setting(scene: Scene) -> None:
    kafka = scene.daemon.settings["kafka"]
    with scene.restarted(kafka={**kafka, "topics": {**kafka["topics"], "config": {"retention.ms": "soon"}}}):
        scene.execute("CREATE TABLE late (n int PRIMARY KEY)", "INSERT INTO late VALUES (1)")


def correct_the_topic_setting(scene: Scene) -> None:
    del scene.daemon.settings["kafka"]["topics"]["config"]
    scene.daemon.start()
    scene.assert_nothing_is_lost("late")


def keyed(columns: str, key: str, *statements: str) -> Callable[[Scene], None]:
    """Return a function that creates a table with ``key`` as its Kafka key, and writes a value that no key may have."""

    def cause(scene: Scene) -> None:
        tables = {"rules": [{"match": "public.keyed", "keys": [key]}]}
        with scene.restarted(tables=tables):
            scene.execute(f"CREATE TABLE keyed (n int PRIMARY KEY, {columns})", *statements)

    return cause


def drop_keyed(advice: Callable[[Scene], None]) -> Callable[[Scene], None]:
    def then(scene: Scene) -> None:
        advice(scene)
        scene.assert_nothing_is_lost("keyed")

    return then


DECIMAL_KEY = ("v numeric(10,2)", "v", "ALTER TABLE keyed REPLICA IDENTITY FULL")
BY_PRIMARY_KEY = {"rules": [{"match": "public.keyed", "keys": ["n"]}]}

SCENARIOS = (
    Scenario("Kafka cannot take …", 65, write_a_large_record, raise_the_limit),
    Scenario(
        "Topic … takes … bytes at once (max.message.bytes), but the producer's batches may have …",
        78,
        lower_the_limit,
        lower_the_batches,
    ),
    Scenario(
        "Check the [kafka] section, and the brokers' limits",
        78,
        choose_a_wrong_topic_setting,
        correct_the_topic_setting,
    ),
    Scenario(
        "A dead letter was refused as well",
        65,
        refuse_a_dead_letter,
        raise_the_limit_of_dead_letters,
    ),
    Scenario(
        "A change of … cannot be written: …",
        65,
        keyed(*DECIMAL_KEY, "INSERT INTO keyed VALUES (1, NULL)"),
        drop_keyed(with_settings(tables=BY_PRIMARY_KEY)),
        also=("key column … is null",),
    ),
    Scenario(
        "key column … has a value outside its Avro type …",
        65,
        keyed(*DECIMAL_KEY, "INSERT INTO keyed VALUES (1, 'NaN')"),
        drop_keyed(with_settings(tables=BY_PRIMARY_KEY)),
    ),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.message)
def test_the_advice_helps(scenario: Scenario, stage: Stage) -> None:
    stage.play(scenario)
