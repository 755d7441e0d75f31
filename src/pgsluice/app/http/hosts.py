"""The names under which clients may use the server, as a protection against DNS rebinding."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

LOCAL: Final = "localhost"


class Hosts:
    """The names under which clients may use a server.

    The owner of a web site can make the site's name resolve to the address of this server. The browser then lets the
    site's pages read our answers, as if they came from the site itself. Such requests have the site's name in their
    Host header, so we check the header. This attack does not work with an IP address in place of a name, so addresses
    are always allowed. ``allowed`` are names that are allowed besides localhost. If ``allowed`` is empty, all names are
    allowed, unless the server listens on a loopback address.

    https://en.wikipedia.org/wiki/DNS_rebinding
    """

    def __init__(self, address: str | None, allowed: Sequence[str]) -> None:
        self._allowed = {name.lower().rstrip(".") for name in (*allowed, LOCAL)}
        self._any = not allowed and not _is_loopback(address)

    def allow(self, host: str) -> bool:
        """Return whether to answer a request with this Host header.

        A request without this header does not come from a browser.
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
