"""The settings of the HTTP server: ``[http]``."""

from pydantic import Field, ValidationInfo, field_validator

from pgsluice.config.secret_file import read_token_file
from pgsluice.config.section import Section
from pgsluice.config.units import ListenAddress
from pgsluice.config.values import HostName, Text


class Http(Section):
    """The HTTP server: health, metrics, status and the schema registry's read API."""

    listen: ListenAddress = Field(
        default=ListenAddress.parse("127.0.0.1:8080"), description="Address and port to listen on."
    )
    allowed_hosts: list[HostName] = Field(
        default=[],
        description="Host names that clients may use in their Host header, besides localhost and IP addresses. If "
        "the list is empty, every name is allowed, except when `listen` is a loopback address. In that case, only "
        "localhost and IP addresses are allowed.",
        examples=[["pgsluice.example.com"]],
    )
    tls_cert_file: Text | None = Field(
        default=None,
        description="File with the server's certificate, followed by the intermediate certificates, in PEM format. If "
        "it is set, the server speaks only HTTPS. The file is read again when it changes.",
        examples=["/etc/pgsluice/http.crt"],
    )
    tls_key_file: Text | None = Field(
        default=None,
        description="File of the certificate's private key, in PEM format and not encrypted.",
        examples=["/etc/pgsluice/http.key"],
    )
    token_file: Text | None = Field(
        default=None,
        description="File whose first line is a token of at least 16 characters. Every request except /livez and "
        "/readyz has to send the token, as a bearer token or as the password of basic authentication with any user. "
        "The file is read again when it changes.",
        examples=["/run/secrets/http-token"],
    )

    @field_validator("tls_key_file")
    @classmethod
    def _check_key_file(cls, file: str | None, info: ValidationInfo) -> str | None:
        if (file is None) != (info.data.get("tls_cert_file") is None):
            raise ValueError("goes together with http.tls_cert_file: set both or neither")
        return file

    @field_validator("token_file")
    @classmethod
    def _check_token_file(cls, file: str | None) -> str | None:
        if file is not None:
            read_token_file(file)
        return file
