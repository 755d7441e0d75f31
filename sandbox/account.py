"""The operating-system account that PostgreSQL runs under, because PostgreSQL refuses to run as root.

An ordinary user runs PostgreSQL under their own account. Root runs PostgreSQL as ``postgres``, or as ``nobody`` if the
machine has no account ``postgres``. All code that writes files for a server uses this module.
"""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sandbox.errors import ServerError
from sandbox.prerequisites import SERVER_ACCOUNTS

SHARED_DIRECTORY = Path("/var/tmp")  # noqa: S108 - every account can write there, so names are checked or random


@dataclass(frozen=True, slots=True)
class Account:
    """The ids of a user and its group."""

    uid: int
    gid: int


def current_account() -> Account:
    """Return the account that this process runs under."""
    return Account(os.geteuid(), os.getegid())


@cache
def server_account() -> Account:
    """Return the account for PostgreSQL. Raise KeyError if root needs another account, but this machine has none."""
    if os.geteuid() != 0:
        return current_account()
    known = {entry.pw_name: Account(entry.pw_uid, entry.pw_gid) for entry in pwd.getpwall()}
    for name in SERVER_ACCOUNTS:
        if name in known:
            return known[name]
    raise KeyError(f"none of the accounts {', '.join(SERVER_ACCOUNTS)} exists")


def run_as(account: Account, command: Sequence[object]) -> None:
    """Run ``command`` under ``account``, and wait until it has ended. Raise ServerError if it fails."""
    words = [str(word) for word in command]
    ended = _run(account, words)
    if ended.returncode != 0:
        raise ServerError(f"{' '.join(words)} failed:\n{ended.stdout}{ended.stderr}")


def can_enter(account: Account, directory: Path) -> bool:
    """Return whether ``account`` can enter ``directory``.

    A child process tries to enter it, because mode bits are not the only condition.
    """
    return _run(account, ["/bin/sh", "-c", 'cd "$0"', str(directory)]).returncode == 0


def environment() -> dict[str, str]:
    """Return the environment of all servers and tools. Only PATH is taken from the user's environment."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _run(account: Account, command: list[str]) -> subprocess.CompletedProcess[str]:
    change_user = account != current_account()
    return subprocess.run(
        command,
        user=account.uid if change_user else None,
        group=account.gid if change_user else None,
        extra_groups=() if change_user else None,
        cwd="/",
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
