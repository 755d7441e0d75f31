"""The sink if no broker runs. tests/integration/test_kafka_sink.py tests everything else."""

import asyncio

import pytest

from pgsluice.errors import SinkUnavailable
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.options import CutFormat, SinkOptions
from pgsluice.kafka.producer import ProducerOptions
from pgsluice.kafka.sink import KafkaSink
from pgsluice.kafka.topic_spec import TopicSpec


@pytest.fixture
def sink() -> KafkaSink:
    client = ClientOptions({"bootstrap.servers": "127.0.0.1:9"}, "pgsluice-test")
    producer = ProducerOptions(client, "pgsluice-shop", 1024, 60.0)
    options = SinkOptions(producer, TopicSpec("shop.transactions", 1), TopicSpec("shop.checkpoint", 1), "shop")
    return KafkaSink(options, CutFormat(b"shop", lambda _: b"", lambda _: {}))


async def test_a_sink_that_never_started_can_be_closed(sink: KafkaSink) -> None:
    await sink.close()


async def test_nothing_is_written_before_fencing(sink: KafkaSink) -> None:
    with pytest.raises(AssertionError, match="fence"):
        await sink.begin()
    await sink.close()


@pytest.mark.parametrize("step", ["prepare", "fence"])
async def test_closing_ends_the_call_in_progress(sink: KafkaSink, step: str) -> None:
    working = asyncio.create_task(getattr(sink, step)())
    await asyncio.sleep(0)
    await sink.close()
    with pytest.raises(SinkUnavailable):
        await working
