"""Tests that killed drivers lose nothing, apply nothing twice, and never split a transaction."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.spark.driver import STEPS
from tests.spark.ledger import SETTINGS, SETUP, TABLES, Tally, compare, entries, run, torn
from tests.spark.shop import opened

pytestmark = pytest.mark.usefixtures("without_compilation")

KILLS = 2
"""The number of killed drivers. `make spark-faults` kills many more, at all steps."""


@pytest.mark.timeout(900)
def test_drivers_that_are_killed(spark: SparkSession, database: Database, kafka: Kafka, tmp_path: Path) -> None:
    seed = str(random.randrange(10**6))
    with opened(spark, database, kafka, "ledger", SETUP, SETTINGS) as shop:
        shop.wait_until_loaded(len(TABLES) + 1)
        tally = run(shop, tmp_path, KILLS, random.Random(seed), print)
        assert tally.is_clean, f"seed {seed}: {tally}"
        assert tally.kills == KILLS <= len(STEPS)
        assert tally.compared > len(TABLES)

        lake, noticed = tmp_path / "lake", Tally()
        compare(shop, lake, torn(entries(lake), "public.lines"), noticed, print)
        assert noticed.lost
        assert noticed.torn
