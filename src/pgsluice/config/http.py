"""The settings of the HTTP server: ``[http]``."""

from pydantic import Field

from pgsluice.config.section import Section
from pgsluice.config.units import ListenAddress
from pgsluice.config.values import HostName


class Http(Section):
    """The HTTP server: health, metrics, status and the schema registry's read API."""

    listen: ListenAddress = Field(
        default=ListenAddress.parse("127.0.0.1:8080"), description="Address and port to listen on."
    )
    allowed_hosts: list[HostName] = Field(
        default=[],
        description="Host names that clients may use in their Host header, besides localhost and IP addresses. If it "
        "is empty, every name is allowed, but none if `listen` is a loopback address.",
        examples=[["pgsluice.example.com"]],
    )
