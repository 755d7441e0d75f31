"""Builds a release: the source distribution, and a wheel for each version of Python. ``make dist`` uses this module.

Wheels are built in an empty directory from the source distribution, which proves that the source distribution is
complete. Two builds of one commit have the same bytes, because all times are ``SOURCE_DATE_EPOCH``, which defaults to
the time of the commit.
"""

import gzip
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path, PurePosixPath

from packaging.metadata import Metadata
from packaging.utils import parse_sdist_filename, parse_wheel_filename

from sandbox.errors import SandboxError

ROOT = Path(__file__).parents[1]
BUILD_LOCK = ROOT / "deploy/image/build.lock"
RUNTIME_LOCK = ROOT / "deploy/image/runtime.lock"

COMPILED = ("copy", "rows", "runs")
"""The modules that must be compiled. If a module does not compile, setuptools omits it without an error."""

_PYTHON = "Programming Language :: Python :: 3."
_UNSHIPPED = {"tests", "sandbox", "bench", "contract", ".git", ".venv", "build"}


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter and its version, such as ``3.11``."""

    version: str
    path: str


def interpreters() -> Iterator[tuple[str, Python | None]]:
    """Yield each version that pyproject.toml lists, with its interpreter, or None if PATH has no such interpreter."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for version in [name.rpartition(" ")[2] for name in project["classifiers"] if name.startswith(_PYTHON)]:
        yield version, _interpreter(version)


def _interpreter(version: str) -> Python | None:
    ask = "import sys; print(sys.executable)"
    try:
        # pyenv has shims on PATH even for inactive versions, but these shims fail.
        ended = subprocess.run([f"python{version}", "-c", ask], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return Python(version, ended.stdout.strip())


def run(command: Sequence[str | Path], variables: Mapping[str, str] | None = None, where: Path | None = None) -> str:
    """Return the output of a command. Raise SandboxError with this output if the command fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PGSLUICE_"))}
    ended = subprocess.run(
        [str(part) for part in command],
        env=environment | dict(variables or {}),
        cwd=where,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise SandboxError(f"{' '.join(map(str, command))} ends with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


def commit_time() -> str:
    """Return ``SOURCE_DATE_EPOCH`` from the environment, or by default the time of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return given or run(["git", "-C", ROOT, "log", "-1", "--format=%ct"]).strip()


def make_environment(python: str, where: Path, *locks: Path) -> Path:
    """Return the interpreter of a new virtual environment with the packages of the lock files."""
    run([python, "-m", "venv", where])
    interpreter = where / "bin/python"
    for lock in locks:
        run([interpreter, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "-r", lock])
    return interpreter


def build_sdist(python: Path, target: Path, epoch: str) -> Path:
    """Build the source distribution from the files that git tracks. ``python`` must have the build requirements."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "pgsluice"
        tree.mkdir()
        tracked = run(["git", "-C", ROOT, "ls-files", "-z", "--", "src", *_BESIDE]).split("\0")
        for name in filter(None, tracked):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
        call = f"from setuptools.build_meta import build_sdist; build_sdist({str(directory)!r})"
        run([python, "-c", call], {"SOURCE_DATE_EPOCH": epoch}, tree)
        (built,) = Path(directory).glob("*.tar.gz")
        return _with_fixed_times(built, target, int(epoch))


_BESIDE = ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "setup.py")


def _with_fixed_times(built: Path, target: Path, epoch: int) -> Path:
    """Write the archive with an owner, times and an order that do not depend on the machine. Return its path."""
    found = target / built.name
    with (
        tarfile.open(built) as old,
        found.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return found


def build_wheel(python: Path, sdist: Path, target: Path, epoch: str) -> Path:
    """Build a wheel from ``sdist`` with the lowest manylinux tag that its symbols allow. Return its path."""
    with tempfile.TemporaryDirectory() as directory:
        tree, plain = Path(directory), Path(directory) / "plain"
        with tarfile.open(sdist) as archive:
            archive.extractall(tree, filter="data")
        (source,) = (found for found in tree.iterdir() if found.is_dir())
        # With these flags, the modules have no debugging symbols, and no paths of sources or libraries. CFLAGS replaces
        # the flags with which the interpreter was built, so CFLAGS has to repeat -O3, -DNDEBUG and -fwrapv.
        variables = {
            "SOURCE_DATE_EPOCH": epoch,
            "CFLAGS": f"-O3 -DNDEBUG -fwrapv -g0 -ffile-prefix-map={directory}=.",
            "LDSHARED": "cc -shared",
            "LDFLAGS": "-Wl,--strip-all,--build-id=none",
        }
        options = ("-q", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", plain)
        run([python, "-m", "pip", "wheel", *options, source], variables)
        (wheel,) = plain.glob("*.whl")
        repaired = tree / "repaired"
        beside = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SOURCE_DATE_EPOCH": epoch}
        run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, wheel], beside)
        (found,) = repaired.glob("*.whl")
        return found.replace(target / found.name)


def problems(archive: Path) -> list[str]:
    """Return the problems of a wheel or a source distribution."""
    members = _members(archive)
    is_wheel = archive.suffix == ".whl"
    found = [*_missing(members, is_wheel=is_wheel), *_surplus(members, is_wheel=is_wheel), *_paths(members)]
    metadata = next(data for name, data in members.items() if name.endswith(("/METADATA", "/PKG-INFO")))
    try:
        read = Metadata.from_email(metadata, validate=True)
    except ExceptionGroup as group:
        return [*found, *(f"metadata: {error}" for error in group.exceptions)]
    name, version = parse_wheel_filename(archive.name)[:2] if is_wheel else parse_sdist_filename(archive.name)
    if (read.name, read.version) != (name, version):
        found.append(f"the metadata is that of {read.name} {read.version}")
    if read.license_expression != "Apache-2.0" or not Parser().parsestr(metadata.decode()).get_payload():
        found.append("the metadata lacks the licence or the description")
    return found


def _members(archive: Path) -> dict[str, bytes]:
    """Return the content of each file by name. In a source distribution, names do not include the top directory."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    with tarfile.open(archive) as sdist:
        files = [(member.name.partition("/")[2], sdist.extractfile(member)) for member in sdist if member.isfile()]
        return {name: file.read() for name, file in files if file is not None}


def _missing(members: Mapping[str, bytes], *, is_wheel: bool) -> Iterator[str]:
    names = set(members)
    source = "" if is_wheel else "src/"
    wanted = [f"{source}pgsluice/py.typed", f"{source}pgsluice_spark/py.typed"]
    wanted += [f"{source}pgsluice/native/{name}.pyx" for name in COMPILED]
    yield from (f"{name} is missing" for name in wanted if name not in names)
    if not any(PurePosixPath(name).name == "LICENSE" for name in names):
        yield "LICENSE is missing"
    if is_wheel:
        for module in COMPILED:
            if not any(name.startswith(f"pgsluice/native/{module}.") and name.endswith(".so") for name in names):
                yield f"the compiled module {module} is missing"


def _surplus(members: Mapping[str, bytes], *, is_wheel: bool) -> Iterator[str]:
    for name in members:
        first, suffix = PurePosixPath(name).parts[0], PurePosixPath(name).suffix
        is_foreign = is_wheel and not first.startswith(("pgsluice", "pgsluice_spark"))
        if first in _UNSHIPPED or is_foreign or suffix in {".c", ".pyc"} or (suffix == ".so" and not is_wheel):
            yield f"{name} does not belong in this archive"


def _paths(members: Mapping[str, bytes]) -> Iterator[str]:
    """Yield a problem for each path of the build machine: the clone, the interpreter, the home directory."""
    local = {str(ROOT), sys.base_prefix, str(Path.home())} - {"/", "/usr", "/usr/local"}
    for name, data in members.items():
        yield from (f"{name} has the path {path}" for path in sorted(local) if f"{path}/".encode() in data)
