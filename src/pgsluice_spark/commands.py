"""Carries out the commands of ``pgsluice-spark``, with the settings in a TOML file. Used by :mod:`.cli`.

The exit codes have the same meaning as those of the daemon (docs/runbook.md).

``tests/unit/pgsluice_spark/test_cli.py`` and ``tests/spark/test_cli.py`` cover this module.
"""

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgsluice_spark.command_line import parser
from pgsluice_spark.config import PARQUET, Config, ConfigError, read
from pgsluice_spark.control import View, consistent_view
from pgsluice_spark.delta import SETTINGS, Delta
from pgsluice_spark.errors import NoSuchView, PipelineError, TopicMissing
from pgsluice_spark.iceberg import CATALOG_CLASS, Iceberg
from pgsluice_spark.jars import check_iceberg, is_old_source_needed, packages
from pgsluice_spark.maintenance import Maintenance
from pgsluice_spark.parquet import Parquet
from pgsluice_spark.pipeline import Pipeline
from pgsluice_spark.registry import Registry, RegistryError, RestRegistry, TopicRegistry
from pgsluice_spark.report import lsn_text
from pgsluice_spark.schema import SchemaError
from pgsluice_spark.submit import jar_settings, prepared, shown, submitted
from pgsluice_spark.targets import Target

EXIT_OK: Final = 0
EXIT_NOT_COMPARED: Final = 1
EXIT_UNFIT: Final = 1
EXIT_DATA: Final = 65
EXIT_UNAVAILABLE: Final = 69
EXIT_BUG: Final = 70
EXIT_CONFIG: Final = 78

_SESSION: Final[Mapping[str, str]] = {"spark.ui.showConsoleProgress": "false"}
_OLDER_SOURCE: Final = {
    "spark.sql.streaming.disabledV2MicroBatchReaders": "org.apache.spark.sql.kafka010.KafkaSourceProvider"
}
"""The setting that Spark 4.1.0 and 4.1.1 need because of SPARK-55271."""

Command = Callable[[Config, Pipeline, argparse.Namespace], int]


def run(options: argparse.Namespace) -> int:
    """Carry out a command, and return the exit code."""
    try:
        return _run(options)
    except ConfigError as error:
        return _failed(error, EXIT_CONFIG)
    except (TopicMissing, NoSuchView, RegistryError) as error:
        return _failed(error, EXIT_UNAVAILABLE)
    except (PipelineError, SchemaError) as error:
        return _failed(error, EXIT_UNAVAILABLE if type(error) is PipelineError else EXIT_DATA)
    except (PySparkException, Py4JError) as error:
        return _failed(error, EXIT_BUG)


def _run(options: argparse.Namespace) -> int:
    if options.command == "jars":
        return _jars()
    config = read(options.config)
    if options.command == "submit":
        return _submit(config, options)
    _target(config)  # report mistakes in the file before Spark starts, because starting Spark takes long
    _maintenance(config)
    with _session(config) as spark:
        return COMMANDS[options.command](config, _pipeline(config, spark), options)


def _jars() -> int:
    print(",".join(packages(pyspark.__version__)))  # noqa: T201 - the command's output
    return EXIT_OK


def _failed(error: Exception, code: int) -> int:
    print(f"pgsluice-spark: {error}", file=sys.stderr)  # noqa: T201 - the command's error message
    return code


def _session(config: Config) -> SparkSession:
    builder = SparkSession.builder.appName(f"pgsluice-spark {config.get('pipeline.prefix')}")
    for name, value in _settings(config).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _settings(config: Config) -> dict[str, str]:
    """Return the settings of Spark: those in the file, and defaults for settings that the file does not have."""
    older = _OLDER_SOURCE if is_old_source_needed(pyspark.__version__) else {}
    return {**_SESSION, **_target_settings(config), **older, **jar_settings(config.spark), **config.spark}


def _target_settings(config: Config) -> Mapping[str, str]:
    """Return the settings that the session needs for the target.

    An Iceberg catalog needs further settings, such as its location. The user gives them in the file.
    """
    catalog = config.find("target.catalog")
    return SETTINGS if catalog is None else {f"spark.sql.catalog.{catalog}": CATALOG_CLASS}


def _submit(config: Config, options: argparse.Namespace) -> int:
    placed = {"spark.master": options.master, "spark.submit.deployMode": options.deploy_mode}
    settings = {**_settings(config), **{name: value for name, value in placed.items() if value is not None}}
    words = parser().parse_args([*options.words, "-c", config.file])
    if words.command in ("jars", "submit"):
        raise ConfigError(f"{words.command} cannot run on a cluster. Submit one of {', '.join(COMMANDS)}")
    if options.write is None:
        return submitted(config, settings, options.words)
    directory = Path(options.write)
    directory.mkdir(parents=True, exist_ok=True)
    print(shown(prepared(config, settings, options.words, directory)))  # noqa: T201 - the command's output
    return EXIT_OK


def _pipeline(config: Config, spark: SparkSession) -> Pipeline:
    return Pipeline(
        spark,
        prefix=config.get("pipeline.prefix"),
        bootstrap_servers=config.get("pipeline.bootstrap_servers"),
        registry=_registry(config, spark),
        kafka_options=config.find("pipeline.kafka_options", {}),
    )


def _registry(config: Config, spark: SparkSession) -> Registry:
    url = config.find("registry.url")
    if url is None:
        options = config.find("pipeline.kafka_options", {})
        return TopicRegistry(
            spark, config.get("pipeline.bootstrap_servers"), config.get("registry.topic"), kafka_options=options
        )
    try:
        return RestRegistry(url, config.find("registry.username"), config.secret("registry.password_file"))
    except ValueError as error:
        raise ConfigError(f"{config.file}: registry.url: {error}") from None


def _target(config: Config) -> Target:
    path = config.find("target.path")
    if path is not None:
        return Parquet(path) if config.find("target.format") == PARQUET else Delta(path)
    check_iceberg(pyspark.__version__)
    return Iceberg(f"{config.get('target.catalog')}.{config.get('target.namespace')}")


def _maintenance(config: Config) -> Maintenance | None:
    found = config.maintenance
    try:
        return None if found is None else Maintenance(**found)
    except ValueError as error:
        raise ConfigError(f"{config.file}: maintenance: {error}") from None


def _query(config: Config, start: Callable[..., object]) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("pgsluice_spark").setLevel(logging.INFO)
    try:
        query = start(
            _target(config),
            tables=config.tables,
            checkpoint=config.get("query.checkpoint"),
            trigger=config.find("query.trigger", "10 seconds"),
            max_events=config.find("query.max_events", 5_000_000),
            maintenance=_maintenance(config),
        )
    except ValueError as error:
        raise ConfigError(f"{config.file}: {error}") from None
    query.awaitTermination()  # type: ignore[attr-defined]
    return EXIT_OK


def _audit(config: Config, pipeline: Pipeline, options: argparse.Namespace) -> int:
    try:
        report = pipeline.audit(
            _target(config),
            postgres=_dsn(config),
            tables=config.tables,
            differences=options.differences,
            wait_s=options.wait,
        )
    except ValueError as error:
        raise ConfigError(f"{config.file}: postgres.dsn: {error}") from None
    print(report.to_json() if options.json else report)  # noqa: T201 - the command's output
    if report.different:
        return EXIT_DATA
    return EXIT_OK if report.equal else EXIT_NOT_COMPARED


def _dsn(config: Config) -> str:
    """Return PostgreSQL's connection string, with the password from its file."""
    dsn, password = str(config.get("postgres.dsn")), config.secret("postgres.password_file")
    return dsn if password is None else f"{dsn} password={_quoted(password)}"


def _quoted(text: str) -> str:
    """Return a value, quoted for a connection string of libpq."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _view(config: Config, pipeline: Pipeline, options: argparse.Namespace) -> int:
    found = consistent_view(pipeline.spark, _target(config), at=options.at)
    print(_view_json(found) if options.json else _view_text(found))  # noqa: T201 - the command's output
    return EXIT_OK


def _view_text(view: View) -> str:
    lines = [f"cut {view.cut}, epoch {view.epoch}, {lsn_text(view.end_lsn)}, {view.ts or 'no time'}"]
    return "\n".join([*lines, *(f"{name}: {status}" for name, status in sorted(view.status.items()))])


def _view_json(view: View) -> str:
    ts = None if view.ts is None else view.ts.isoformat()
    return json.dumps(
        {"cut": view.cut, "epoch": view.epoch, "end_lsn": view.end_lsn, "ts": ts, "tables": dict(view.status)}
    )


def _doctor(config: Config, pipeline: Pipeline, options: argparse.Namespace) -> int:
    postgres = None if config.find("postgres.dsn") is None else _dsn(config)
    found = pipeline.doctor(_target(config), postgres=postgres, tables=config.tables)
    print(found.to_json() if options.json else found)  # noqa: T201 - the command's output
    return EXIT_OK if found.healthy else EXIT_UNFIT


def _lag(config: Config, pipeline: Pipeline, options: argparse.Namespace) -> int:
    found = pipeline.lag(_target(config))
    print(found.to_json() if options.json else found)  # noqa: T201 - the command's output
    return EXIT_OK


COMMANDS: Final[Mapping[str, Command]] = {
    "mirror": lambda config, pipeline, _: _query(config, pipeline.mirror),
    "changelog": lambda config, pipeline, _: _query(config, pipeline.changelog),
    "audit": _audit,
    "view": _view,
    "lag": _lag,
    "doctor": _doctor,
}
