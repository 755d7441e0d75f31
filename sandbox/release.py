"""``python -m sandbox.release``: build a release into ``dist/``, check it, install it and run it.

Every archive is installed into an empty environment. There, the daemon must use the compiled modules, and deliver a row
from a real PostgreSQL server to a real Kafka broker.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from sandbox.daemon import Daemon
from sandbox.distribution import (
    BUILD_LOCK,
    ROOT,
    RUNTIME_LOCK,
    Python,
    build_sdist,
    build_wheel,
    commit_time,
    interpreters,
    make_environment,
    problems,
    run,
)
from sandbox.errors import SandboxError
from sandbox.kafka import Kafka
from sandbox.postgres import Postgres

DIST = ROOT / "dist"
EXIT_TERMINATED = 143


def main() -> int:
    """Build, check and try a release. If an error occurs, print its message and return exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m sandbox.release", description="Build and check a release.")
    parser.add_argument("--twice", action="store_true", help="build each archive twice; both builds have to be equal")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # the context managers stop the servers
    try:
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        with tempfile.TemporaryDirectory() as directory:
            _release(Path(directory), twice=options.twice)
    except SandboxError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


def _release(work: Path, *, twice: bool) -> None:
    found = dict(interpreters())
    present = [python for python in found.values() if python is not None]
    builders = {one: make_environment(one.path, work / f"build-{one.version}", BUILD_LOCK) for one in present}
    sdist = _build(builders, DIST)
    _check(sdist)
    wheels = {one: next(DIST.glob(f"*-cp{one.version.replace('.', '')}-*.whl")) for one in present}
    for wheel in wheels.values():
        _check(wheel)
    if twice:
        again = work / "again"
        again.mkdir()
        _build(builders, again)
        different = [one.name for one in again.iterdir() if one.read_bytes() != (DIST / one.name).read_bytes()]
        if different:
            raise SandboxError(f"A second build differs: {', '.join(sorted(different))}")
        print("a second build gives the same bytes")
    _try_all(work, sdist, wheels)
    for version in [version for version, python in found.items() if python is None]:
        print(f"there is no wheel for Python {version}, because python{version} is not on PATH")


def _build(builders: dict[Python, Path], target: Path) -> Path:
    epoch = commit_time()
    sdist = build_sdist(next(iter(builders.values())), target, epoch)
    for builder in builders.values():
        build_wheel(builder, sdist, target, epoch)
    return sdist


def _check(archive: Path) -> None:
    wrong = problems(archive)
    if wrong:
        raise SandboxError("\n".join([f"{archive.name} has problems:", *wrong]))
    print(f"{archive.name}: {archive.stat().st_size // 1024} KiB, content and metadata are right", flush=True)


def _try_all(work: Path, sdist: Path, wheels: dict[Python, Path]) -> None:
    first = next(iter(wheels))
    archives = [*wheels.items(), (first, sdist)]
    with ExitStack() as stack:
        postgres, kafka = stack.enter_context(Postgres()), stack.enter_context(Kafka())
        for number, (python, archive) in enumerate(archives):
            # The environment needs the build requirements only for a source distribution, which must be built first.
            locks = [RUNTIME_LOCK] if archive.suffix == ".whl" else [BUILD_LOCK, RUNTIME_LOCK]
            installed = make_environment(python.path, work / f"run-{number}", *locks)
            options = ("-q", "--no-deps", "--no-build-isolation", "--no-cache-dir")
            run([installed, "-m", "pip", "install", *options, archive])
            _try_commands(installed.parent, work)
            _try_daemon(installed, postgres, kafka, f"release{number}")
            print(f"{archive.name}: installed on Python {python.version}; commands work, and a row arrives", flush=True)


def _try_commands(programs: Path, work: Path) -> None:
    run([programs / "python", "-m", "pip", "check"])
    example = run([programs / "pgsluice", "config", "example"])
    config = work / "config.toml"
    config.write_text(example)
    version = run([programs / "pgsluice", "version"], {"PGSLUICE_SPEEDUPS": "require"})
    if "compiled" not in version:
        raise SandboxError(f"pgsluice version does not report compiled modules:\n{version}")
    run([programs / "pgsluice", "config", "show", "-c", config])
    # pgsluice-spark needs PySpark, which the new environment does not have. Run it with the present interpreter.
    site = run([programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    run([sys.executable, "-c", "from pgsluice_spark.cli import main; main(['--help'])"], {"PYTHONPATH": site})


def _try_daemon(installed: Path, postgres: Postgres, kafka: Kafka, name: str) -> None:
    """Check that the installed daemon delivers a row."""
    with postgres.database() as database, database.connect() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
        with Daemon(name, database.conninfo(), kafka.bootstrap_servers, at_once=False) as daemon:
            daemon.interpreter = str(installed)
            daemon.variables = {"PGSLUICE_SPEEDUPS": "require"}
            daemon.start()
            connection.execute("INSERT INTO orders VALUES (1)")
            daemon.wait_until(lambda: bool(daemon.metric("pgsluice_events_total", op="c")))
            daemon.stop_well()


if __name__ == "__main__":
    sys.exit(main())
