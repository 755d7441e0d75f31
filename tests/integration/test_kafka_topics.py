"""Tests topics that are created, found or refused, and the findings of ``pgsluice check`` about Kafka."""

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Event
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AclOperation, ConfigResource

from pgsluice.errors import ConfigError, PermissionDenied, SinkUnavailable, TableRefused
from pgsluice.finding import Finding, Verdict
from pgsluice.kafka import topic_spec
from pgsluice.kafka import topics as module
from pgsluice.kafka.checks import check, refused_tables
from pgsluice.kafka.client import ClientErrors, ClientOptions
from pgsluice.kafka.options import SinkOptions
from pgsluice.kafka.producer import ProducerOptions
from pgsluice.kafka.topic_spec import TopicSettings, TopicSpec, check_compacted
from pgsluice.kafka.topics import Topics
from sandbox.kafka import Kafka
from tests.support.kafka import (
    SecuredKafka,
    admin,
    client_options,
    commit,
    configure,
    create_topic,
    grant,
    paused,
    transaction,
    wait_for_end,
)

SOON_S = 1.0


@pytest.fixture
def topics(kafka: Kafka) -> Topics:
    return Topics(client_options(kafka), Event())


@pytest.fixture
def name() -> str:
    return f"shop-{uuid4().hex[:8]}.public.orders"


class TestEnsure:
    def test_a_new_topic_is_as_specified(self, kafka: Kafka, topics: Topics, name: str) -> None:
        assert topics.ensure(TopicSpec(name, 3, 1, {"retention.ms": "60000"}))[0].partitions == 3
        client, resource = admin(kafka), ConfigResource(ConfigResource.Type.TOPIC, name)
        assert client.describe_configs([resource])[resource].result()["retention.ms"].value == "60000"
        assert topics.describe([name])[name].partitions == 3

    def test_an_existing_topic_is_not_changed(self, topics: Topics, name: str) -> None:
        assert topics.ensure(TopicSpec(name, 2))[0].partitions == 2
        assert topics.ensure(TopicSpec(name, 12, 3, {"retention.ms": "1"}))[0].partitions == 2

    def test_several_clients_create_the_same_topic(self, kafka: Kafka, name: str) -> None:
        several = [Topics(client_options(kafka), Event()) for _ in range(4)]
        with ThreadPoolExecutor(len(several)) as threads:
            found = threads.map(lambda one: one.ensure(TopicSpec(name, 5)), several)
        assert [state.partitions for (state,) in found] == [5] * len(several)

    def test_too_few_brokers_are_a_temporary_error(self, topics: Topics, name: str) -> None:
        with pytest.raises(SinkUnavailable, match=rf"Creating topic {name}: .*Fewer brokers are up"):
            topics.ensure(TopicSpec(name, 1, 3))

    def test_a_name_that_kafka_cannot_distinguish_from_another(self, topics: Topics, name: str) -> None:
        topics.ensure(TopicSpec(f"{name}.a_b", 1))
        with pytest.raises(
            ConfigError, match=r"collides with another topic .* `topic = \"...\"` in a \[\[tables.rules"
        ):
            topics.ensure(TopicSpec(f"{name}_a.b", 1))

    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            (TopicSpec("no spaces", 1), "topic no spaces: Broker: Invalid topic"),
            (TopicSpec("x" * 250, 1), "topic xxx.*: Broker: Invalid topic"),
            (TopicSpec("shop.no-such-setting", 1, config={"no.such.setting": "1"}), "no.such.setting"),
            (TopicSpec("shop.no-partitions", 0), "partitions"),
        ],
    )
    def test_topics_that_every_broker_refuses(self, topics: Topics, spec: TopicSpec, reason: str) -> None:
        with pytest.raises(ConfigError, match=reason):
            topics.ensure(spec)

    def test_several_topics_are_created_together(self, topics: Topics, name: str) -> None:
        topics.ensure(TopicSpec(f"{name}.2", 2))
        states = topics.ensure(*(TopicSpec(f"{name}.{number}", number) for number in (1, 2, 3)))
        assert [state.partitions for state in states] == [1, 2, 3]
        assert [topics.describe([f"{name}.{number}"])[f"{name}.{number}"] for number in (1, 2, 3)] == states

    def test_a_refused_topic_among_several_is_named(self, topics: Topics, name: str) -> None:
        with pytest.raises(ConfigError, match="topic no spaces: Broker: Invalid topic"):
            topics.ensure(TopicSpec("no spaces", 1), TopicSpec(name, 1))


class TestMake:
    """Many topics are created at the same time, as for a session with many new tables."""

    def test_topics_that_do_not_exist_are_created(
        self, topics: Topics, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(topic_spec, "PARTITIONS_MAX", 7)
        topics.ensure(TopicSpec(f"{name}.0", 2))
        specs = [TopicSpec(f"{name}.{number}", 3) for number in range(10)]
        made = topics.make(specs)
        assert [made[spec.name].partitions for spec in specs] == [2, *[3] * 9]
        assert topics.describe([spec.name for spec in specs]) == made
        assert topics.make([]) == {}

    def test_topics_that_other_clients_create_at_the_same_time_are_used(self, kafka: Kafka, name: str) -> None:
        several = [Topics(client_options(kafka), Event()) for _ in range(3)]
        specs = [TopicSpec(f"{name}.{number}", 2) for number in range(5)]
        with ThreadPoolExecutor(len(several)) as threads:
            found = list(threads.map(lambda one: one.make(specs), several))
        assert [sorted(states) for states in found] == [[spec.name for spec in specs]] * 3

    def test_refused_topics_are_omitted(self, topics: Topics, name: str) -> None:
        refused = [TopicSpec("no spaces", 1), TopicSpec(f"{name}.none", 0), TopicSpec(f"{name}.many", 1, 3)]
        good = [TopicSpec(f"{name}.{number}", 1) for number in range(2)]
        assert sorted(topics.make([good[0], *refused, good[1]])) == [spec.name for spec in good]

    def test_topics_without_the_right_to_create_or_describe_them(self, secured_kafka: SecuredKafka, name: str) -> None:
        reader = Topics(ClientOptions(secured_kafka.properties("reader"), "pgsluice-test"), Event())
        hidden, there, denied, mine = (f"{name}.{which}" for which in ("hidden", "there", "denied", "mine"))
        for topic in (hidden, there):
            create_topic(secured_kafka, topic)
        for topic in (there, denied, mine):
            grant(secured_kafka, topic, AclOperation.DESCRIBE)
        grant(secured_kafka, mine, AclOperation.CREATE)
        made = reader.make([TopicSpec(topic, 1) for topic in (hidden, there, denied, mine)])
        assert sorted(made) == [mine, there]
        with pytest.raises(PermissionDenied, match=f"Creating topic {denied}"):
            reader.ensure(TopicSpec(denied, 1))


class TestSettings:
    @pytest.mark.parametrize("policy", ["compact", "compact,delete"])
    def test_a_compacted_topic_takes_only_records_with_keys(
        self, kafka: Kafka, topics: Topics, name: str, policy: str
    ) -> None:
        create_topic(kafka, name, cleanup_policy=policy)
        (settings,) = topics.settings_of(name)
        topics.check(TopicSpec(name, 1), settings)
        with pytest.raises(
            TableRefused, match=f"Topic {name} has cleanup.policy=compact, but truncates or rows without a key"
        ):
            topics.check(TopicSpec(name, 1, compactable=False), settings)

    def test_a_new_topic_without_keys_is_never_compacted(self, own_kafka: Kafka, name: str) -> None:
        """Here, the broker compacts new topics by default. A compacted topic would refuse rows without a key."""
        with closing(Topics(client_options(own_kafka), Event())) as topics:
            (broker,) = topics.brokers()
            configure(
                own_kafka, ConfigResource(ConfigResource.Type.BROKER, str(broker)), "log.cleanup.policy", "compact"
            )
            try:
                keyless = TopicSpec(f"{name}.keyless", 1, compactable=False)
                topics.ensure(keyless, TopicSpec(f"{name}.keyed", 1))
                settings = topics.settings_of(f"{name}.keyless", f"{name}.keyed")
                assert [one.cleanup_policy for one in settings] == ["delete", "compact"]
                topics.check(keyless, settings[0])
            finally:
                configure(
                    own_kafka, ConfigResource(ConfigResource.Type.BROKER, str(broker)), "log.cleanup.policy", "delete"
                )

    def test_a_new_topic_has_the_specified_settings(self, topics: Topics, name: str) -> None:
        topics.ensure(TopicSpec(name, 1, config={"cleanup.policy": "compact", "max.message.bytes": "1000000"}))
        (settings,) = topics.settings_of(name)
        assert settings == TopicSettings("compact", 1_000_000)
        topics.check(TopicSpec(name, 1), settings)

    def test_a_topic_whose_limit_is_smaller_than_a_batch(self, topics: Topics) -> None:
        with pytest.raises(ConfigError, match=r"Topic t takes 999999 bytes at once .*1000000 \(batch.size\)"):
            topics.check(TopicSpec("t", 1), TopicSettings("delete", 999_999))

    def test_settings_of_any_number_of_topics_are_read(
        self, topics: Topics, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Topics that do not exist must be omitted."""
        monkeypatch.setattr(module, "SETTINGS_MAX", 2)
        limits = {f"{name}.{number}": 1_000_000 + number for number in range(5)}
        topics.ensure(*(TopicSpec(one, 1, config={"max.message.bytes": str(limit)}) for one, limit in limits.items()))
        found = topics.settings([*limits, f"{name}.never-made"])
        assert found == {one: TopicSettings("delete", limit) for one, limit in limits.items()}
        assert topics.settings([]) == {}

    def test_settings_of_a_topic_that_does_not_exist(
        self, topics: Topics, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "REQUEST_S", SOON_S)
        with pytest.raises(SinkUnavailable, match=f"Reading the configuration of {name}: the broker does not know"):
            topics.settings_of(name)

    def test_a_topic_that_keeps_the_last_record_of_each_key(self, topics: Topics, name: str) -> None:
        topics.ensure(TopicSpec(f"{name}.1", 1, config={"cleanup.policy": "compact"}), TopicSpec(f"{name}.2", 1))
        compacted, deleted = topics.settings_of(f"{name}.1", f"{name}.2")
        check_compacted(f"{name}.1", compacted)
        with pytest.raises(ConfigError, match=rf"Topic {name}.2 has cleanup.policy=delete, .* Set it to compact"):
            check_compacted(f"{name}.2", deleted)


class TestQuestions:
    def test_a_query_does_not_create_a_topic(self, topics: Topics, name: str) -> None:
        assert topics.describe([]) == {}
        assert topics.describe([name, f"{name}.other"]) == {}
        topics.ensure(TopicSpec(name, 2))
        assert topics.describe([name, f"{name}.other"]).keys() == {name}
        assert topics.refusal_to_create(TopicSpec(f"{name}.other", 2)) is None
        assert topics.describe([f"{name}.other"]) == {}

    def test_offsets_are_known_as_soon_as_a_topic_exists(self, topics: Topics, name: str) -> None:
        assert topics.next_offsets([]) == {}
        for number in range(5):
            topic = f"{name}.{number}"
            places = [(topic, partition) for partition in range(topics.ensure(TopicSpec(topic, 7))[0].partitions)]
            assert topics.next_offsets(places) == dict.fromkeys(places, 0)

    def test_offsets_include_uncommitted_records(self, kafka: Kafka, topics: Topics, name: str) -> None:
        topics.ensure(TopicSpec(name, 2))
        commit(kafka, name, b"1", b"2")
        with transaction(kafka, name, [b"3"]) as foreign:
            assert topics.next_offsets([(name, 0), (name, 1)]) == {(name, 0): 4, (name, 1): 0}
            assert topics.bounds(name, 0) == (0, 4)
            foreign.abort_transaction()
        client, place = admin(kafka), TopicPartition(name, 0, 2)
        client.delete_records([place])[place].result()
        wait_for_end(kafka, name, 5)
        assert topics.bounds(name, 0) == (2, 5)

    def test_offsets_of_a_topic_that_does_not_exist(
        self, topics: Topics, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "REQUEST_S", SOON_S)
        with pytest.raises(SinkUnavailable, match=f"Listing the offsets of topic {name}: "):
            topics.next_offsets([(name, 0)])

    def test_brokers_and_their_limit(self, topics: Topics) -> None:
        assert topics.brokers() == [1]
        assert topics.max_transaction_timeout_ms() == 900_000


class TestOutages:
    def test_offsets_are_requested_from_new_leaders(self, own_kafka: Kafka, name: str) -> None:
        """Without a search for new leaders, librdkafka would keep asking the former leaders."""
        topics = Topics(client_options(own_kafka), Event())
        topics.ensure(TopicSpec(name, 2))
        places = [(name, 0), (name, 1)]
        assert topics.next_offsets(places) == {(name, 0): 0, (name, 1): 0}
        own_kafka.stop()
        own_kafka.start()
        assert topics.next_offsets(places) == {(name, 0): 0, (name, 1): 0}

    def test_offsets_on_a_broker_that_does_not_answer_are_unknown(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The offsets of the broker's partitions are unknown. This must not look like a truncated topic."""
        monkeypatch.setattr(module, "REQUEST_S", SOON_S)
        monkeypatch.setattr(module, "_LEADERS_S", SOON_S)
        with Kafka(brokers=2) as kafka:
            topics = Topics(client_options(kafka), Event())
            places = [(name, partition) for partition in range(topics.ensure(TopicSpec(name, 4, 1))[0].partitions)]
            offsets = topics.next_offsets(places)
            assert offsets == dict.fromkeys(places, 0)
            silence = r"Listing the offsets of topics: .*did not answer in time"
            with paused(kafka, 2), pytest.raises(SinkUnavailable, match=silence):
                topics.next_offsets(places)
            monkeypatch.undo()
            assert topics.next_offsets(places) == offsets

    def test_requests_end_if_a_broker_does_not_answer(self, own_kafka: Kafka, name: str) -> None:
        given_up = Event()
        topics = Topics(client_options(own_kafka), given_up)
        topics.ensure(TopicSpec(name, 1))
        with paused(own_kafka), ThreadPoolExecutor() as threads:
            waiting: list[Future[Any]] = [
                threads.submit(topics.ensure, TopicSpec(f"{name}.new", 1)),
                threads.submit(topics.next_offsets, [(name, 0)]),
                threads.submit(topics.refusal_to_create, TopicSpec(f"{name}.new", 1)),
            ]
            time.sleep(0.5)
            given_up.set()
            for call in waiting:
                with pytest.raises(SinkUnavailable, match="was abandoned because the session ends"):
                    call.result()


def sink_options(client: ClientOptions, prefix: str, timeout_s: float = 60.0) -> SinkOptions:
    return SinkOptions(
        ProducerOptions(client, f"pgsluice-{prefix}", 1024 * 1024, timeout_s),
        TopicSpec(f"{prefix}.transactions", 1),
        TopicSpec(f"{prefix}.checkpoint", 1, config={"cleanup.policy": "compact"}),
        "shop",
    )


def by_name(findings: Iterable[Finding]) -> dict[str, tuple[Verdict, str]]:
    return {finding.name: (finding.verdict, finding.detail) for finding in findings}


class TestCheck:
    def test_a_correct_setup_has_no_problems(self, kafka: Kafka, topics: Topics, name: str) -> None:
        before = {
            "kafka reachable": (Verdict.OK, "1 broker(s)"),
            "delivery mode": (Verdict.OK, "exactly once, by Kafka transactions"),
            "kafka transaction timeout": (Verdict.OK, "60 s"),
            "kafka transactional id": (Verdict.OK, f"pgsluice-{name}"),
            f"topic {name}.transactions": (Verdict.OK, "will be created"),
            f"topic {name}.checkpoint": (Verdict.OK, "will be created"),
            f"topic {name}.schemas": (Verdict.OK, "will be created"),
            "kafka may create topics": (Verdict.OK, "as configured"),
            "size of batches": (Verdict.OK, "1000000 bytes (batch.size)"),
        }
        options = sink_options(client_options(kafka), name)
        assert by_name(check(options)) == before
        assert by_name(check(options)) == before
        topics.ensure(options.transactions_topic)
        topics.ensure(options.checkpoint_topic)
        exist = {f"topic {name}.{which}": (Verdict.OK, "exists") for which in ("transactions", "checkpoint")}
        assert by_name(check(options)) == {**before, **exist}

    def test_without_transactions_their_timeout_does_not_matter(self, kafka: Kafka, name: str) -> None:
        options = replace(sink_options(client_options(kafka), name), mode="at_least_once")
        found = by_name(check(options))
        assert found["delivery mode"] == (Verdict.OK, "at least once, without transactions")
        assert "kafka transaction timeout" not in found
        assert "kafka transactional id" not in found

    def test_topics_with_wrong_settings_are_reported(self, kafka: Kafka, name: str) -> None:
        create_topic(kafka, f"{name}.transactions", 3)
        create_topic(kafka, f"{name}.checkpoint", cleanup_policy="delete")
        options = sink_options(client_options(kafka), name)
        found = by_name(check(options))
        assert found[f"topic {name}.transactions"] == (Verdict.FAIL, "has 3 partitions")
        verdict, detail = found[f"topic {name}.checkpoint"]
        assert verdict is Verdict.FAIL
        assert "cleanup.policy=delete" in detail

    def test_topics_that_kafka_would_not_create_are_reported(self, kafka: Kafka, name: str) -> None:
        client = client_options(kafka)
        options = SinkOptions(
            ProducerOptions(client, name, 1, 3600.0),
            TopicSpec(f"{name}.transactions", 1, 3),
            TopicSpec(name, 1),
            "shop",
        )
        found = by_name(check(options))
        verdict, detail = found["kafka may create topics"]
        assert verdict is Verdict.WARN
        assert "Fewer brokers are up" in detail
        assert found[f"topic {name}.transactions"] == (Verdict.FAIL, detail)
        create_topic(kafka, f"{name}.transactions")
        assert "Fewer brokers are up" in by_name(check(options))["kafka may create topics"][1]
        assert found["kafka transaction timeout"] == (Verdict.OK, "3600 s wanted, 900 s allowed and used")

    def test_tables_whose_topics_kafka_would_not_create_are_reported(self, kafka: Kafka, name: str) -> None:
        options = sink_options(client_options(kafka), name)
        create_topic(kafka, f"{name}.old")
        wrong = [TopicSpec(f"{name}.{table}", 1, config={"cleanup.policy": "bogus"}) for table in ("old", "a", "b")]
        (sentence,) = refused_tables(options, [*wrong, TopicSpec(f"{name}.c", 1)])
        assert "Invalid value bogus for configuration cleanup.policy" in sentence

    def test_the_topic_of_schemas_is_left_out(self, kafka: Kafka, name: str) -> None:
        found = by_name(check(sink_options(client_options(kafka), name), has_schemas=False))
        assert f"topic {name}.schemas" not in found

    @pytest.mark.parametrize(("is_read_again", "code"), [(False, 77), (True, 69)])
    def test_a_wrong_password_is_reported(
        self, secured_kafka: SecuredKafka, name: str, *, is_read_again: bool, code: int
    ) -> None:
        errors = ClientErrors(credentials_change=is_read_again)
        client = ClientOptions(secured_kafka.properties("admin", "wrong"), "pgsluice-test", errors)
        (finding,) = check(sink_options(client, name))
        assert (finding.name, finding.verdict, finding.exit_code) == ("kafka reachable", Verdict.FAIL, code)
        assert "Authentication failed" in finding.detail
        assert "kafka.password_file" in finding.detail

    def test_missing_rights_are_reported(self, secured_kafka: SecuredKafka, name: str) -> None:
        client = ClientOptions(secured_kafka.properties("reader"), "pgsluice-test")
        found = by_name(check(sink_options(client, name)))
        assert found["kafka reachable"][0] is Verdict.OK
        assert found["kafka transaction timeout"] == (Verdict.WARN, "transaction.max.timeout.ms cannot be read")
        assert found["kafka transactional id"][0] is Verdict.OK
        for which in ("transactions", "checkpoint"):
            verdict, detail = found[f"topic {name}.{which}"]
            assert verdict is Verdict.FAIL
            assert "Topic authorization failed" in detail
        verdict, detail = found["kafka may create topics"]
        assert verdict is Verdict.WARN
        assert "Authorization failed" in detail

    def test_topics_made_by_hand_need_no_right_to_create_or_configure(
        self, secured_kafka: SecuredKafka, name: str
    ) -> None:
        reader = Topics(ClientOptions(secured_kafka.properties("reader"), "pgsluice-test"), Event())
        create_topic(secured_kafka, name, 2)
        with pytest.raises(PermissionDenied, match=f"topic {name}"):
            reader.ensure(TopicSpec(name, 2))
        grant(secured_kafka, name, AclOperation.DESCRIBE)
        assert reader.ensure(TopicSpec(name, 2))[0].partitions == 2
        (settings,) = reader.settings_of(name)
        assert settings == TopicSettings()
        reader.check(TopicSpec(name, 2, compactable=False), settings)
        check_compacted(name, settings)
        assert reader.next_offsets([(name, 0)]) == {(name, 0): 0}
        assert reader.max_transaction_timeout_ms() is None
