"""Tests faults of Kafka under load. Some faults must make pgsluice wait. Others must make it stop with a message."""

import asyncio
import json
import logging
import re
import resource
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from pgsluice.registry.builtin import BuiltinRegistry
from pgsluice.registry.client import RegistryOptions
from sandbox.kafka import Kafka
from tests.support.command import running
from tests.support.kafka import TIMEOUT_S, SecuredKafka, admin, allow, client_options, configure
from tests.support.weather import Pipeline, Start, wait_until

log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kafka]:
    """Provide three brokers. A write needs two of them."""
    with Kafka(brokers=3) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def guarded_kafka() -> Iterator[SecuredKafka]:
    """Provide a broker for the tests that change rights or passwords.

    The user "reader" has the rights of a pipeline.
    """
    with SecuredKafka() as kafka:
        prefixed = ResourcePatternType.PREFIXED
        allow(kafka, "reader", ResourceType.TOPIC, "w", AclOperation.ALL, pattern=prefixed)
        allow(kafka, "reader", ResourceType.TRANSACTIONAL_ID, "pgsluice-w", AclOperation.ALL, pattern=prefixed)
        yield kafka


@contextmanager
def recovering(pipeline: Pipeline, what: str) -> Iterator[None]:
    """After the block, wait until everything written so far is confirmed. Log how long that took."""
    yield
    began = time.monotonic()
    pipeline.wait_until_confirmed()
    log.info("%s: recovered in %.1f s", what, time.monotonic() - began)


def leader(kafka: Kafka, topic: str) -> int:
    """Return the leader of the topic's first partition."""
    found: int = admin(kafka).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0].leader
    return found


class TestThreeBrokers:
    @pytest.mark.long
    def test_nothing_is_lost_when_leaders_and_coordinators_change(self, cluster: Kafka, start: Start) -> None:
        pipeline = start(broker=cluster)
        pipeline.write()
        pipeline.wait_until_confirmed()
        numbers, client = f"{pipeline.daemon.name}.public.numbers", admin(cluster)
        with pipeline.busy():
            for topic in (numbers, "__transaction_state"):
                node = leader(cluster, topic)
                with recovering(pipeline, f"the leader of {topic} killed"):
                    cluster.kill(node)
                cluster.start(node)
            with recovering(pipeline, "every leader moved back"):
                client.elect_leaders(ElectionType.PREFERRED, None).result(TIMEOUT_S)
        pipeline.assert_complete()
        assert pipeline.daemon.alive

    @pytest.mark.long
    def test_the_daemon_waits_while_two_of_three_brokers_are_down(self, cluster: Kafka, start: Start) -> None:
        pipeline = start(broker=cluster)
        pipeline.write()
        pipeline.wait_until_confirmed()
        cluster.kill(1, 2)
        pipeline.write()
        wait_until(lambda: pipeline.daemon.readiness() == HTTPStatus.SERVICE_UNAVAILABLE, "the daemon to be unready")
        with recovering(pipeline, "two of three gone"):
            cluster.start(1, 2)
        pipeline.daemon.wait_until_ready()
        pipeline.assert_complete()

    @pytest.mark.long
    def test_the_daemon_waits_for_enough_replicas_and_says_so(self, cluster: Kafka, start: Start) -> None:
        pipeline = start(broker=cluster)
        pipeline.write()
        pipeline.wait_until_confirmed()
        topic = ConfigResource(ConfigResource.Type.TOPIC, f"{pipeline.daemon.name}.public.numbers")
        configure(cluster, topic, "min.insync.replicas", "3")
        cluster.kill(3)
        pipeline.write()
        wait_until(lambda: pipeline.daemon.readiness() == HTTPStatus.SERVICE_UNAVAILABLE, "the daemon to be unready")
        assert pipeline.daemon.status()["state"] == "streaming"
        wait_until(lambda: "[0]: 2 of 3 replicas in sync" in pipeline.daemon.log_text(), "the reason in the log")
        assert "Kafka takes no records where fewer replicas are in sync" in pipeline.daemon.log_text()
        with recovering(pipeline, "replicas enough again"):
            cluster.start(3)
        pipeline.assert_complete()


class TestOneBroker:
    def test_the_daemon_continues_after_the_brokers_disk_was_full(self, own_kafka: Kafka, start: Start) -> None:
        pipeline = start(broker=own_kafka)
        pipeline.write()
        pipeline.wait_until_confirmed()
        resource.prlimit(own_kafka.pid(), resource.RLIMIT_FSIZE, (64 * 1024, resource.RLIM_INFINITY))
        while own_kafka._brokers[1]._process().alive:
            pipeline.write_at_once(1000)
        own_kafka.kill()
        with recovering(pipeline, "room on the disk again"):
            own_kafka.start()
        pipeline.assert_complete()

    @pytest.mark.long
    def test_batches_are_refused_if_a_broker_comes_back_with_a_lower_limit(
        self, own_kafka: Kafka, start: Start
    ) -> None:
        """The rows are small, but the limit also applies to batches of rows."""
        pipeline = start(broker=own_kafka)
        pipeline.write()
        pipeline.wait_until_confirmed()
        with changed(own_kafka, "message.max.bytes", "4096"):
            pipeline.write_at_once(1000)
            assert pipeline.daemon.wait() == 78
            assert "Kafka refuses a batch of records for" in pipeline.daemon.log_text()
            assert "Set batch.size under kafka.client to 4096 or less" in pipeline.daemon.log_text()
            pipeline.daemon.settings["kafka"]["client"] = {"batch.size": "2000"}
            pipeline.daemon.start()
            pipeline.assert_complete()


@contextmanager
def changed(kafka: Kafka, name: str, value: str) -> Iterator[None]:
    """Restart the broker with another setting. When the block ends, restart it with the former setting."""
    path = kafka._brokers[1]._properties
    before = path.read_text()
    try:
        kafka.stop()
        path.write_text(f"{before}\n{name}={value}\n")
        kafka.start()
        yield
    finally:
        kafka.stop()
        path.write_text(before)
        kafka.start()


class TestRights:
    """Waiting does not help if a right is withdrawn or a password has changed, so pgsluice must stop."""

    def test_rights_that_are_withdrawn_stop_the_daemon(self, guarded_kafka: SecuredKafka, start: Start) -> None:
        pipeline = start({"kafka": {"client": credentials(guarded_kafka)}}, broker=guarded_kafka)
        name = pipeline.daemon.name
        for kind, resource_name, operation, sentence in (
            (
                ResourceType.TOPIC,
                f"{name}.public.numbers",
                AclOperation.WRITE,
                f"pgsluice was writing to .*{name}.public.numbers",
            ),
            (ResourceType.TRANSACTIONAL_ID, f"pgsluice-{name}-{name}", AclOperation.WRITE, "Transactional"),
            (ResourceType.TOPIC, f"{name}.checkpoint", AclOperation.WRITE, f"{name}.checkpoint"),
            (ResourceType.TOPIC, f"{name}.public.numbers", AclOperation.DESCRIBE, f"{name}.public.numbers"),
        ):
            pipeline.write()
            pipeline.wait_until_confirmed()
            before = len(pipeline.daemon.log_text())
            with denied(guarded_kafka, kind, resource_name, operation):
                pipeline.write()
                assert pipeline.daemon.wait() == 77, (kind, operation)
                assert re.search(sentence, pipeline.daemon.log_text()[before:])
            pipeline.daemon.start()
        pipeline.assert_complete()

    def test_a_changed_password_stops_the_daemon(self, guarded_kafka: SecuredKafka, start: Start) -> None:
        pipeline = start({"kafka": {"client": credentials(guarded_kafka)}}, broker=guarded_kafka)
        pipeline.write()
        pipeline.wait_until_confirmed()
        change_password(guarded_kafka, "reader", "new")
        assert pipeline.daemon.wait() == 77
        assert "Check the credentials under kafka.client" in pipeline.daemon.log_text()
        pipeline.daemon.settings["kafka"]["client"]["sasl.password"] = "new"
        pipeline.daemon.start()
        pipeline.write()
        pipeline.assert_complete()

    def test_the_registry_reads_a_changed_password_again(
        self, guarded_kafka: SecuredKafka, tmp_path: Path, port: int
    ) -> None:
        prefix, password, settings = f"w{uuid4().hex[:8]}", tmp_path / "password", tmp_path / "config.toml"
        subject = f"{prefix}.public.orders-value"
        allow(guarded_kafka, "registry", ResourceType.TOPIC, f"{prefix}.schemas", AclOperation.READ)
        password.touch(0o600)
        password.write_text("right")
        settings.write_text(
            f'version = 1\nname = "shop"\nhttp.listen = "127.0.0.1:{port}"\n'
            f'kafka.bootstrap_servers = "{guarded_kafka.bootstrap_servers}"\n'
            f'kafka.topic_prefix = "{prefix}"\nkafka.password_file = "{password}"\n'
            '[kafka.client]\n"security.protocol" = "SASL_PLAINTEXT"\n"sasl.mechanism" = "PLAIN"\n'
            '"sasl.username" = "registry"\n'
        )
        with running(str(settings), "registry"):
            change_password(guarded_kafka, "registry", "new")
            password.write_text("new")
            asyncio.run(register(guarded_kafka, f"{prefix}.schemas", subject))
            wait_until(lambda: subjects(port) == [subject], "the registry to read the new schema")


def change_password(kafka: SecuredKafka, user: str, password: str) -> None:
    """Change the password of a user from "right" to ``password``. This restarts the broker."""
    path = kafka._brokers[1]._properties
    text = path.read_text()
    kafka.stop()
    path.write_text(text.replace(f'user_{user}="right"', f'user_{user}="{password}"'))
    kafka.start()


async def register(kafka: SecuredKafka, topic: str, subject: str) -> None:
    registry = BuiltinRegistry(RegistryOptions(client_options(kafka)), topic)
    try:
        await registry.start()
        await registry.register(subject, "long")
    finally:
        await registry.close()


def subjects(port: int) -> list[str]:
    """Return the subjects that the registry on ``port`` serves."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/subjects") as answer:
        found: list[str] = json.load(answer)
    return found


def credentials(kafka: SecuredKafka) -> dict[str, str]:
    """Return the settings of kafka.client for the user "reader"."""
    return {name: value for name, value in kafka.properties("reader").items() if name != "bootstrap.servers"}


@contextmanager
def denied(kafka: SecuredKafka, kind: ResourceType, name: str, operation: AclOperation) -> Iterator[None]:
    """Withdraw a right until the block ends."""
    literal, deny = ResourcePatternType.LITERAL, AclPermissionType.DENY
    right, client = AclBinding(kind, name, literal, "User:reader", "*", operation, deny), admin(kafka)
    client.create_acls([right])[right].result(TIMEOUT_S)
    try:
        yield
    finally:
        pattern = AclBindingFilter(kind, name, literal, "User:reader", "*", operation, deny)
        client.delete_acls([pattern])[pattern].result(TIMEOUT_S)
