"""The names under which the server may be asked, against pages that have a browser ask for them (DNS rebinding)."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

LOCAL: Final = "localhost"


class Hosts:
    """The names under which a server may be asked.

    A web page can give the name of its own host the address of this server and then read what it answers, as if it came
    from the page's own site. Such requests have that name in their Host header, so it is looked at. A page cannot do
    that with an IP address. ``allowed``: names; none of them means any, except on a loopback address.

    https://en.wikipedia.org/wiki/DNS_rebinding
    """

    def __init__(self, address: str | None, allowed: Sequence[str]) -> None:
        self._allowed = {name.lower().rstrip(".") for name in (*allowed, LOCAL)}
        self._any = not allowed and not _is_loopback(address)

    def allow(self, host: str) -> bool:
        """Judge a Host header; one that is missing is no browser's."""
        if self._any or not host:
            return True
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self._allowed or _ip_address(name) is not None


def _is_loopback(address: str | None) -> bool:
    found = _ip_address(address or "")
    return address == LOCAL or (found is not None and found.is_loopback)


def _ip_address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None
