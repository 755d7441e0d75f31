"""The settings of the connection to PostgreSQL: ``[postgres]``."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator

from pgsluice.config import libpq, secret_command
from pgsluice.config.secret_file import read_password_file
from pgsluice.config.section import Section, keep_one
from pgsluice.config.units import Duration, Within
from pgsluice.config.values import Command, Flag, Names, Parameters, Port, Secret, SlotName, Text, no_uri, reveal
from pgsluice.errors import ConfigError, SourceUnavailable

_STATUS_INTERVALS_PER_TIMEOUT = 3
"""With three status updates per wal_sender_timeout, a single lost or late update does not end the connection."""


class Postgres(Section):
    """The server, the slot and the publications.

    libpq supplies each connection key that is not set, so its PG* variables, password file and service
    file work as in every client.
    """

    dsn: Secret | None = Field(
        default=None,
        description="Connection string or URI of libpq. The keys below take precedence over its parts.",
        examples=["postgresql://pgsluice@db.example.com:5432/shop"],
    )
    host: Annotated[Text, AfterValidator(no_uri)] | None = Field(
        default=None,
        description="Host name, address, or directory of the Unix socket.",
        examples=["db.example.com"],
    )
    port: Port | None = Field(default=None, description="TCP port.", examples=[5432])
    dbname: Text | None = Field(
        default=None, description="Database. A slot belongs to one database.", examples=["shop"]
    )
    user: Text | None = Field(default=None, description="Role with the REPLICATION attribute.", examples=["pgsluice"])
    password: Secret | None = Field(
        default=None,
        description="Password. A secret file or the environment is a better place for it than the configuration file.",
        examples=["secret"],
    )
    password_file: Text | None = Field(
        default=None,
        description="File whose first line is the password. It is read again for every connection.",
        examples=["/run/secrets/postgres-password"],
    )
    password_command: Command | None = Field(
        default=None,
        description="Program and arguments. The first line that the program prints is the password. The program runs "
        "for every connection, without a shell, for at most 30 seconds.",
        examples=[["vault", "read", "-field=password", "database/static-creds/pgsluice"]],
    )
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] | None = Field(
        default=None,
        description="Whether TLS is used, and how the server's certificate is verified.",
        examples=["verify-full"],
    )
    sslrootcert: Text | None = Field(
        default=None,
        description='File of the certificate authorities that are trusted for the server\'s certificate, or "system".',
        examples=["/etc/pgsluice/ca.crt"],
    )
    sslcert: Text | None = Field(
        default=None, description="File of the client's certificate.", examples=["/etc/pgsluice/client.crt"]
    )
    sslkey: Text | None = Field(
        default=None, description="File of the client's private key.", examples=["/etc/pgsluice/client.key"]
    )
    parameters: Parameters = Field(
        default={},
        description="Any other connection parameter of libpq.",
        examples=[{"target_session_attrs": "read-write"}],
    )
    slot: SlotName | None = Field(
        default=None,
        description="Logical replication slot. By default, its name is pgsluice_ followed by the pipeline's name.",
        examples=["pgsluice_shop"],
    )
    publications: Names = Field(default=["pgsluice"], description="Publications to follow. They have to exist.")
    create_slot: Flag = Field(default=True, description="Create the slot when it does not exist yet.")
    streaming: Literal["off", "on", "parallel"] = Field(
        default="on",
        description='Whether the server sends large transactions while they are still in progress. "on" needs '
        'PostgreSQL 14, and means "off" for older servers. "parallel" needs PostgreSQL 16, and means "on" for older '
        "servers.",
    )
    two_phase: Flag = Field(
        default=False,
        description="Receive prepared transactions at PREPARE TRANSACTION, and publish them at COMMIT PREPARED "
        "(from PostgreSQL 15). The slot stores this setting, and only PostgreSQL 18 and later can switch it off.",
    )
    binary: Flag = Field(
        default=False,
        description="Receive values in binary format (from PostgreSQL 14). The events are the same, see events.md.",
    )
    messages: Flag = Field(
        default=False,
        description="Also publish messages of pg_logical_emit_message (from PostgreSQL 14). This switches streaming "
        "off.",
    )
    origin: Literal["any", "none"] = Field(
        default="any",
        description="Changes to publish. any: all changes. none: only changes without a replication origin, which "
        "were made on this server itself (from PostgreSQL 16).",
    )
    failover: Flag = Field(
        default=False, description="Create a slot that survives a failover to a standby (from PostgreSQL 17)."
    )
    wal_sender_timeout: Annotated[Duration, Within("1s", "1h")] = Field(
        default=Duration.parse("15s"),
        description="Time after which the server drops the connection of a pgsluice process that does not answer, and "
        "frees the slot for another process. pgsluice sets it for its own connection, from PostgreSQL 12 on.",
    )
    status_interval: Annotated[Duration, Within("100ms", "10s")] = Field(
        default=Duration.parse("5s"),
        description="Interval at which progress is reported to the server, at most a third of wal_sender_timeout.",
    )

    @field_validator("dsn")
    @classmethod
    def _check_dsn(cls, dsn: SecretStr | None) -> SecretStr | None:
        if dsn is not None:
            libpq.check_dsn(dsn.get_secret_value())
        return dsn

    @field_validator("origin")
    @classmethod
    def _check_origin(cls, origin: str, info: ValidationInfo) -> str:
        if origin == "none" and info.data.get("two_phase"):
            raise ValueError(
                'is "none" together with two_phase = true: PostgreSQL can then lose track of prepared transactions'
            )
        return origin

    @field_validator("password_file")
    @classmethod
    def _check_password_file(cls, password_file: str | None, info: ValidationInfo) -> str | None:
        if password_file is None:
            return None
        keep_one(info, "postgres", "password")
        read_password_file(password_file)
        return password_file

    @field_validator("password_command")
    @classmethod
    def _check_password_command(cls, command: list[str] | None, info: ValidationInfo) -> list[str] | None:
        if command is not None:
            keep_one(info, "postgres", "password", "password_file")
        return command

    @field_validator("status_interval")
    @classmethod
    def _check_status_interval(cls, interval: Duration, info: ValidationInfo) -> Duration:
        timeout = info.data.get("wal_sender_timeout")
        if timeout is None:
            return interval
        most = Duration(timeout.milliseconds // _STATUS_INTERVALS_PER_TIMEOUT)
        if interval > most:
            raise ValueError(
                f"is {interval}, more than a third of wal_sender_timeout ({timeout}): set it to {most} or less"
            )
        return interval

    def libpq_parameters(self) -> dict[str, str]:
        """Return the parameters of all connections. The password is left out if :meth:`secret` returns it."""
        parameters = libpq.parse_dsn(self.dsn.get_secret_value()) if self.dsn else {}
        own = {name: getattr(self, name) for name in libpq.OWN_KEYS if name != "password"}
        parameters |= {name: str(value) for name, value in own.items() if value is not None}
        if self.password is not None:
            parameters["password"] = self.password.get_secret_value()
        if self.password_file is not None or self.password_command is not None:
            parameters.pop("password", None)
        return parameters | reveal(self.parameters)

    def secret(self) -> str | None:
        """Return the password for one connection, from its file or command, or None if neither is set. This may block.

        Raise ConfigError or SourceUnavailable if the file or command fails.
        """
        if self.password_command is not None:
            return secret_command.run(self.password_command, "postgres.password_command", SourceUnavailable)
        if self.password_file is None:
            return None
        try:
            return read_password_file(self.password_file)
        except ValueError as error:
            raise ConfigError(f"postgres.password_file: {error}") from None
