"""The names of the samples that a daemon exposes, and a pipeline that Prometheus can scrape."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from prometheus_client import CollectorRegistry

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.weather import Pipeline, configured, prepare

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}


def samples_of(registry: CollectorRegistry) -> set[str]:
    """Return the names of all samples that a registry can have, including those that do not exist yet."""
    return {family.name + suffix for family in registry.collect() for suffix in _SUFFIXES.get(family.type, ("",))}


@contextmanager
def run_pipeline(database: Database, kafka: Kafka) -> Iterator[Pipeline]:
    """Run a daemon that streams a table of numbers."""
    prepare(database)
    settings = configured({"snapshot": {"mode": "initial"}})
    daemon = Daemon(f"p{uuid4().hex[:10]}", database.conninfo(), kafka.bootstrap_servers, settings)
    with daemon:
        yield Pipeline(database, kafka, daemon)
