"""The operating-system account that PostgreSQL runs under: it refuses to run as root.

As an ordinary user that is the user; as root it is ``postgres``, else ``nobody``. Used by cache and postgres.
"""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CANDIDATES = ("postgres", "nobody")

SHARED_DIRECTORY = Path("/var/tmp")  # noqa: S108 - every account can enter it; names below it are checked or random


@dataclass(frozen=True, slots=True)
class Account:
    """A user and its group, by number."""

    name: str
    uid: int
    gid: int


def current_account() -> Account:
    """Return the account that this process runs under."""
    return Account(str(os.geteuid()), os.geteuid(), os.getegid())


@cache
def server_account() -> Account:
    """Return the account for PostgreSQL; KeyError if this machine has none (only root can find that)."""
    if os.geteuid() != 0:
        return current_account()
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in CANDIDATES:
        if name in known:
            return Account(name, known[name].pw_uid, known[name].pw_gid)
    raise KeyError(f"none of the accounts {', '.join(CANDIDATES)} exists")


def run_as(account: Account, command: Sequence[object], *, check: bool = True) -> bool:
    """Run ``command`` under ``account`` and return whether it succeeded; ``check`` raises when not."""
    change_user = account.uid != os.geteuid()
    ended = subprocess.run(
        [str(argument) for argument in command],
        user=account.uid if change_user else None,
        group=account.gid if change_user else None,
        extra_groups=() if change_user else None,
        cwd="/",
        env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
        capture_output=True,
        check=check,
    )
    return ended.returncode == 0


def can_enter(account: Account, directory: Path) -> bool:
    """Whether ``account`` can reach what lies in ``directory``; tried, as mode bits are not all there is."""
    return run_as(account, ["/bin/sh", "-c", 'cd "$0"', directory], check=False)
