import asyncio

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, PoisonError, SinkUnavailable
from pgsluice.registry import client
from pgsluice.registry.client import ClientErrors, RegistryOptions, failure

REFUSED = KafkaError(KafkaError._TRANSPORT, "connection refused")
ALL_DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
PASSWORD = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication failed")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._AUTHENTICATION, PermissionDenied),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, PermissionDenied),
        (KafkaError.MSG_SIZE_TOO_LARGE, PoisonError),
        (KafkaError.POLICY_VIOLATION, ConfigError),
        (KafkaError._MSG_TIMED_OUT, SinkUnavailable),
        (KafkaError.INVALID_REPLICATION_FACTOR, SinkUnavailable),  # brokers may still be starting
    ],
)
def test_what_an_error_means(code: int, kind: type[PgsluiceError]) -> None:
    for error in (KafkaError(code, "says Kafka"), KafkaException(KafkaError(code, "says Kafka"))):
        found = failure(error, "Doing this")
        assert type(found) is kind
        assert str(found).startswith("Doing this: says Kafka (")


def test_a_property_that_does_not_exist_is_a_setting_to_correct() -> None:
    options = RegistryOptions({"bootstrap.servers": "127.0.0.1:1", "no.such": "thing"})
    with pytest.raises(ConfigError, match=r'No such configuration property: "no.such"'):
        options.client(AdminClient, ClientErrors())


def test_properties_of_other_clients_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    options = RegistryOptions({"bootstrap.servers": "", "compression.type": "lz4", "fetch.min.bytes": "1"})
    options.client(AdminClient, ClientErrors()).poll(0)
    assert caplog.records == []


async def test_a_time_limit_names_the_reason_last_reported() -> None:
    errors = ClientErrors()
    errors(REFUSED)
    with pytest.raises(SinkUnavailable, match=r"^Waiting: connection refused$"):
        async with errors.time_limit(0, "Waiting"):
            await asyncio.Event().wait()


async def test_that_all_brokers_are_down_says_less_than_the_reason_why() -> None:
    errors = ClientErrors()
    errors(ALL_DOWN)
    assert errors.last == ALL_DOWN
    errors(REFUSED)
    errors(ALL_DOWN)
    assert errors.last == REFUSED


async def test_reports_can_be_forgotten() -> None:
    errors = ClientErrors()
    errors(PASSWORD)
    errors.forget()
    errors.raise_if_denied("Waiting")
    with pytest.raises(SinkUnavailable, match=r"^Waiting: Kafka did not answer in time$"):
        async with errors.time_limit(0, "Waiting"):
            await asyncio.Event().wait()


async def test_refused_credentials_are_not_a_matter_of_time() -> None:
    errors = ClientErrors()
    errors(PASSWORD)
    with pytest.raises(PermissionDenied, match="Check the credentials"):
        async with errors.time_limit(0, "Waiting"):
            await asyncio.Event().wait()


async def test_what_is_done_in_time_is_left_alone() -> None:
    async with ClientErrors().time_limit(60, "Waiting"):
        await asyncio.sleep(0)


async def test_persists_while_kafka_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_S", 0)
    attempts = iter([SinkUnavailable("down"), SinkUnavailable("still down")])

    async def operation() -> str:
        for refusal in attempts:
            raise refusal
        return "done"

    errors = ClientErrors()
    assert await errors.persist(operation) == "done"
    assert errors.retried == "still down"


async def test_a_failure_answered_by_trying_again_is_a_reason_too() -> None:
    errors = ClientErrors()

    async def operation() -> None:
        raise SinkUnavailable("Creating: too few brokers")

    with pytest.raises(SinkUnavailable, match=r"^Starting: Creating: too few brokers$"):
        async with errors.time_limit(0.05, "Starting"):
            await errors.persist(operation)


async def test_what_waiting_cannot_mend_ends_it() -> None:
    async def operation() -> None:
        raise ConfigError("wrong")

    with pytest.raises(ConfigError, match="wrong"):
        await ClientErrors().persist(operation)
