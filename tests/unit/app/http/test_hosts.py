import pytest

from pgsluice.app.http.hosts import Hosts


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "LOCALHOST:80", "localhost.", "127.0.0.1:8080", "10.0.0.7", "[::1]:8080", ""],
)
def test_a_loopback_address_accepts_its_own_names_and_addresses(address: str, host: str) -> None:
    assert Hosts(address, ()).allow(host)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_a_loopback_address_refuses_other_names(address: str, host: str) -> None:
    assert not Hosts(address, ()).allow(host)


@pytest.mark.parametrize("address", [None, "::", "10.0.0.7", "pgsluice.example.com"])
def test_other_addresses_accept_any_name(address: str | None) -> None:
    assert Hosts(address, ()).allow("pgsluice.example.com:8080")


@pytest.mark.parametrize("address", [None, "127.0.0.1", "10.0.0.7"])
def test_a_list_of_hosts_limits_the_names(address: str | None) -> None:
    hosts = Hosts(address, ["Pgsluice.example.com"])
    assert hosts.allow("pgsluice.example.com:8080")
    assert hosts.allow("pgsluice.EXAMPLE.com.")
    assert hosts.allow("10.1.2.3:8080")
    assert hosts.allow("localhost:8080")
    assert not hosts.allow("evil.example")


@pytest.mark.parametrize("host", ["[::1", "[evil]", "a@b", "evil.example/", "\x00", ":8080", "999.1.1.1", "1"])
def test_values_that_are_not_hosts_are_refused(host: str) -> None:
    assert not Hosts("127.0.0.1", ()).allow(host)
