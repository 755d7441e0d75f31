"""The settings of the schema registry: ``[schema_registry]``."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from pgsluice.config import secret_command
from pgsluice.config.naming import check_address
from pgsluice.config.secret_file import read_password_file
from pgsluice.config.section import Section, keep_one
from pgsluice.config.units import Duration, Within
from pgsluice.config.values import Command, Secret, Text
from pgsluice.errors import ConfigError, RegistryUnavailable


class SchemaRegistry(Section):
    """The schema registry, which assigns ids to schemas. Consumers look up a schema by its id.

    All keys after type describe a registry server. They apply to type confluent and to `pgsluice registry export`.
    """

    type: Literal["builtin", "confluent"] = Field(
        default="builtin",
        description="builtin: pgsluice keeps schemas in Kafka and serves the registry's read API itself. confluent: a "
        "server with the API of Confluent's Schema Registry.",
    )
    url: Text | None = Field(
        default=None,
        description="Addresses of the server, separated by commas. They are tried one after the other.",
        examples=["http://registry-1:8081,http://registry-2:8081"],
    )
    username: Text | None = Field(default=None, description="User, for basic authentication.", examples=["pgsluice"])
    password: Secret | None = Field(
        default=None,
        description="Password. A secret file or the environment is a better place for it than the configuration file.",
        examples=["secret"],
    )
    password_file: Text | None = Field(
        default=None,
        description="File whose first line is the password. It is read again for every connection.",
        examples=["/run/secrets/registry-password"],
    )
    password_command: Command | None = Field(
        default=None,
        description="Program and arguments. The first line that the program prints is the password. The program runs "
        "for every connection, without a shell, for at most 30 seconds.",
        examples=[["vault", "kv", "get", "-field=password", "secret/registry"]],
    )
    token: Secret | None = Field(
        default=None, description="Bearer token, instead of user and password.", examples=["secret"]
    )
    token_file: Text | None = Field(
        default=None,
        description="File whose first line is the token. It is read again for every connection.",
        examples=["/run/secrets/registry-token"],
    )
    token_command: Command | None = Field(
        default=None,
        description="Program and arguments. The first line that the program prints is the token. The program runs in "
        "the same way as that of password_command.",
        examples=[["gcloud", "auth", "print-access-token"]],
    )
    ca_file: Text | None = Field(
        default=None,
        description="File or directory of the certificate authorities that are trusted for the server's certificate. "
        "If it is not set, the public authorities are trusted.",
        examples=["/etc/pgsluice/registry-ca.crt"],
    )
    cert_file: Text | None = Field(
        default=None, description="File of the client's certificate.", examples=["/etc/pgsluice/registry-client.crt"]
    )
    key_file: Text | None = Field(
        default=None,
        description="File of the client's private key, if the key is not in cert_file. It must not be encrypted.",
        examples=["/etc/pgsluice/registry-client.key"],
    )
    timeout: Annotated[Duration, Within("100ms", "5min")] = Field(
        default=Duration.parse("10s"), description="How long each address may take to answer."
    )
    subject_name_strategy: Literal["topic", "record", "topic-record"] = Field(
        default="topic",
        description="How subjects are named. topic: topic-value or topic-key. record: the record's full name. "
        "topic-record: topic and full name. Consumers that look up subjects need the same strategy.",
    )
    on_incompatible: Literal["stop", "force"] = Field(
        default="stop",
        description="What happens if the server refuses a schema as incompatible: stop, or set the subject's "
        "compatibility to NONE for this one registration.",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None and info.data.get("type") == "confluent":
            raise ValueError('is needed with type = "confluent"')
        for address in url.split(",") if url is not None else ():
            check_address(address.strip())
        return url

    @field_validator("username")
    @classmethod
    def _check_username(cls, username: str | None) -> str | None:
        if username is not None and ":" in username:
            raise ValueError("has a colon, but in basic authentication a colon ends the user's name")
        return username

    @field_validator("password", "password_file", "password_command")
    @classmethod
    def _check_password(cls, password: object, info: ValidationInfo) -> object:
        if password is not None and info.data.get("username", "") is None:
            raise ValueError("needs schema_registry.username, because without a user no password is sent")
        return password

    @field_validator("password_file", "token_file")
    @classmethod
    def _check_file(cls, file: str | None, info: ValidationInfo) -> str | None:
        if file is None:
            return None
        keep_one(info, "schema_registry", str(info.field_name).removesuffix("_file"))
        read_password_file(file)
        return file

    @field_validator("password_command", "token_command")
    @classmethod
    def _check_command(cls, command: list[str] | None, info: ValidationInfo) -> list[str] | None:
        if command is not None:
            name = str(info.field_name).removesuffix("_command")
            keep_one(info, "schema_registry", name, f"{name}_file")
        return command

    @field_validator("key_file")
    @classmethod
    def _check_key_file(cls, file: str | None, info: ValidationInfo) -> str | None:
        if file is not None and info.data.get("cert_file") is None:
            raise ValueError("needs the certificate that it belongs to: set cert_file")
        return file

    @field_validator("token", "token_file", "token_command")
    @classmethod
    def _check_token(cls, token: object, info: ValidationInfo) -> object:
        if token is not None:
            keep_one(info, "schema_registry", "username")
        return token

    def secret(self, name: Literal["password", "token"]) -> str | None:
        """Return the password or token for one connection, or None if it is not set. This may block.

        Raise ConfigError or RegistryUnavailable if its file or command fails.
        """
        if (command := getattr(self, f"{name}_command")) is not None:
            return secret_command.run(command, f"schema_registry.{name}_command", RegistryUnavailable)
        if (file := getattr(self, f"{name}_file")) is not None:
            try:
                return read_password_file(file)
            except ValueError as error:
                raise ConfigError(f"schema_registry.{name}_file: {error}") from None
        value = getattr(self, name)
        return None if value is None else str(value.get_secret_value())
