"""The steps of ``make demo``. Each step is a function, and ``tell`` calls them in order."""

import contextlib
import shutil
import sys
import time

from sandbox.demo import comparison
from sandbox.demo.cuts import CutReader
from sandbox.demo.events import count
from sandbox.demo.mirror import Mirror
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
    ROLE,
    SCHEMA,
    SHIP,
    STOCK,
    STOCK_ROWS,
    USE_COLUMN,
    Act,
    Shop,
    Visitors,
)
from sandbox.demo.stage import Stage
from sandbox.demo.watch import Watch
from sandbox.errors import SandboxError

FEW = 20
"""The number of orders that are placed between two actions of a step."""

FEW_LINES = 8


def tell(*, keep: bool) -> bool:
    """Run all steps. Return whether every change in PostgreSQL has arrived once and unchanged."""
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
            with _mirror(screen, stage) as mirror:
                for act in ACTS:
                    _play(screen, shop, watch, act)
                _add_column(screen, stage, shop, watch)
                _kill(screen, stage, shop, watch)
                equal = _compare(screen, shop, mirror, watch.cut)
                audited = _audit(screen, mirror)
                verdict = _conclude(screen, watch, time.monotonic() - began, equal=equal, audited=audited)
                if keep:
                    _stay(screen, stage, mirror, watch)
        pgsluice.stop_well()
    return verdict


def _set_up(screen: Screen, shop: Shop) -> None:
    screen.step(
        "A shop in PostgreSQL, with rows",
        "The last three statements are all that the owner of the database has to do for pgsluice.",
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
    screen.say(f"streaming; its status page is at {pgsluice.url}")


def _load(screen: Screen, watch: Watch) -> None:
    screen.step(
        "The rows that existed before",
        "pgsluice reads each table once, in short transactions, while it continues to deliver changes.",
    )
    watch.until_loaded(len(KEYS), FEW_LINES)
    if watch.tally.events != STOCK_ROWS:
        raise SandboxError(f"{watch.tally.events:,} rows arrived instead of {STOCK_ROWS:,}")


def _play(screen: Screen, shop: Shop, watch: Watch, act: Act) -> None:
    screen.step(act.title, act.remark)
    screen.typed("\n".join(map(str, act.transactions)) + "\n\n")
    watch.until(shop.run(act.transactions))


def _add_column(screen: Screen, stage: Stage, shop: Shop, watch: Watch) -> None:
    screen.step(
        "A column is added while orders come in",
        "The topics stay the same. The new schema is in the registry before the first event that uses it.",
    )
    with Visitors(lambda: stage.postgres.connect(DATABASE), ORDER) as visitors:
        visitors.wait_for(FEW)
        screen.typed(str(ADD_COLUMN))
        shop.run([ADD_COLUMN])
        visitors.statement = ORDER_WITH_CHANNEL
        visitors.wait_for(FEW)
    screen.typed(f"{USE_COLUMN}\n\n")
    watch.until(shop.run([USE_COLUMN]), FEW_LINES)


def _kill(screen: Screen, stage: Stage, shop: Shop, watch: Watch) -> None:
    screen.step("kill -9", "Orders come in all the time. Each of them must be in the topics exactly once.")
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
    arrived = watch.tally.events - before - 1  # the one other event is the update SHIP
    screen.say(f"{count(visitors.orders, 'order')} were placed, {count(arrived, 'insert')} arrived")
    if visitors.orders != arrived:
        raise SandboxError("not every order arrived exactly once")


def _mirror(screen: Screen, stage: Stage) -> Mirror:
    screen.step(
        "A mirror of the tables in Delta Lake, which a Spark query keeps up to date from now on",
        "The query runs during all further steps. It applies whole transactions across all tables, each exactly once.",
    )
    servers, registry = stage.kafka.bootstrap_servers, stage.pgsluice.url
    mirror = Mirror(stage.directory / "mirror", PREFIX, servers, registry, stage.postgres.conninfo(DATABASE, user=ROLE))
    screen.typed(mirror.shown)
    screen.command(mirror.command("mirror"))
    mirror.start()
    return mirror


def _compare(screen: Screen, shop: Shop, mirror: Mirror, cut: int) -> bool:
    screen.step(
        "PostgreSQL and the mirror, side by side",
        "The mirror is read without Spark. Every row and every value is compared; a few rows of each table are shown.",
    )
    mirror.wait_until(cut)
    comparisons = [comparison.compare(table, KEYS[table], shop.rows(table), mirror.rows(table)) for table in KEYS]
    for line, equal in comparison.lines(comparisons, screen.width):
        screen.say(line, None if equal else RED)
    return all(one.equal for one in comparisons)


def _audit(screen: Screen, mirror: Mirror) -> bool:
    screen.step(
        "How users check a mirror: an audit", "An audit also works while orders come in, and on tables of any size."
    )
    screen.command(mirror.command("audit"))
    return mirror.audit(screen.say)


def _conclude(screen: Screen, watch: Watch, seconds: float, *, equal: bool, audited: bool) -> bool:
    found = {"PostgreSQL and the mirror differ": equal, "the audit did not find all tables equal": audited}
    problems = [*watch.tally.problems, *(text for text, is_well in found.items() if not is_well)]
    screen.say(f"\nRead from Kafka: {watch.tally}.")
    if problems:
        screen.say("\n".join(problems), RED)
    else:
        screen.say(f"Every change once, every cut whole, all values as in PostgreSQL. {seconds:.0f} seconds.", GREEN)
    return not problems


def _stay(screen: Screen, stage: Stage, mirror: Mirror, watch: Watch) -> None:
    pgsluice, shop = stage.pgsluice, stage.postgres.conninfo(DATABASE)
    screen.step("All servers keep running until Ctrl-C", "What you change in the shop appears here and in the mirror.")
    screen.say(f"PostgreSQL  {shop}")
    screen.say(f"Kafka       {stage.kafka.bootstrap_servers}")
    screen.say(f"pgsluice    {pgsluice.url}, and there /status, /metrics, /subjects")
    for command in (_sql_prompt(shop), pgsluice.command("status"), mirror.command("audit")):
        screen.command(command)
    print(flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        watch.forever()


def _sql_prompt(conninfo: str) -> list[str]:
    if shutil.which("psql"):
        return ["psql", conninfo]
    return [sys.executable, "-c", f"from sandbox.prompt import run; run({conninfo!r}, None)"]
