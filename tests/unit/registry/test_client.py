import asyncio
from itertools import islice

import pytest
from confluent_kafka import KafkaError

from pgsluice.errors import ConfigError, PermissionDenied, SinkUnavailable
from pgsluice.kafka.client import ClientErrors
from pgsluice.registry import client
from pgsluice.registry.client import RETRY_FIRST_S, RETRY_S, Retry, pauses

REFUSED = KafkaError(KafkaError._TRANSPORT, "connection refused")
PASSWORD = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication failed")


@pytest.fixture
def errors() -> ClientErrors:
    return ClientErrors()


@pytest.fixture
def retry(errors: ClientErrors) -> Retry:
    return Retry(errors)


async def test_a_time_out_names_the_last_report(retry: Retry, errors: ClientErrors) -> None:
    errors(REFUSED)
    with pytest.raises(SinkUnavailable, match=r"^Waiting: connection refused$"):
        async with retry.time_limit(0, "Waiting"):
            await asyncio.Event().wait()


async def test_a_time_out_does_not_name_reports_from_before_an_answer(retry: Retry, errors: ClientErrors) -> None:
    errors(PASSWORD)
    errors.recovered()
    with pytest.raises(SinkUnavailable, match=r"^Waiting: Kafka did not answer in time$"):
        async with retry.time_limit(0, "Waiting"):
            await asyncio.Event().wait()


async def test_refused_credentials_are_reported_instead_of_a_time_out(retry: Retry, errors: ClientErrors) -> None:
    errors(PASSWORD)
    with pytest.raises(PermissionDenied, match="Check the credentials"):
        async with retry.time_limit(0, "Waiting"):
            await asyncio.Event().wait()


async def test_requests_that_end_in_time_raise_no_error(retry: Retry) -> None:
    async with retry.time_limit(60, "Waiting"):
        await asyncio.sleep(0)


async def test_an_operation_is_retried_while_kafka_is_not_available(
    retry: Retry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RETRY_FIRST_S", 0)
    attempts = iter([SinkUnavailable("down"), SinkUnavailable("still down")])

    async def operation() -> str:
        for refusal in attempts:
            raise refusal
        return "done"

    assert await retry.persist(operation) == "done"


def test_the_first_pauses_are_short() -> None:
    found = list(islice(pauses(), 20))
    assert found[0] <= RETRY_FIRST_S
    assert all(0 < pause_s <= RETRY_S for pause_s in found)
    assert min(found[10:]) >= RETRY_S / 2


async def test_a_time_out_names_the_last_failed_attempt(retry: Retry) -> None:
    async def operation() -> None:
        raise SinkUnavailable("Creating: too few brokers")

    with pytest.raises(SinkUnavailable, match=r"^Starting: Creating: too few brokers$"):
        async with retry.time_limit(0.05, "Starting"):
            await retry.persist(operation)


async def test_an_error_that_is_not_retried_ends_the_wait(retry: Retry) -> None:
    async def operation() -> None:
        raise ConfigError("wrong")

    with pytest.raises(ConfigError, match="wrong"):
        await retry.persist(operation)
