import pytest
from confluent_kafka import KafkaException, Producer

from pgsluice.config import librdkafka
from pgsluice.config.problems import is_secret


def test_properties_that_delivery_depends_on_are_refused_with_the_reason() -> None:
    assert librdkafka.refusal("acks") == (
        "cannot be set: changes are confirmed to PostgreSQL only after all in-sync replicas have them"
    )
    assert librdkafka.refusal("error_cb") == "cannot be set: it takes a function, which settings cannot hold"
    assert librdkafka.refusal("on_delivery") == librdkafka.refusal("logger") == librdkafka.refusal("error_cb")
    assert librdkafka.refusal("linger.ms") == ""


def test_underscores_stand_for_dots_unless_the_property_has_them() -> None:
    assert librdkafka.with_dots("sasl_username") == "sasl.username"
    assert librdkafka.with_dots("linger.ms") == "linger.ms"
    for name in ("log_level", "error_cb", "on_delivery"):
        assert librdkafka.with_dots(name) == name


def test_properties_that_may_be_shown_are_not_secret() -> None:
    for name in ("sasl.username", "linger.ms", "security.protocol", "sasl.oauthbearer.token.endpoint.url"):
        assert librdkafka.may_be_shown(name)
    for name in ("sasl.password", "sasl.passwrod", "sasl.kerberos.kinit.cmd", "ssl.key.pem", "ssl.certificate.pem",
                 "sasl.oauthbearer.extensions", "sasl.oauthbearer.config", "SASL.PASSWORD", ""):  # fmt: skip
        assert not librdkafka.may_be_shown(name)


def test_nothing_named_like_a_secret_may_be_shown() -> None:
    assert [name for name in librdkafka._SHOWN if is_secret(name)] == []


def test_properties_that_may_be_shown_are_known_to_the_library() -> None:
    for name in librdkafka._SHOWN:
        with pytest.raises(KafkaException) as caught:
            # The library looks up the name before it accepts or refuses the value.
            Producer({name: "", "no.such.name": "1"})
        assert f'No such configuration property: "{name}"' not in str(caught.value)


_VALUES = {
    "partitioner": "random",
    "isolation.level": "read_committed",
    "compression.codec": "lz4",
    "auto.offset.reset": "latest",
    "transaction.timeout.ms": "1000",
    "message.max.bytes": "1000",
    "delivery.report.only.error": True,
}


@pytest.mark.parametrize("name", librdkafka.REFUSED)
def test_every_refused_property_is_known_to_the_library(name: str) -> None:
    value = _VALUES.get(name, "true" if name.startswith(("enable", "allow")) else "5")
    # The library processes the properties one by one, and stops at the first unknown name.
    with pytest.raises(KafkaException, match=r'No such configuration property: "no\.such\.name"'):
        Producer({name: value, "no.such.name": "1"})
