"""The command line of Spark's bench: measures, prints, and writes its part of docs/performance.md.

https://docs.python.org/3/library/argparse.html
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from bench import machine
from bench.__main__ import DOCUMENT
from bench.processes import ROOT
from bench.servers import SERVER, broker
from bench.spark import damage, driver, races, report
from bench.spark.results import Results
from bench.spark.stage import opened, session
from pgsluice_spark.jars import packages
from sandbox.kafka import Kafka
from sandbox.postgres import DEFAULT_VERSION, Postgres

RESULTS = ROOT / "bench" / "spark" / "results.json"

SUBJECTS = ("decode", "mirror", "audit", "driver")


class Bench:
    """Runs the measurements that the command line selects."""

    def __init__(
        self, spark: SparkSession, postgres: Postgres, kafka: Kafka, directory: Path, options: argparse.Namespace
    ) -> None:
        self._servers = (spark, postgres, kafka, directory)
        self._options = options
        self._results = Results(_describe(postgres))
        kept = Results.read(RESULTS)
        if kept is not None and kept.machine == self._results.machine:
            self._results = kept  # so that the report still has the results that are not measured in this run

    def run(self) -> None:
        """Run the selected measurements. Write the report after each measurement, so that no result is lost."""
        for subject in self._options.only:
            self._measure(subject)
            self._results.scales[subject] = self._options.scale
            self._results.write(RESULTS)
            write_document(self._results)

    def _measure(self, subject: str) -> None:
        scale, runs = self._options.scale, self._options.runs
        rows = round((damage.ROWS if subject == "audit" else races.ROWS) * scale)
        setup = [] if subject == "driver" else [races.CREATE, races.fill(rows)]
        with opened(*self._servers, setup) as stage:
            stage.wait_until_loaded(1 + bool(setup))
            match subject:
                case "decode":
                    self._results.decode = races.decode(stage, rows, runs)
                    _say(f"decode: {self._results.decode}")
                case "mirror":
                    updates = round(races.UPDATES * scale)
                    self._results.load, self._results.updates = races.copy(stage, rows, updates, runs)
                    _say(f"load: {self._results.load}\n  updates: {self._results.updates}")
                case "audit":
                    self._results.audit = damage.measure(stage)
                    _say(f"audit: {self._results.audit}")
                case _:
                    self._results.driver = driver.measure(stage, scale, _say)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the selected measurements, and write the report. With ``--render``, only write the report."""
    options = _parser().parse_args(arguments)
    if options.render:
        results = Results.read(RESULTS)
        assert results is not None, "the repository contains results.json"
        write_document(results)
        return
    with (
        tempfile.TemporaryDirectory(prefix="pgsluice_bench_") as directory,
        Postgres(DEFAULT_VERSION, SERVER) as postgres,
        broker() as kafka,
    ):
        spark = session(Path(directory))
        try:
            Bench(spark, postgres, kafka, Path(directory), options).run()
        finally:
            spark.stop()


def write_document(results: Results) -> None:
    """Write Spark's part of docs/performance.md."""
    DOCUMENT.write_text(report.replaced(DOCUMENT.read_text(), results))


def _describe(postgres: Postgres) -> dict[str, str]:
    delta = next(package for package in packages(pyspark.__version__) if "delta" in package)
    return {
        **machine.describe(postgres, None),
        "Java": machine.java_version(),
        "Spark": f"{pyspark.__version__}, local[2], on the same two cores as the servers",
        "Delta": delta.rpartition(":")[2],
    }


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark", description="Compare the Spark side with jobs written by hand."
    )
    what = ", ".join(SUBJECTS)
    parser.add_argument(
        "--only", nargs="+", choices=SUBJECTS, default=SUBJECTS, metavar="WHAT", help=f"what to measure: {what}"
    )
    parser.add_argument("--runs", type=int, default=3, help="number of runs of each contender (default: 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the numbers of rows, tables and cuts (1)")
    parser.add_argument("--render", action="store_true", help="measure nothing, and write docs from existing results")
    return parser


if __name__ == "__main__":
    main()
