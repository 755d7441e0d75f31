"""The story that ``make demo`` tells: a function for each of its steps, in this order. Used by the command."""

import contextlib
import shutil
import sys
import time

from sandbox.demo import comparison
from sandbox.demo.cuts import CutReader
from sandbox.demo.events import count
from sandbox.demo.pipeline import PREFIX
from sandbox.demo.screen import GREEN, RED, Screen
from sandbox.demo.shop import (
    ACCESS,
    ACTS,
    ADD_COLUMN,
    DATABASE,
    KEYS,
    ORDER,
    ORDER_WITH_CHANNEL,
    SCHEMA,
    SHIP,
    STOCK,
    STOCK_ROWS,
    USE_COLUMN,
    Act,
    Shop,
    Visitors,
)
from sandbox.demo.spark_job import SparkJob
from sandbox.demo.stage import Stage
from sandbox.demo.watch import Watch
from sandbox.errors import SandboxError

TOPICS = [f"{PREFIX}.public.{table}" for table in KEYS]

FEW = 20
"""Orders, each a transaction, between the turns of a step."""

FEW_LINES = 8


def tell(*, keep: bool) -> bool:
    """Tell it; return whether everything that happened in PostgreSQL has arrived, once, as it was."""
    screen, began = Screen(), time.monotonic()
    screen.step("Real servers, on this machine")
    with Stage(screen) as stage, stage.postgres.connect(DATABASE) as connection:
        shop = Shop(connection)
        _set_up(screen, shop)
        _start_pgsluice(screen, stage)
        pgsluice = stage.pgsluice
        with CutReader(stage.kafka.bootstrap_servers, pgsluice.url, PREFIX, pgsluice.require_alive) as reader:
            watch = Watch(screen, reader)
            _load(screen, watch)
            for act in ACTS:
                _play(screen, shop, watch, act)
            _add_column(screen, stage, shop, watch)
            _kill(screen, stage, shop, watch)
            spark = _mirror(screen, stage)
            equal = _compare(screen, shop, spark)
            verdict = _conclude(screen, watch, time.monotonic() - began, equal=equal)
            if keep:
                _stay(screen, stage, spark, watch)
        pgsluice.stop_well()
    return verdict


def _set_up(screen: Screen, shop: Shop) -> None:
    screen.step(
        "A shop in PostgreSQL, with rows",
        "Its owner needs to do three things for pgsluice: the last three statements.",
    )
    screen.typed(f"{SCHEMA}\n{STOCK}\n{ACCESS}")
    shop.set_up()


def _start_pgsluice(screen: Screen, stage: Stage) -> None:
    pgsluice = stage.pgsluice
    screen.step("pgsluice: a configuration file, a check, a daemon")
    screen.typed(pgsluice.config_file.read_text())
    screen.command(pgsluice.command("check"))
    screen.say(pgsluice.check())
    screen.command(pgsluice.command("run"))
    pgsluice.start()
    screen.say(f"streaming; it shows itself at {pgsluice.url}")


def _load(screen: Screen, watch: Watch) -> None:
    screen.step(
        "The rows that were there before",
        "pgsluice reads each table once, in short transactions, and goes on to deliver changes meanwhile.",
    )
    watch.until_loaded(len(KEYS), FEW_LINES)
    if watch.tally.events != STOCK_ROWS:
        raise SandboxError(f"{watch.tally.events:,} rows arrived instead of {STOCK_ROWS:,}")


def _play(screen: Screen, shop: Shop, watch: Watch, act: Act) -> None:
    screen.step(act.title, act.remark)
    screen.typed("\n".join(map(str, act.transactions)) + "\n\n")
    watch.until(shop.run(act.transactions))


def _add_column(screen: Screen, stage: Stage, shop: Shop, watch: Watch) -> None:
    screen.step("A column is added while orders come in", "Topics go on; the new schema is in the registry first.")
    with Visitors(lambda: stage.postgres.connect(DATABASE), ORDER) as visitors:
        visitors.wait_for(FEW)
        screen.typed(str(ADD_COLUMN))
        shop.run([ADD_COLUMN])
        visitors.statement = ORDER_WITH_CHANNEL
        visitors.wait_for(FEW)
    screen.typed(f"{USE_COLUMN}\n\n")
    watch.until(shop.run([USE_COLUMN]), FEW_LINES)


def _kill(screen: Screen, stage: Stage, shop: Shop, watch: Watch) -> None:
    screen.step("kill -9", "Orders come in all the time. Each of them is in the topics once.")
    before = watch.tally.events
    with Visitors(lambda: stage.postgres.connect(DATABASE), ORDER_WITH_CHANNEL) as visitors:
        visitors.wait_for(FEW)
        screen.command(["kill", "-9", str(stage.pgsluice.pid)])
        stage.pgsluice.kill()
        visitors.wait_for(FEW)
        screen.command(stage.pgsluice.command("run"))
        stage.pgsluice.start()
        visitors.wait_for(FEW)
    print()
    watch.until(shop.run([SHIP]), FEW_LINES)
    arrived = watch.tally.events - before - 1  # SHIP is the other
    screen.say(f"{count(visitors.orders, 'order')} were placed, {count(arrived, 'insert')} arrived")
    if visitors.orders != arrived:
        raise SandboxError("not every order arrived once")


def _mirror(screen: Screen, stage: Stage) -> SparkJob:
    screen.step(
        "Spark reads the topics and works out the tables", "A log of all changes, and of each key the latest row."
    )
    servers, registry = stage.kafka.bootstrap_servers, stage.pgsluice.url
    spark = SparkJob(stage.directory / "mirror", servers, registry, f"{PREFIX}.transactions", TOPICS)
    screen.command(spark.command)
    spark.run(screen.say)
    return spark


def _compare(screen: Screen, shop: Shop, spark: SparkJob) -> bool:
    screen.step(
        "PostgreSQL and Spark, side by side",
        "Every row and every value is compared; a few rows of each table are shown.",
    )
    mirrors = {table: spark.directory / topic / "rows" for table, topic in zip(KEYS, TOPICS, strict=True)}
    comparisons = [
        comparison.compare(table, KEYS[table], shop.rows(table), comparison.spark_rows(mirror))
        for table, mirror in mirrors.items()
    ]
    for line, equal in comparison.lines(comparisons, screen.width):
        screen.say(line, None if equal else RED)
    return all(one.equal for one in comparisons)


def _conclude(screen: Screen, watch: Watch, seconds: float, *, equal: bool) -> bool:
    problems = [*watch.tally.problems, *([] if equal else ["PostgreSQL and Spark differ"])]
    screen.say(f"\nRead from Kafka: {watch.tally}.")
    if problems:
        screen.say("\n".join(problems), RED)
    else:
        screen.say(f"Every change once, every cut whole, all values as in PostgreSQL. {seconds:.0f} seconds.", GREEN)
    return not problems


def _stay(screen: Screen, stage: Stage, spark: SparkJob, watch: Watch) -> None:
    pgsluice, shop = stage.pgsluice, stage.postgres.conninfo(DATABASE)
    screen.step("Yours, until Ctrl-C", "What you change in the shop appears here; Spark takes in what is new.")
    screen.say(f"PostgreSQL  {shop}")
    screen.say(f"Kafka       {stage.kafka.bootstrap_servers}")
    screen.say(f"pgsluice    {pgsluice.url}, and there /status, /metrics, /subjects")
    for command in (_sql_prompt(shop), pgsluice.command("status"), spark.command):
        screen.command(command)
    print(flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        watch.forever()


def _sql_prompt(conninfo: str) -> list[str]:
    if shutil.which("psql"):
        return ["psql", conninfo]
    return [sys.executable, "-c", f"from sandbox.prompt import run; run({conninfo!r}, None)"]
