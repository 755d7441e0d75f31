from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.broker import Broker, Listener
from sandbox.errors import ServerError
from sandbox.ports import ReservedPort


@pytest.fixture
def broker() -> Iterator[Broker]:
    listeners = [Listener("SASL", "SASL_SSL"), Listener("PROXY", advertised={2: "127.0.0.1:1"})]
    broker = Broker(2, listeners, Path("libraries"))
    yield broker
    broker.remove()


def test_every_listener_has_an_address_and_only_those_of_clients_are_advertised(broker: Broker) -> None:
    plain, controller, sasl, proxy = (broker.address(name) for name in ("PLAINTEXT", "CONTROLLER", "SASL", "PROXY"))
    settings = broker.own_settings()
    assert settings["node.id"] == "2"
    assert settings["listeners"].split(",") == [
        f"CONTROLLER://{controller}",
        f"PLAINTEXT://{plain}",
        f"SASL://{sasl}",
        f"PROXY://{proxy}",
    ]
    assert settings["advertised.listeners"] == f"PLAINTEXT://{plain},SASL://{sasl},PROXY://127.0.0.1:1"
    assert settings["listener.security.protocol.map"] == (
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,PROXY:PLAINTEXT"
    )
    assert broker.voter == f"2@{controller}"


def test_each_broker_reaches_a_linked_broker_at_a_separate_address() -> None:
    brokers = [Broker(node, [], Path("libraries"), linked=True) for node in (1, 2)]
    try:
        one, two = brokers
        links = two.links_from(source=1)
        one.know_links(links)
        settings = one.own_settings()
        hosts = Path(settings["log.dirs"]).parent / "hosts"
        assert {link.host for link in links} == {"127.77.1.2"}
        assert [f"broker-2:{link.port}" for link in links] == [two.address("CONTROLLER"), two.address("INTERNAL")]
        assert hosts.read_text() == "127.0.0.1 localhost\n127.0.0.1 broker-1\n127.77.1.2 broker-2\n"
        assert one.voter == f"1@{one.address('CONTROLLER')}"
        assert one.address("CONTROLLER").startswith("broker-1:")
        assert one.address("PLAINTEXT").startswith("127.0.0.1:")
        assert settings["inter.broker.listener.name"] == "INTERNAL"
        assert f"INTERNAL://{one.address('INTERNAL')}" in settings["advertised.listeners"]
    finally:
        for broker in brokers:
            broker.remove()


def test_a_broker_that_is_down_has_no_pid_and_no_log(broker: Broker) -> None:
    assert not broker.running
    assert broker.log_text() == ""
    with pytest.raises(ServerError, match="broker 2 is not running"):
        assert broker.pid


def test_ports_of_a_removed_broker_can_be_used_again() -> None:
    broker = Broker(1, [], Path("libraries"))
    directory = Path(broker.own_settings()["log.dirs"]).parent
    assert directory.exists()
    broker.remove()
    assert not directory.exists()
    ReservedPort(int(broker.address("PLAINTEXT").rpartition(":")[2])).release()


def test_a_log_directory_that_cannot_be_formatted_is_reported(broker: Broker) -> None:
    with pytest.raises(ServerError, match=r"(?s)StorageTool format .* failed:.*ClassNotFoundException"):
        broker.format({}, [])
