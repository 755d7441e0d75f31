"""Runs commands that print secrets: ``postgres.password_command``, and those for Kafka and the schema registry.

Clouds and vaults issue passwords that expire after minutes, so the command runs again for new connections. Everything
that such a command prints may be secret, so no message quotes it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from select import select
from typing import IO

from pgsluice.config.secret_file import PASSWORD_BYTES_MAX, first_line
from pgsluice.errors import ConfigError, RetryableError

_running: set[subprocess.Popen[bytes]] = set()
"""The commands that run now. Several threads may add and remove commands."""

TIME_LIMIT_S = 30.0
"""The time limit for a command. The command-line tools of clouds take seconds, and retry for a while if they fail."""


def run(command: Sequence[str], key: str, unavailable: type[RetryableError], time_limit_s: float = TIME_LIMIT_S) -> str:
    """Return the first line that ``command`` prints, which is the secret of the setting ``key``. This blocks.

    No shell is involved. Raise ConfigError if the command cannot be started or prints no secret. If the command fails
    or takes too long, raise ``unavailable``, because a later attempt may succeed.
    """
    program, deadline = command[0], time.monotonic() + time_limit_s
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator has chosen the command
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(f"{key}: {program} cannot be started: {error.strerror}. Correct the command.") from None
    with process:
        assert process.stdout is not None, "stdout is a pipe"
        _running.add(process)
        try:
            output = _read(process.stdout, deadline)
            exit_code = process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise unavailable(
                f"{key}: {program} took longer than {time_limit_s:g} s. Run it by hand, as the user that runs pgsluice."
            ) from None
        finally:
            _running.discard(process)
            _end(process)
    if len(output) > PASSWORD_BYTES_MAX:
        raise ConfigError(
            f"{key}: {program} printed more than {PASSWORD_BYTES_MAX} bytes. Let it print the secret only."
        )
    if exit_code != 0:
        raise unavailable(
            f"{key}: {program} failed with exit code {exit_code}. Its output is not shown, because it may contain "
            "secrets. Run it by hand, as the user that runs pgsluice."
        )
    try:
        return first_line(output, f"the output of {program}")
    except ValueError as error:
        raise ConfigError(f"{key}: {error}. Let the command print the secret, and nothing before it.") from None


def end_all() -> None:
    """End all commands that run now, because the process stops and nobody needs their secrets any more."""
    for process in list(_running):
        _end(process)


def _read(pipe: IO[bytes], deadline: float) -> bytes:
    """Read the pipe to its end, or until it has given more bytes than a secret can have.

    Raise TimeoutError if the pipe is still open at the deadline.
    """
    output = bytearray()
    while len(output) <= PASSWORD_BYTES_MAX:
        if not select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        chunk = os.read(pipe.fileno(), PASSWORD_BYTES_MAX)
        if not chunk:
            break
        output += chunk
    else:
        pipe.close()
    return bytes(output)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and its child processes, so that nothing waits for them."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
