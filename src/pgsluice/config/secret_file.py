"""Reads secrets from files: passwords, and the token of the HTTP server."""

from pathlib import Path

from pgsluice.config.problems import unreadable

PASSWORD_BYTES_MAX = 64 * 1024
"""Every password is shorter: even cloud tokens have only a few KiB. A file that was named by mistake may be longer."""

TOKEN_MIN_CHARACTERS = 16
"""A shorter token of the HTTP server could be guessed."""


def read_token_file(name: str) -> str:
    """Return the first line of file ``name``; ValueError if the file cannot be read, or the token is not safe."""
    token = read_password_file(name)
    if len(token) < TOKEN_MIN_CHARACTERS:
        raise ValueError(
            f"the first line of {name} has fewer than {TOKEN_MIN_CHARACTERS} characters, so the token could be "
            "guessed: openssl rand -hex 32 makes a safe one"
        )
    return token


def read_password_file(name: str) -> str:
    """Return the first line of file ``name``; ValueError if the file cannot be read, or the line is not a password."""
    try:
        with Path(name).open("rb") as file:
            content = file.read(PASSWORD_BYTES_MAX)
    except OSError as error:
        raise ValueError(f"{name} {unreadable(error)}") from None
    return first_line(content, name)


def first_line(content: bytes, source: str) -> str:
    """Return the first line of ``content``, which came from ``source``; ValueError if it is not a password."""
    try:
        password = content.decode().split("\n", 1)[0].removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{source} is not UTF-8 text") from None
    if not password or "\0" in password:
        raise ValueError(f"the first line of {source} is not a password")
    return password
