"""The machine and the versions with which the results were measured."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka
import psycopg
from psycopg import pq

from bench.results import Moment
from bench.servers import BROKER, BROKER_JAVA, SERVER
from sandbox.artifacts import fetch
from sandbox.postgres import Postgres
from sandbox.prerequisites import java


def describe(postgres: Postgres, recv_logical: str | None) -> dict[str, str]:
    """Return the report's description of the machine. ``recv_logical`` is the version of pg_recvlogical."""
    with postgres.connect() as connection:
        server = connection.execute("SHOW server_version").fetchone()
    assert server is not None
    return {
        "processor": f"{os.cpu_count()} x {processor(Path('/proc/cpuinfo').read_text())}",
        "memory": f"{memory_gib(Path('/proc/meminfo').read_text()):.0f} GiB",
        "kernel": platform.release(),
        "PostgreSQL": f"{server[0]}, fsync off, {_in_words(SERVER)}",
        "Kafka": f"{_kafka_version()}, one broker, {_in_words(BROKER)}, Java with {' '.join(BROKER_JAVA)}",
        "Python": platform.python_version(),
        "librdkafka": f"{confluent_kafka.libversion()[0]}, confluent-kafka {confluent_kafka.version()}",
        "libpq": f"{pq.version() // 10000}.{pq.version() % 10000}, psycopg {psycopg.__version__}",
        **({"pg_recvlogical": recv_logical} if recv_logical else {}),
    }


def _in_words(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def processor(cpuinfo: str) -> str:
    """Return the model of the processor from the text of /proc/cpuinfo."""
    found = re.search(r"^model name\s*: (.+)$", cpuinfo, re.MULTILINE)
    return found[1] if found else platform.machine()


def memory_gib(meminfo: str) -> float:
    """Return the size of memory from the text of /proc/meminfo."""
    found = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.MULTILINE)
    assert found, "every Linux has this line"
    return int(found[1]) / 1024**2


def _kafka_version() -> str:
    (jar,) = fetch("kafka").glob("kafka-clients-*.jar")
    return jar.stem.removeprefix("kafka-clients-")


def java_version() -> str:
    """Return the version of the Java that runs the broker."""
    asked = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True)
    found = re.search(r'version "(.+?)"', asked.stderr)
    assert found, "every Java prints this"
    return found[1]


def begin() -> Moment:
    """Return the current moment as the beginning of a measurement."""
    average = os.getloadavg()[0]
    return Moment(datetime.now(UTC).isoformat(timespec="seconds"), (average, average))


def end(moment: Moment) -> Moment:
    """Return ``moment`` with the load average at the end of the measurement."""
    return Moment(moment.begun, (moment.load_average[0], os.getloadavg()[0]))
