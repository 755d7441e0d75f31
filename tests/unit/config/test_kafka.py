from pathlib import Path

import pytest

from pgsluice.errors import PgsluiceError
from tests.support.settings import problems, settings


def test_every_property_of_clients_that_is_wrong_is_reported() -> None:
    (path, sentence), *_ = problems(kafka={"client": {"acks": 1, "partitioner": "random"}})
    assert path == ("kafka", "client", "acks")
    assert sentence.startswith("cannot be set: ")


def test_values_of_properties_become_texts() -> None:
    client = {"linger.ms": 5, "socket.keepalive.enable": True, "compression.type": "zstd", "sasl.password": "hush"}
    assert settings(kafka={"client": client}).kafka.librdkafka_properties() == {
        "bootstrap.servers": "127.0.0.1:9092",
        "linger.ms": "5",
        "socket.keepalive.enable": "true",
        "compression.type": "zstd",
        "sasl.password": "hush",
    }
    config = {"min.insync.replicas": 2}
    assert settings(kafka={"topics": {"config": config}}).kafka.topics.config == {"min.insync.replicas": "2"}


def test_bootstrap_servers_must_not_contain_a_user() -> None:
    assert problems(kafka={"bootstrap_servers": "u:hunter2@kafka:9092"}) == [
        (
            ("kafka", "bootstrap_servers"),
            'has a user in it: set "sasl.username" and "sasl.password" under kafka.client instead',
        )
    ]


def test_the_name_of_topics_has_to_tell_tables_apart() -> None:
    assert problems(kafka={"topics": {"name": "{prefix}.{table}"}}) == [
        (("kafka", "topics", "name"), "lacks {schema}: every table needs a topic of its own")
    ]


def test_a_replication_factor_of_0_is_refused() -> None:
    assert problems(kafka={"topics": {"replication_factor": 0}}) == [
        (("kafka", "topics", "replication_factor"), "must be -1 (the broker's default) or at least 1")
    ]
    assert settings(kafka={"topics": {"replication_factor": 3}}).kafka.topics.replication_factor == 3


def test_a_cut_must_fit_into_what_may_be_in_flight() -> None:
    assert problems(delivery={"cut_bytes": "128MiB"}) == [
        (("delivery", "inflight_max"), "is 32MiB, less than cut_bytes: set it to 128MiB or more")
    ]
    assert [path for path, _ in problems(delivery={"cut_bytes": "1"})] == [("delivery", "cut_bytes")]


def test_a_password_is_read_for_each_client(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    for keys in ({"password_file": str(file)}, {"password_command": ["cat", str(file)]}):
        kafka = settings(kafka=keys).kafka
        file.write_text("second\n")
        assert kafka.password() == "second"
        assert "sasl.password" not in kafka.librdkafka_properties()
        file.unlink()
        with pytest.raises(PgsluiceError, match=rf"kafka\.{next(iter(keys))}: "):
            kafka.password()
        file.write_text("third\n")
    assert settings().kafka.password() is None


def test_there_is_one_source_of_credentials() -> None:
    both = {"client": {"sasl.password": "a"}, "password_command": ["true"]}
    assert problems(kafka=both) == [
        (
            ("kafka", "password_command"),
            'is set together with "sasl.password" under kafka.client: keep one of the two',
        )
    ]
    both = {"password_command": ["true"], "aws_msk_region": "eu-central-1"}
    assert problems(kafka=both) == [
        (("kafka", "aws_msk_region"), "is set together with kafka.password_command: keep one of the two")
    ]
    assert problems(kafka={"password_file": "/nowhere"}) == [
        (("kafka", "password_file"), "/nowhere cannot be read: No such file or directory")
    ]


def test_msk_authenticates_with_iam_over_tls() -> None:
    properties = settings(kafka={"aws_msk_region": "eu-central-1"}).kafka.librdkafka_properties()
    assert (properties["security.protocol"], properties["sasl.mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
