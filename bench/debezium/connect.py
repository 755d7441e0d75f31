"""A worker of Kafka Connect with Debezium's connector for PostgreSQL, with exactly-once delivery and tuned settings.

docs/performance.md explains the tuning.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html
https://kafka.apache.org/documentation/#connect_exactlyoncesource
"""

import json
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

from psycopg.conninfo import conninfo_to_dict

from bench.debezium import jars
from bench.loads import PUBLICATION
from sandbox.account import current_account
from sandbox.artifacts import fetch
from sandbox.errors import ServerError
from sandbox.java import class_path
from sandbox.kafka import Kafka
from sandbox.ports import ReservedPort
from sandbox.postgres import Database
from sandbox.prerequisites import java
from sandbox.process import make_directory
from sandbox.program import HOST, HTTP_OK, Program

START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 180
RETRY_S = 0.2
JSON = {"Content-Type": "application/json"}
REBALANCING = (409, 500)
"""Status codes with which the worker answers while its group is rebalancing."""

JVM_OPTIONS = (
    "-Xms256m",
    "-Xmx1g",  # half of the default in connect-distributed.sh, but enough for ``max.queue.size`` below
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
"""The size of the heap, the options that kafka-run-class.sh sets for speed, and options about files and logging."""

WORKER = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "exactly.once.source.support": "enabled",
    "topic.creation.enable": "true",
    "scheduled.rebalance.max.delay.ms": "0",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "2000",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.replication.factor": "1",
    "status.storage.partitions": "1",
}
"""``session.timeout.ms`` is the time without a heartbeat after which a worker is considered dead. By default, brokers
allow no less than 6 seconds."""

CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": "1",
    "plugin.name": "pgoutput",
    "publication.name": PUBLICATION,
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "exactly.once.support": "required",
    "poll.interval.ms": "10",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "producer.override.acks": "all",
    "producer.override.compression.type": "lz4",
    "producer.override.linger.ms": "5",
    "producer.override.batch.size": "262144",
    "topic.creation.default.replication.factor": "1",
    "topic.creation.default.partitions": "3",  # as many as pgsluice creates
}


def _converters(registry_url: str) -> dict[str, str]:
    """Return the settings for Avro in Confluent's format, which pgsluice also writes."""
    settings = {"converter": "io.confluent.connect.avro.AvroConverter", "converter.schema.registry.url": registry_url}
    return {f"{part}.{name}": value for part in ("key", "value") for name, value in settings.items()}


class Connect(Program):
    """One worker with one connector.

    ``name`` is the name of the worker and of the connector, and the prefix of the topics. The worker's directory is
    deleted when the context ends.
    """

    what = "Kafka Connect"
    http_timeout_s = 90

    def __init__(self, name: str, database: Database, kafka: Kafka, slot: str, registry_url: str) -> None:
        self.name = name
        self._kafka = kafka
        self._settings = {
            **CONNECTOR,
            **_place(database),
            **_converters(registry_url),
            "topic.prefix": name,
            "slot.name": slot,
        }
        self._context = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as context:
            port = ReservedPort.any()
            context.callback(port.release)
            directory = make_directory(current_account())
            context.callback(shutil.rmtree, directory)
            self.place(directory, port)
            context.callback(self.end)
            plugins = directory / "plugins"  # has one subdirectory of jars for each plugin
            plugins.mkdir()
            (plugins / "debezium").symlink_to(jars.connector())
            (plugins / "avro").symlink_to(jars.converter())
            (directory / "worker.properties").write_text(_properties(self._worker()))
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def first_start(self) -> None:
        """Start the worker, and create the connector. The worker stores the connector's settings in Kafka."""
        self.start()
        self.wait_until(lambda: self._get("/connectors")[0] == HTTP_OK, START_TIMEOUT_S)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            status, answer = self._ask("PUT", f"/connectors/{self.name}/config", json.dumps(self._settings), JSON)
            if status in {200, 201}:
                return
            if status not in REBALANCING or time.monotonic() > deadline:
                raise ServerError(
                    f"Kafka Connect does not accept the connector: {status} {answer}\n{self.log_text()[-2000:]}"
                )
            time.sleep(RETRY_S)

    def start(self) -> None:
        """Start the worker. If Kafka already has a connector's settings, the worker continues with that connector."""
        self.launch(self._command())

    def stop(self) -> int:
        """Send SIGTERM, and wait until the worker has ended. A worker takes longer to end than pgsluice's daemon."""
        self.send(signal.SIGTERM)
        return self.wait(STOP_TIMEOUT_S)

    def _worker(self) -> dict[str, str]:
        """Return the worker's settings.

        The names of the worker's own topics begin with the worker's name, so ``delete_topics`` also deletes them.
        """
        topics = {f"{kind}.storage.topic": f"{self.name}.connect.{kind}" for kind in ("config", "offset", "status")}
        return {
            **WORKER,
            **topics,
            "bootstrap.servers": self._kafka.bootstrap_servers,
            "group.id": f"{self.name}.connect",
            "listeners": f"http://{HOST}:{self._port.number}",
            "plugin.path": str(self.directory / "plugins"),
        }

    def _command(self) -> list[str]:
        options = [*JVM_OPTIONS, f"-Djava.io.tmpdir={self.directory}", "-cp", class_path(fetch("kafka"))]
        return [java(), *options, "org.apache.kafka.connect.cli.ConnectDistributed", "worker.properties"]


def _place(database: Database) -> dict[str, Any]:
    known = conninfo_to_dict(database.conninfo())
    return {
        "database.hostname": known["host"],
        "database.port": str(known["port"]),
        "database.user": known["user"],
        "database.password": "none",  # the connector requires a password, although the server does not ask for one
        "database.dbname": known["dbname"],
    }


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
