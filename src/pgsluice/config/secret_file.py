"""Reads secrets from files: passwords, and the token of the HTTP server."""

from pathlib import Path

from pgsluice.config.problems import unreadable

PASSWORD_BYTES_MAX = 64 * 1024
"""The maximum number of bytes to read. A cloud's token has a few KiB, but a file named by mistake may be large."""

TOKEN_MIN_CHARACTERS = 16
"""The minimum length of the HTTP server's token. A shorter token could be guessed."""


def read_token_file(name: str) -> str:
    """Return the first line of file ``name``. Raise ValueError if it cannot be read, or is not a safe token."""
    token = read_password_file(name)
    if len(token) < TOKEN_MIN_CHARACTERS:
        raise ValueError(
            f"the first line of {name} has fewer than {TOKEN_MIN_CHARACTERS} characters, so the token could be "
            "guessed. Create a safe token with openssl rand -hex 32"
        )
    if not token.isascii():
        raise ValueError(f"the first line of {name} has characters that are not ASCII, which HTTP cannot carry")
    return token


def read_password_file(name: str) -> str:
    """Return the first line of file ``name``. Raise ValueError if it cannot be read, or is not a password."""
    try:
        with Path(name).open("rb") as file:
            content = file.read(PASSWORD_BYTES_MAX)
    except OSError as error:
        raise ValueError(f"{name} {unreadable(error)}") from None
    return first_line(content, name)


def first_line(content: bytes, source: str) -> str:
    """Return the first line of ``content``, which is from ``source``. Raise ValueError if it is not a password."""
    try:
        password = content.decode().split("\n", 1)[0].removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{source} is not UTF-8 text") from None
    if not password or "\0" in password:
        raise ValueError(f"the first line of {source} is not a password")
    return password
