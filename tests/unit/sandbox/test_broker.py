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


def test_a_broker_that_is_down_has_no_pid_and_no_log(broker: Broker) -> None:
    assert not broker.running
    assert broker.log_text() == ""
    with pytest.raises(ServerError, match="broker 2 is not running"):
        assert broker.pid


def test_what_a_removed_broker_had_can_be_taken_again() -> None:
    broker = Broker(1, [], Path("libraries"))
    directory = Path(broker.own_settings()["log.dirs"]).parent
    assert directory.exists()
    broker.remove()
    assert not directory.exists()
    ReservedPort(int(broker.address("PLAINTEXT").rpartition(":")[2])).release()


def test_a_log_directory_that_cannot_be_formatted_is_told(broker: Broker) -> None:
    with pytest.raises(ServerError, match=r"(?s)StorageTool format .* failed:.*ClassNotFoundException"):
        broker.format({}, [])
