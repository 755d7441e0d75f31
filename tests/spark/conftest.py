"""One Spark session for all tests of this directory."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sandbox.kafka import Kafka
from tests.spark.handmade import Handmade
from tests.spark.session import INTERPRETED, new_session
from tests.support.order import begin_with

HERE = Path(__file__).parent

LONGEST = ("query", "audit", "mirror", "ledger", "docs", "latest", "maintenance", "cli")
"""The files whose tests take minutes. Those that take longest come first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files. Ignore warnings about sockets that PySpark does not close. Other warnings remain errors."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
    begin_with(items, HERE, LONGEST)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Provide the session, which keeps its files in its own directory."""
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
    gc.collect()  # now, while warnings about unclosed sockets are still ignored


@pytest.fixture
def make(spark: SparkSession, kafka: Kafka) -> Callable[..., Handmade]:
    """Provide a function that creates a pipeline with some tables, whose topics the test writes itself."""
    return lambda *tables, **options: Handmade(spark, kafka, *tables, **options)


@pytest.fixture(scope="module")
def without_compilation(spark: SparkSession) -> Iterator[None]:
    """Make Spark interpret its plans, which is faster for many plans with few rows."""
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
    yield
    for name in INTERPRETED:
        spark.conf.unset(name)
