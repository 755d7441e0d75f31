"""A driver that mirrors a pipeline and is killed at a step: ``python -m tests.spark.driver <a Life as JSON>``.

pgsluice_spark has no failpoints. So this script wraps the commits of Delta tables in its own process.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Final

from pgsluice_spark import Delta, Pipeline, RestRegistry
from pgsluice_spark.delta import DeltaTable
from pgsluice_spark.targets import Commit
from tests.spark.session import INTERPRETED, new_session

TIMEOUT_S: Final = 600
OTHER_TABLE_S: Final = 30
"""The seconds to wait for the commit of ``Step.other``. Some batches change only one table, so there may be no such
commit."""

CONTROL: Final = "_pgsluice_cuts"


@dataclass(frozen=True, slots=True)
class Step:
    """The moment at which a driver dies: ``before``, ``within`` or ``after`` the commit of ``table``."""

    table: str
    when: str
    other: str = ""
    """A table that has to be committed first. If it is not committed in time, the driver does not die."""


STEPS: Final[Mapping[str, Step]] = {
    "between the commits of two tables": Step("public.lines", "before", "public.orders"),
    "within the commit of a table": Step("public.orders", "within"),
    "before the control table": Step(CONTROL, "before"),
    "after the control table": Step(CONTROL, "after"),
}


@dataclass(frozen=True, slots=True)
class Life:
    """The arguments of one driver: its pipeline, its target, and the step at which it dies."""

    step: str
    prefix: str
    bootstrap_servers: str
    registry: str
    lake: str
    checkpoint: str
    max_events: int


def killed(life: Life, log: Path) -> bool:
    """Run a driver.

    Return True if it died at its step, and False if it succeeded. Raise RuntimeError if it failed.
    """
    command = [sys.executable, "-m", "tests.spark.driver", json.dumps(asdict(life))]
    with log.open("ab") as output:
        ended = subprocess.run(
            command, stdout=output, stderr=output, start_new_session=True, timeout=TIMEOUT_S, check=False
        )
    if ended.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the driver failed: {log.read_text()}")
    return ended.returncode != 0


def main() -> None:
    """Mirror the topics up to their present end, or die at the step."""
    life = Life(**json.loads(sys.argv[1]))
    die_at(STEPS[life.step])
    with tempfile.TemporaryDirectory() as directory:
        pipeline = Pipeline(
            new_session(Path(directory), INTERPRETED),
            prefix=life.prefix,
            bootstrap_servers=life.bootstrap_servers,
            registry=RestRegistry(life.registry),
        )
        pipeline.mirror(
            Delta(life.lake),
            tables=["public.*"],
            checkpoint=life.checkpoint,
            trigger="available now",
            max_events=life.max_events,
        ).awaitTermination()


def die_at(step: Step) -> None:
    """Make a commit of the step's table kill this process."""
    commit, other_is_done = DeltaTable._commit, Event()

    def wrapped(table: DeltaTable, said: Commit, action: Callable[[], object]) -> int:
        name = Path(table.path).name
        if name == CONTROL:
            other_is_done.clear()
        if name == step.table and step.when == "before" and (not step.other or other_is_done.wait(OTHER_TABLE_S)):
            die()
        if name == step.table and step.when == "within":
            Thread(target=_die_with_new_files, args=[Path(table.path)], daemon=True).start()
        number = commit(table, said, action)
        if name == step.table and step.when != "before":
            die()
        if name == step.other:
            other_is_done.set()
        return number

    DeltaTable._commit = wrapped  # type: ignore[method-assign, assignment]


def _die_with_new_files(table: Path) -> None:
    """Die when the table has new files that no commit contains yet."""
    before = set(table.glob("*.parquet"))
    while set(table.glob("*.parquet")) <= before:
        pass
    die()


def die() -> None:
    """Kill this process and its JVM, which is in the same process group."""
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
