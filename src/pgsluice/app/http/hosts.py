"""The names under which clients may use the server, as a protection against DNS rebinding."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

LOCAL: Final = "localhost"


class Hosts:
    """The names under which clients may use a server.

    A web page can give the name of its own host the address of this server. The browser then lets the page read our
    answers, as if they came from the page's own site. Such requests have that name in their Host header, so we check
    the header. A page cannot do this with an IP address, so addresses are always allowed. ``allowed`` are the names.
    Without any, all names are allowed, except on a loopback address.

    https://en.wikipedia.org/wiki/DNS_rebinding
    """

    def __init__(self, address: str | None, allowed: Sequence[str]) -> None:
        self._allowed = {name.lower().rstrip(".") for name in (*allowed, LOCAL)}
        self._any = not allowed and not _is_loopback(address)

    def allow(self, host: str) -> bool:
        """Return whether to answer a request with this Host header.

        A request without one does not come from a browser.
        """
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
