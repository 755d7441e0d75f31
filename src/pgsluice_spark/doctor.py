"""Looks for problems that would keep a mirror or a change log from running, and names their remedies.

Used by :mod:`.pipeline`. The order of the checks is: versions, jars, settings, Kafka, the registry, the target,
PostgreSQL. If a jar is missing or is for another version of Spark, the checks after the settings are left out, because
they need the jars.

``tests/spark/test_cli.py`` covers this module.
"""

import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgsluice_spark.brokers import Brokers
from pgsluice_spark.control import NAME, ControlTable, Entry
from pgsluice_spark.diagnosis import FAILED, OK, WARNING, Diagnosis, Symptom
from pgsluice_spark.errors import PipelineError
from pgsluice_spark.jars import SPARK_VERSIONS, is_old_source_needed
from pgsluice_spark.loads import LOADED
from pgsluice_spark.names import is_chosen, postgres_name
from pgsluice_spark.origin import Origin
from pgsluice_spark.postgres import DRIVER, Session, Source, connected
from pgsluice_spark.reading import tables_of
from pgsluice_spark.registry import RegistryError
from pgsluice_spark.schema import SchemaError
from pgsluice_spark.targets import Target

_JAVAS: Final = (17, 21)
_KAFKA_SOURCE: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_KAFKA_CLIENT: Final = "org.apache.kafka.clients.admin.Admin"
_AVRO: Final = "org.apache.spark.sql.avro.AvroFileFormat"
_V2_READERS: Final = "spark.sql.streaming.disabledV2MicroBatchReaders"
_POLICY: Final = "cleanup.policy"
_RETENTION: Final = "retention.ms"
_DAY_MS: Final = 86_400_000
_NAMED: Final = 5
"""The maximum number of names in one line."""


@dataclass(frozen=True, slots=True)
class Patient:
    """The parts of a mirror that are checked. If ``target`` or ``postgres`` is None, this part is not checked."""

    origin: Origin
    target: Target | None
    postgres: str | None
    tables: Sequence[str]

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        return self.origin.spark

    @property
    def brokers(self) -> Brokers:
        """The brokers of the pipeline."""
        return Brokers(self.spark, self.origin.bootstrap_servers, self.origin.options)


def run(patient: Patient) -> Diagnosis:
    """Carry out all checks."""
    jars = _attempt(lambda: _jars(patient))
    symptoms = [*_attempt(lambda: versions(patient.spark)), *jars, *_attempt(lambda: _settings(patient))]
    if any(one.status == FAILED for one in jars):
        return Diagnosis(symptoms)
    symptoms += _attempt(lambda: _topics(patient))
    entry: list[Entry] = []
    if (target := patient.target) is not None:
        symptoms += _attempt(lambda: _target(patient, target, entry))
    if (postgres := patient.postgres) is not None:
        symptoms += _attempt(lambda: _postgres(patient, postgres, entry))
    return Diagnosis(symptoms)


def _attempt(check: Callable[[], Iterable[Symptom]]) -> list[Symptom]:
    """Return the findings of a check. If the check fails, its error is a finding as well."""
    found: list[Symptom] = []
    try:
        found.extend(check())
    except (PipelineError, RegistryError, SchemaError, ValueError) as error:
        found.append(Symptom(FAILED, str(error)))
    except (PySparkException, Py4JError) as error:
        found.append(Symptom(FAILED, f"Spark failed: {_first_line(error)}"))
    return found


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(java.toString() if java is not None else error).strip().partition("\n")[0]


def versions(spark: SparkSession) -> Iterator[Symptom]:
    """Check the versions of Python, PySpark, Spark and Java."""
    own, server = pyspark.__version__, spark.version
    java = str(_jvm(spark).java.lang.System.getProperty("java.version"))
    text = f"Python {platform.python_version()}, PySpark {own}, Spark {server}, Java {java}"
    if server != own:
        yield Symptom(FAILED, text, f"Install PySpark {server}, the version of this Spark, or use Spark's own PySpark")
    elif ".".join(own.split(".")[:2]) not in SPARK_VERSIONS:
        yield Symptom(FAILED, text, f"Use a version of Spark that is tested: {', '.join(SPARK_VERSIONS)}")
    elif int(re.match(r"\d+", java)[0]) not in _JAVAS:  # type: ignore[index]  # Java's versions begin with a number
        yield Symptom(WARNING, text, f"Spark supports Java {' and '.join(map(str, _JAVAS))}. Set JAVA_HOME")
    else:
        yield Symptom(OK, text)


def _jars(patient: Patient) -> Iterator[Symptom]:
    wanted = {
        _KAFKA_SOURCE: "spark-sql-kafka-0-10",
        _KAFKA_CLIENT: "kafka-clients",
        _AVRO: "spark-avro",
    }
    if patient.target is not None:
        wanted[patient.target.requires.class_name] = patient.target.requires.package
    if patient.postgres is not None:
        wanted[DRIVER] = "postgresql"
    found = {package: _jar(patient.spark, name) for name, package in wanted.items()}
    if missing := [package for package, jar in found.items() if jar is None]:
        yield Symptom(
            FAILED,
            f"Spark does not have {', '.join(missing)}",
            "Add the packages that `pgsluice-spark jars` prints to spark.jars.packages, or their jars to spark.jars",
        )
        return
    version = patient.spark.version
    if other := [jar for package, jar in found.items() if package.startswith("spark-") and version not in str(jar)]:
        yield Symptom(FAILED, f"{', '.join(map(str, other))}: not for Spark {version}", "Use the jars for this version")
    else:
        yield Symptom(OK, f"jars: {', '.join(sorted(map(str, found.values())))}")


def _jar(spark: SparkSession, name: str) -> str | None:
    """Return the file from which a class is loaded, or None if there is no such class."""
    loader = _jvm(spark).java.lang.Thread.currentThread().getContextClassLoader()
    try:
        found = loader.loadClass(name)
    except Py4JError:
        return None
    return str(found.getProtectionDomain().getCodeSource().getLocation().getPath()).rpartition("/")[2]


def _jvm(spark: SparkSession) -> Any:  # noqa: ANN401 - py4j has no types
    return spark._jvm  # noqa: SLF001 - PySpark has no other way to Java


def _settings(patient: Patient) -> Iterator[Symptom]:
    wanted = dict(patient.target.requires.settings) if patient.target is not None else {}
    if is_old_source_needed(patient.spark.version):
        wanted[_V2_READERS] = _KAFKA_SOURCE
    lacking = {name: value for name, value in wanted.items() if not _has(patient.spark, name, value)}
    for name, value in lacking.items():
        is_needed = name != _V2_READERS
        yield Symptom(
            FAILED if is_needed else WARNING,
            f"the session does not have {name} {value}".rstrip(),
            "Set it before the session starts" if is_needed else "Without it, a restart may fail once (SPARK-55271)",
        )
    if wanted and not lacking:
        yield Symptom(OK, f"settings of the session: {', '.join(sorted(wanted))}")


def _has(spark: SparkSession, name: str, value: str) -> bool:
    found = spark.conf.get(name, None)
    return found is not None and (not value or value in found.split(","))


def _topics(patient: Patient) -> Iterator[Symptom]:
    """Check the topics, and the schemas in the registry.

    The check decodes cut records. If that succeeds, the registry has their schema.
    """
    origin, brokers = patient.origin, patient.brokers
    end = brokers.end(origin.transactions)
    yield Symptom(OK, f"Kafka has {origin.transactions}, which ends at offset {end}")
    topics = origin.topics_of_tables(end)
    if not topics:
        yield Symptom(
            WARNING,
            "no cut record names the topic of a table",
            "If tables have rows or changes, check whether pgsluice runs: pgsluice_lag_seconds, /readyz",
        )
        return
    yield Symptom(OK, f"the registry has the schema of the cut records, and they name {_names(topics)}")
    tables = {topic: tables_of(origin.registry.versions((f"{topic}-value",))) for topic in topics}
    lacking = [topic for topic in topics if not tables[topic]]
    if lacking:
        yield Symptom(
            FAILED,
            f"the registry has no schema for {_names(lacking)}",
            "Check whether it is the registry that pgsluice uses",
        )
    chosen = [topic for topic in topics if any(is_chosen(table, patient.tables) for table in tables[topic])]
    yield from _kept(brokers.settings([origin.transactions, *chosen], [_POLICY, _RETENTION]))


def _kept(settings: Mapping[str, Mapping[str, str]]) -> Iterator[Symptom]:
    """Check how long the topics keep their records."""
    compacted = sorted(name for name, one in settings.items() if "compact" in one[_POLICY])
    if compacted:
        yield Symptom(
            FAILED,
            f"compacted topics lose changes, so mirrors and change logs end with CountMismatch: {_names(compacted)}",
            "Set cleanup.policy=delete (in pgsluice: kafka.topics.config), and load their tables again with "
            "`pgsluice snapshot start`",
        )
    limited = {name: int(one[_RETENTION]) for name, one in settings.items() if int(one[_RETENTION]) >= 0}
    if limited:
        name, shortest = min(limited.items(), key=lambda item: item[1])
        yield Symptom(
            OK,
            f"{name} keeps records for {shortest / _DAY_MS:.3g} days: a mirror that is stopped for longer ends "
            "with RetentionGap",
        )


def _target(patient: Patient, target: Target, found: list[Entry]) -> Iterator[Symptom]:
    """Check the target, and add its last state to ``found``."""
    target.check_writable(patient.spark)
    entry = ControlTable(target.table(patient.spark, NAME)).last()
    if entry is None:
        yield Symptom(OK, f"{target.place} can be written to, and has no state of the database yet")
        return
    found.append(entry)
    yield Symptom(OK, f"{target.place} can be written to, and is at cut {entry.cut}")
    now = patient.brokers.topic_ids([patient.origin.transactions])[patient.origin.transactions]
    if entry.topic_id != now:
        yield Symptom(
            FAILED,
            f"{target.place} was filled from another topic {patient.origin.transactions}: the topic was deleted and "
            "created again, or bootstrap_servers or prefix was changed",
            "Check bootstrap_servers and prefix. If the topic is new, start a new target with a new checkpoint",
        )
    unfinished = [f"{name} ({one.state.status})" for name, one in entry.tables.items() if one.state.status != LOADED]
    if unfinished:
        yield Symptom(
            WARNING,
            f"these tables may differ from PostgreSQL's: {_names(unfinished)}",
            "If pgsluice does not load them now (`pgsluice snapshot status`), load them with `pgsluice snapshot start`",
        )


def _postgres(patient: Patient, postgres: str, found: Sequence[Entry]) -> Iterator[Symptom]:
    with connected(patient.spark, Source.parse(postgres)) as session:
        session.check_primary()
        yield Symptom(OK, f"PostgreSQL {session.version} answers, and is a primary")
        if not session.sees_all_sessions():
            yield Symptom(
                WARNING,
                "the role does not see what other roles' sessions do, so audits wait until their transactions end",
                "GRANT pg_read_all_stats to it",
            )
        names = [name for entry in found for name in entry.tables if is_chosen(name, patient.tables)]
        yield from _readable(session, sorted(names))


def _readable(session: Session, names: Sequence[str]) -> Iterator[Symptom]:
    relations = {name: session.relation(*postgres_name(name)) for name in names}
    there = {name: relation for name, relation in relations.items() if relation is not None}
    if absent := sorted(set(names) - set(there)):
        yield Symptom(WARNING, f"PostgreSQL does not have {_names(absent)}", "Leave out tables that were dropped")
    denied = {name: reason for name, (oid, _, _) in there.items() if (reason := session.denial(oid))}
    for name, reason in denied.items():
        yield Symptom(FAILED, f"an audit cannot read {name}: {reason}", "Grant SELECT, or use a role with BYPASSRLS")
    if there and not denied:
        yield Symptom(OK, f"the role can read {_names(sorted(there))}")


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
