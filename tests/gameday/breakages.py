"""The ways in which the game day breaks the pipeline, each with the repair that the runbook describes."""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka.admin import ConfigResource
from psycopg import Connection

from sandbox.postgres import Database
from tests.gameday.scene import GameDay
from tests.support.authority import expired
from tests.support.kafka import commit, configure, delete_topic, read_committed
from tests.support.weather import wait_until

Step = Callable[[GameDay], object]

NONE: tuple[str, ...] = ()
"""The empty ``reasons`` of a breakage after which pgsluice reports no message of the runbook."""

WENT_BACK = (
    "Changes before … are in Kafka, but the server's WAL ends at …",
    (
        "PostgreSQL has sent …. … was restored from a backup or a disk snapshot, or it is a copy of the server "
        "that was followed"
    ),
    "The last … delivered ended at …. The slot's position is before it, but the server did not send it again",
    "The transaction that ends at … has xid …, but the one delivered had xid …",
    "Position …, recorded as delivered, lies inside the commit record …",
)
"""The possible reasons after a restoration. Which one is reported depends on how much WAL the server has written since
the restoration."""


@dataclass(frozen=True, slots=True)
class Breakage:
    """A way to break the pipeline, and the repair.

    ``reasons`` are messages in the runbook. If there are any, pgsluice has to report one of them. ``repair``
    follows the advice in the runbook, and starts pgsluice if it had stopped. ``alerts`` says whether an alert has to
    fire. Nothing fires if pgsluice recovers before the alerting rules are evaluated.
    """

    name: str
    reasons: tuple[str, ...]
    cause: Step
    repair: Step
    alerts: bool = True


def nothing(_: GameDay) -> None:
    """Do nothing, because pgsluice continues by itself."""


def start(scene: GameDay) -> None:
    scene.daemon.start()


def then(*steps: Step) -> Step:
    def follow(scene: GameDay) -> None:
        for step in steps:
            step(scene)

    return follow


# -- PostgreSQL ----------------------------------------------------------------------------------


def drop_slot(scene: GameDay) -> None:
    scene.take_slot("SELECT pg_drop_replication_slot(%s)")


def advance_slot(scene: GameDay) -> None:
    """Advance the slot while pgsluice is stopped, as an administrator might do during an upgrade."""
    scene.daemon.stop_well()
    scene.pipeline.write()
    scene.take_slot("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())")
    scene.daemon.start(wait=False)


def invalidate_slot(scene: GameDay) -> None:
    """While pgsluice is stopped, write more WAL than the server may keep for the slot."""
    scene.daemon.stop_well()
    scene.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    for _ in range(4):
        scene.execute("SELECT pg_logical_emit_message(false, 'filler', 'x')", "SELECT pg_switch_wal()")
    scene.execute("CHECKPOINT", "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    scene.daemon.start(wait=False)


def replace_slot(scene: GameDay) -> None:
    assert scene.command("slot", "drop") == 0
    scene.adopt_and_load()


def drop_publication(scene: GameDay) -> None:
    scene.execute("DROP PUBLICATION pgsluice")


def create_publication(scene: GameDay) -> None:
    scene.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
    replace_slot(scene)


def change_password(scene: GameDay) -> None:
    scene.change_password("second")
    scene.end_walsender()


def tell_password(scene: GameDay) -> None:
    scene.tell_password("second")
    scene.daemon.start()


def take_replication(scene: GameDay) -> None:
    scene.execute("ALTER ROLE pgsluice NOREPLICATION")
    scene.end_walsender()


def give_replication(scene: GameDay) -> None:
    scene.execute("ALTER ROLE pgsluice REPLICATION")
    scene.daemon.start()


def show_expired(scene: GameDay) -> None:
    scene.show_certificate(*scene.authority.issue("server", ["localhost"], expires=expired()))
    scene.end_walsender()


def renew_certificate(scene: GameDay) -> None:
    scene.show_certificate(*scene.authority.issue("server", ["localhost"]))
    scene.daemon.start()


def restore_server(scene: GameDay) -> None:
    """Restore the server from a copy of its files. The copy lacks changes that have been delivered."""
    scene.pipeline.wait_until_confirmed()
    scene.server.take_snapshot()
    scene.pipeline.wait_for(state="streaming")
    scene.pipeline.write(20)
    scene.pipeline.wait_until_confirmed()
    scene.server.restore_snapshot()


def promote_standby(scene: GameDay) -> None:
    """Kill the primary, and promote a standby that has a copy of the slot. The proxy still connects to the primary."""
    primary = scene.server
    scene.standby = standby = scene.stack.enter_context(primary.standby())
    scene.pipeline.wait_for(state="streaming")
    with primary.connect() as source, standby.connect() as target:
        wait_until(lambda: is_copied(source, target, scene.pipeline.slot), "the slot to be copied")
    primary.kill()
    with standby.connect() as connection:
        connection.execute("SELECT pg_promote()")


def is_copied(source: Connection, target: Connection, slot: str) -> bool:
    source.execute("SELECT pg_log_standby_snapshot()")
    sql = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary"
    return target.execute(sql, [slot]).fetchone() is not None


def go_over(scene: GameDay) -> None:
    """Make the proxy connect to the former standby."""
    assert scene.standby is not None
    scene.proxy.target = (scene.standby.host, scene.standby.port)
    scene.pipeline.database = Database(scene.standby, "shop")


def stop_server(scene: GameDay) -> None:
    scene.server.stop()


def start_server(scene: GameDay) -> None:
    scene.server.start()


# -- Kafka ---------------------------------------------------------------------------------------


def delete(name: str) -> Step:
    return lambda scene: delete_topic(scene.kafka, scene.topic(name))


def delete_schemas(scene: GameDay) -> None:
    """Delete the topic of schemas, and end the session, because only the start of a session reads all schemas."""
    delete_topic(scene.kafka, scene.topic("schemas"))
    scene.end_walsender()


def accept(scene: GameDay) -> None:
    scene.accept()
    scene.daemon.restart()


def accept_and_load(scene: GameDay) -> None:
    scene.accept()
    scene.load()
    scene.daemon.restart()


def forge_checkpoint(scene: GameDay) -> None:
    """Write a checkpoint with the pipeline's key while pgsluice is stopped, so that it is the last checkpoint."""
    scene.daemon.stop_well()
    topic = scene.topic("checkpoint")
    last = read_committed(scene.kafka, topic)[-1].value()
    assert last is not None
    forged = json.dumps({**json.loads(last), "end_lsn": 2**40}).encode()
    commit(scene.kafka, topic, forged, key=scene.daemon.name.encode())
    scene.daemon.start(wait=False)


def lower_limit(scene: GameDay) -> None:
    limit(scene, "20000")
    scene.end_walsender()
    wait_until(lambda: scene.daemon.readiness("active") == 200, "a session that knows the limit")
    noise = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) AS i"
    scene.execute(f"INSERT INTO numbers VALUES (999999, ({noise}))")


def raise_limit(scene: GameDay) -> None:
    limit(scene, "1048588")
    scene.daemon.start()


def limit(scene: GameDay, size: str) -> None:
    topic = ConfigResource(ConfigResource.Type.TOPIC, scene.topic("public.numbers"))
    configure(scene.kafka, topic, "max.message.bytes", size)


# -- the process, its disk and its tables --------------------------------------------------------


def fill_disk(scene: GameDay) -> None:
    """Open a transaction that does not fit into ``buffer.spill_max``. It stays open until the repair."""
    connection = scene.open.enter_context(scene.pipeline.database.connect(autocommit=False))
    scene.pipeline.write_in(connection, 12_000, width=1000)


def allow_more(scene: GameDay) -> None:
    scene.daemon.settings["buffer"]["spill_max"] = "64MiB"
    scene.daemon.start()
    scene.open.close()


def add_table(scene: GameDay) -> None:
    """Create a table whose column cannot have the type that the rule in ``SETTINGS`` chooses."""
    scene.execute("CREATE TABLE orders (n int PRIMARY KEY, amount int)", "INSERT INTO orders VALUES (1, 1)")


def correct_rule(scene: GameDay) -> None:
    scene.daemon.stop_well()
    scene.daemon.settings["tables"] = {}
    scene.daemon.start()
    scene.load("public.orders")
    scene.assert_nothing_is_lost("orders")


def signalled(number: signal.Signals) -> Step:
    return lambda scene: scene.daemon.send(number)


BREAKAGES = (
    Breakage(
        "the slot is dropped",
        ("Slot … does not exist on this server, but changes before … were delivered from it",),
        drop_slot,
        GameDay.adopt_and_load,
    ),
    Breakage(
        "the slot is advanced",
        ("Slot … is at …, but only changes before … are in Kafka",),
        advance_slot,
        GameDay.adopt_and_load,
    ),
    Breakage(
        "the slot is invalidated", ("PostgreSQL has invalidated replication slot …",), invalidate_slot, replace_slot
    ),
    Breakage(
        "the publication is dropped",
        (
            "Publication … does not exist in this database",
            (
                "PostgreSQL decodes with the catalog as it was at the slot's position, so a publication created later "
                "does not count there"
            ),
        ),
        drop_publication,
        create_publication,
    ),
    Breakage(
        "the password is changed", ("PostgreSQL refused the connection: …. To do: …",), change_password, tell_password
    ),
    Breakage(
        "the role loses a right",
        ("PostgreSQL refused the connection: …. To do: …",),
        take_replication,
        give_replication,
    ),
    Breakage(
        "the server's certificate expires",
        ("PostgreSQL cannot be reached: …. To do: …",),
        show_expired,
        renew_certificate,
    ),
    Breakage(
        "the server is restored from a backup",
        WENT_BACK,
        restore_server,
        GameDay.adopt,
    ),
    Breakage("the server is stopped", NONE, stop_server, start_server),
    Breakage("a standby is promoted", NONE, promote_standby, go_over),
    Breakage("the walsender is killed", NONE, GameDay.end_walsender, nothing, alerts=False),
    Breakage(
        "a table's topic is deleted",
        ("Topic … was deleted. Consumers miss",),
        delete("public.numbers"),
        accept_and_load,
    ),
    Breakage(
        "the checkpoint's topic is deleted",
        ("Slot … exists, but there is no checkpoint for it in Kafka",),
        delete("checkpoint"),
        GameDay.adopt,
    ),
    Breakage("the cuts' topic is deleted", ("Topic … …, but cut … was committed",), delete("transactions"), accept),
    Breakage(
        "the registry is emptied",
        (
            "Topic … was deleted, or created again, while it was being read",
            "The schemas of topic … are not registered any more",
        ),
        delete_schemas,
        accept,
    ),
    Breakage(
        "another program writes a checkpoint",
        ("The last checkpoint is that of cut … but the cut records say that …",),
        forge_checkpoint,
        GameDay.adopt,
    ),
    Breakage("a row is larger than the topic takes", ("Kafka cannot take …",), lower_limit, raise_limit),
    Breakage("the broker hangs", NONE, lambda scene: scene.kafka.pause(), lambda scene: scene.kafka.resume()),
    Breakage("the broker is killed", NONE, lambda scene: scene.kafka.kill(), lambda scene: scene.kafka.start()),
    Breakage(
        "open transactions exceed spill_max",
        ("Transactions that have not committed yet need more than buffer.spill_max",),
        fill_disk,
        allow_more,
    ),
    Breakage("a rule does not fit a table", ("table …: column … of type … cannot be …",), add_table, correct_rule),
    Breakage("the daemon is killed", NONE, lambda scene: scene.daemon.kill(), start),
    Breakage("the daemon hangs", NONE, signalled(signal.SIGSTOP), signalled(signal.SIGCONT)),
)
