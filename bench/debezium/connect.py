"""A worker of Kafka Connect with Debezium's connector for PostgreSQL, exactly once and tuned.

docs/performance.md says what is tuned, and why.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html
https://kafka.apache.org/documentation/#connect_exactlyoncesource
"""

import json
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
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
from sandbox.process import Server, make_directory

HOST = "127.0.0.1"
START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 180
HTTP_TIMEOUT_S = 90
RETRY_S = 0.2
REBALANCING = (409, 500)
"""What the worker answers while its group is not complete."""

JVM_OPTIONS = (
    "-Xms256m",
    "-Xmx1g",  # half of what connect-distributed.sh gives it, which is enough for the queue below
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
"""Beside the heap, what kafka-run-class.sh sets."""

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
"""6 seconds is the shortest time that brokers allow by default before a worker counts as dead."""

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
    "topic.creation.default.partitions": "3",  # as many as pgsluice makes
}


def _converters(registry_url: str) -> dict[str, str]:
    """Return the settings of Avro in Confluent's format, as pgsluice writes it."""
    settings = {"converter": "io.confluent.connect.avro.AvroConverter", "converter.schema.registry.url": registry_url}
    return {f"{part}.{name}": value for part in ("key", "value") for name, value in settings.items()}


class Connect:
    """One worker and its one connector, called ``name`` as the topics' prefix; its directory goes with the context."""

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
        self._server: Server | None = None
        self._context = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as context:
            self._port = ReservedPort.any()
            context.callback(self._port.release)
            self._directory = make_directory(current_account())
            context.callback(shutil.rmtree, self._directory)
            context.callback(self._end)
            plugins = self._directory / "plugins"  # a directory of plugins has one of jars for each
            plugins.mkdir()
            (plugins / "debezium").symlink_to(jars.connector())
            (plugins / "avro").symlink_to(jars.converter())
            (self._directory / "worker.properties").write_text(_properties(self._worker()))
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    @property
    def pid(self) -> int:
        """The worker's pid; ServerError while it is down."""
        return self._running().pid

    def first_start(self) -> None:
        """Start the worker, and give it the connector, which it keeps in Kafka."""
        self.start()
        self._running().wait_until(lambda: self._ask("GET", "/connectors")[0] == 200, START_TIMEOUT_S)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            status, answer = self._ask("PUT", f"/connectors/{self.name}/config", self._settings)
            if status in {200, 201}:
                return
            if status not in REBALANCING or time.monotonic() > deadline:
                raise ServerError(
                    f"Kafka Connect answers {status} to the connector: {answer}\n{self.log_text()[-2000:]}"
                )
            time.sleep(RETRY_S)

    def start(self) -> None:
        """Start the worker, which goes on with its connector."""
        self._server = Server(self._command(), self._directory, self._log, current_account(), signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: an orderly end."""
        self._running().send(signal.SIGTERM)
        self._running().wait(STOP_TIMEOUT_S)
        self._forget()

    def kill(self) -> None:
        """``kill -9``."""
        self._running().kill()
        self._forget()

    def log_text(self) -> str:
        """Return what the worker has logged."""
        return self._log.read_text(errors="replace")

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _worker(self) -> dict[str, str]:
        """Return the worker's settings; topics that begin with the name go with those of the tables."""
        topics = {f"{kind}.storage.topic": f"{self.name}.connect.{kind}" for kind in ("config", "offset", "status")}
        return {
            **WORKER,
            **topics,
            "bootstrap.servers": self._kafka.bootstrap_servers,
            "group.id": f"{self.name}.connect",
            "listeners": f"http://{HOST}:{self._port.number}",
            "plugin.path": str(self._directory / "plugins"),
        }

    def _command(self) -> list[str]:
        options = [*JVM_OPTIONS, f"-Djava.io.tmpdir={self._directory}", "-cp", class_path(fetch("kafka"))]
        return [java(), *options, "org.apache.kafka.connect.cli.ConnectDistributed", "worker.properties"]

    def _ask(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Return the status code and the body of an answer of the worker's REST API; 0 while nobody answers."""
        connection = HTTPConnection(HOST, self._port.number, timeout=HTTP_TIMEOUT_S)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, HTTPException):
            return 0, ""
        finally:
            connection.close()

    def _running(self) -> Server:
        if self._server is None:
            raise ServerError("Kafka Connect is not running")
        return self._server

    def _forget(self) -> None:
        self._running().dismiss()
        self._server = None

    def _end(self) -> None:
        if self._server is not None:
            self.kill()


def _place(database: Database) -> dict[str, Any]:
    known = conninfo_to_dict(database.conninfo())
    return {
        "database.hostname": known["host"],
        "database.port": str(known["port"]),
        "database.user": known["user"],
        "database.password": "none",  # the server trusts everybody, and the connector wants one
        "database.dbname": known["dbname"],
    }


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
