"""pgsluice and Debezium behind one interface, which starts, queries and stops them. Both write Avro."""

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http.client import HTTPConnection
from io import BytesIO
from typing import Any, Protocol
from urllib.parse import urlsplit

import fastavro

from bench.contenders import COMPILED
from bench.debezium.connect import Connect
from bench.servers import daemon
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database

Decode = Callable[[bytes], Mapping[str, Any]]
"""Takes a record's value, and returns the event."""

HEADER = struct.Struct(">bI")
"""The header of Confluent's Avro format: a zero byte, and the id of the schema."""

HTTP_TIMEOUT_S = 30


class Process(Protocol):
    """A deployment with one slot and one prefix of topics."""

    name: str
    """The topics' prefix."""

    @property
    def pid(self) -> int:
        """The pid of the process that delivers the events."""

    def first_start(self) -> None:
        """Start streaming from the slot's position."""

    def start(self) -> None:
        """Start the process again after it has ended."""

    def stop(self) -> object:
        """Send SIGTERM, and wait until the process has ended."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def log_text(self) -> str:
        """Return the log of the process."""


Make = Callable[[str, Database, Kafka, str], AbstractContextManager[tuple[Process, Decode]]]
"""Takes the name, the database, the broker and the slot. Yields a process that has not been started, and the decoder of
its events."""


class Pgsluice:
    """The daemon with its default settings and the compiled encoder."""

    def __init__(self, process: Daemon) -> None:
        self.name = process.name
        self._process = process
        self.start, self.stop, self.kill = process.start, process.stop, process.kill
        self.log_text = process.log_text

    @property
    def pid(self) -> int:
        """The daemon's pid."""
        return self._process.pid

    def first_start(self) -> None:
        """Start streaming from the slot's position."""
        self._process.start("--adopt-slot")


def contenders(registry_url: str) -> dict[str, Make]:
    """Return all contenders by name. Debezium uses the schema registry at ``registry_url``."""
    return {"pgsluice": _pgsluice, "Debezium": partial(_debezium, registry_url)}


@contextmanager
def _pgsluice(name: str, database: Database, kafka: Kafka, slot: str) -> Iterator[tuple[Process, Decode]]:
    with daemon(name, database, kafka, "exactly_once", COMPILED, slot) as process:
        yield Pgsluice(process), _decoder(process.url)


@contextmanager
def _debezium(
    registry_url: str, name: str, database: Database, kafka: Kafka, slot: str
) -> Iterator[tuple[Process, Decode]]:
    with Connect(name, database, kafka, slot, registry_url) as process:
        yield process, _decoder(registry_url)


def _decoder(registry_url: str) -> Decode:
    """Return a decoder that uses fastavro and the schemas of a registry."""
    schemas: dict[int, Any] = {}

    def decode(value: bytes) -> Mapping[str, Any]:
        _, number = HEADER.unpack_from(value)
        if number not in schemas:
            schemas[number] = fastavro.parse_schema(_schema(registry_url, number))
        found: Mapping[str, Any] = fastavro.schemaless_reader(
            BytesIO(value[HEADER.size :]), schemas[number], None, return_record_name=False
        )
        return found

    return decode


def _schema(registry_url: str, number: int) -> Any:  # noqa: ANN401 - a schema is any JSON
    """Return the schema with this id.

    https://docs.confluent.io/platform/current/schema-registry/develop/api.html#get--schemas-ids-int-%20id
    """
    url = urlsplit(registry_url)
    assert url.hostname is not None
    connection = HTTPConnection(url.hostname, url.port, timeout=HTTP_TIMEOUT_S)
    connection.request("GET", f"{url.path}/schemas/ids/{number}")
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"the registry answers {answer.status} to the request for schema {number}")
    return json.loads(json.loads(body)["schema"])
