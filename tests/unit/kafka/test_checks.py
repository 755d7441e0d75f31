"""The checks of Kafka if no broker runs. tests/integration/test_kafka_topics.py tests everything else."""

import pytest

from pgsluice.finding import Verdict
from pgsluice.kafka import topics as module
from pgsluice.kafka.checks import check
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.options import SinkOptions
from pgsluice.kafka.producer import ProducerOptions
from pgsluice.kafka.topic_spec import TopicSpec


@pytest.mark.parametrize(
    ("properties", "reason", "remedy"),
    [
        (
            {},
            "Connection refused",
            "Check kafka.bootstrap_servers, kafka.client and the password, and that a broker listens there.",
        ),
        (
            {"no.such": "thing"},
            'refuses a property: No such configuration property: "no.such". Correct kafka.client.',
            "Correct the setting; no broker was contacted.",
        ),
    ],
)
def test_without_a_broker_no_further_check_runs(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], reason: str, remedy: str
) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 1.0)
    client = ClientOptions({"bootstrap.servers": "127.0.0.1:9", **properties}, "pgsluice-test")
    producer = ProducerOptions(client, "pgsluice-shop", 1, 60.0)
    options = SinkOptions(producer, TopicSpec("shop.transactions", 1), TopicSpec("shop.checkpoint", 1), "shop")
    (finding,) = check(options)
    assert (finding.name, finding.verdict) == ("kafka reachable", Verdict.FAIL)
    assert reason in finding.detail
    assert finding.remedy == remedy
