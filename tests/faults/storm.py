"""A storm: one pipeline with a workload and a script of faults. An independent reader checks the result at the end.

The storms of all server versions share one ``Cluster``. Each storm has a proxy in front of every broker, and one in
front of its PostgreSQL server. ``test_faults`` runs storms, and ``python -m tests.faults`` runs more of them.
"""

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from pgsluice.commands import Verb
from pgsluice.pipeline.load_report import UNFINISHED
from sandbox.broker import Listener
from sandbox.daemon import Daemon
from sandbox.errors import ServerError
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from sandbox.program import HTTP_OK
from tests.faults.checker import Checker, Checkpoint, Contents, Tally, check_positions
from tests.faults.commander import Commander
from tests.faults.daemon import LOAD_STEPS
from tests.faults.restoration import Restoration
from tests.faults.script import (
    AT_A_MOMENT,
    BROKER_ISOLATED,
    BROKER_KILLED,
    BROKERS,
    FIRST_STEPS,
    FOREIGN_TRANSACTION,
    LIFE_MAX_S,
    Death,
    Fault,
    Loading,
    Mode,
    Options,
    Order,
    Restore,
)
from tests.faults.victim import Victim
from tests.faults.witness import Truth, committed
from tests.faults.workload import FILLED, PUBLICATION, SKIPPED, WITHOUT_KEY, Workload
from tests.support.links import Links
from tests.support.proxy import BOTH, Direction, Proxy
from tests.support.reader import CONSUMER, Reader
from tests.support.replay import Replay

CALM_S = 120.0
"""How long the daemon may take to be ready after the last fault."""

PARTITIONS = 2

LOADED_S = 120.0
"""The storm fails if the daemon neither delivers changes nor loads rows for this long."""

BESIDE_WORK_S = 15.0
"""How long the workload continues after the last fault, while tables are loaded. Not all loads can end in this time,
because prepared transactions of the workload lock some tables."""

POLL_S = 0.02
SAMPLE_S = 0.05

SERVER_SETTINGS = {
    "logical_decoding_work_mem": "64kB",
    "max_prepared_transactions": "50",
    "deadlock_timeout": "100ms",
    "log_min_messages": "fatal",
}


FOREIGN_TIMEOUT_S = 10
"""The timeout of the requests and the transactions of the foreign program, which writes to the pipeline's topics.

The brokers abort a transaction after this time.
"""
FOREIGN_PAUSE_S = 0.2
"""How long the foreign program keeps each transaction open."""
STREAMING_S = 15.0
"""How long the foreign program waits for the daemon to stream. Some daemons die before they stream."""


@dataclass(frozen=True)
class StormSetup:
    """The configuration of a storm's daemon. ``without`` names the rule of pgsluice that is disabled, or is empty."""

    options: Options
    mode: Mode
    loading: Loading
    without: str = ""


@dataclass(frozen=True)
class Fate:
    """The script of one pipeline."""

    deaths: Sequence[Death]
    weather: Sequence[Fault]
    restore: Restore | None
    orders: Sequence[Order]


def settings(setup: StormSetup) -> dict[str, dict[str, Any]]:
    """Return the daemon's settings. Limits are low, and status updates are as frequent as possible."""
    return {
        "postgres": {"publications": [PUBLICATION], "status_interval": "100ms", **asdict(setup.options)},
        "kafka": {"topics": {"partitions": PARTITIONS}},
        "delivery": {"mode": setup.mode, "heartbeat": "200ms", "cut_bytes": "128KiB", "cut_interval": "10ms"},
        "buffer": {"memory_max": "1MiB"},
        "snapshot": asdict(setup.loading),
        "tables": {"rules": [{"match": f"public.{name}", "snapshot": "skip"} for name in SKIPPED]},
    }


@dataclass
class Report:
    """The events and the results of a run."""

    options: Counter[str] = field(default_factory=Counter)
    """The number of pipelines with each option."""
    kills: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)

    def add(self, other: "Report") -> None:
        """Add the figures of another run."""
        self.options += other.options
        self.kills += other.kills
        self.faults += other.faults
        self.tally.add(other.tally)

    def __str__(self) -> str:
        tally = self.tally
        lines = [
            f"pipelines with {', '.join(f'{option}: {count}' for option, count in sorted(self.options.items()))}",
            f"{sum(self.kills.values())} kills:",
            *(f"  {count:5} {kind}" for kind, count in self.kills.most_common()),
        ]
        lines += [f"{sum(self.faults.values())} other faults:"]
        lines += [f"  {count:5} {kind}" for kind, count in self.faults.most_common()]
        figures = {name: value for name, value in vars(tally).items() if name != "problems"}
        lines += [f"{name.replace('_', ' ')} {value}" for name, value in figures.items()]
        return "\n".join(lines)


class Cluster:
    """Three brokers. Each broker has a separate proxy for each pipeline.

    At most one broker at a time is killed, frozen or isolated.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.proxies: dict[str, dict[int, Proxy]] = {}
        self._links = Links()
        self._context = ExitStack()

    def __enter__(self) -> Self:
        nodes = range(1, BROKERS + 1)
        with ExitStack() as context:
            for name in self._names:
                self.proxies[name] = {node: context.enter_context(Proxy()) for node in nodes}
            listeners = [
                Listener(name, advertised={node: proxy.address for node, proxy in proxies.items()})
                for name, proxies in self.proxies.items()
            ]
            self.kafka = context.enter_context(Kafka(BROKERS, listeners=listeners, forward=self._links.forward))
            for name, proxies in self.proxies.items():
                for proxy, address in zip(proxies.values(), self.kafka.addresses(name).split(","), strict=True):
                    host, _, port = address.partition(":")
                    proxy.target = (host, int(port))
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def bootstrap_servers(self, name: str) -> str:
        """Return the addresses of a pipeline's proxies."""
        return ",".join(proxy.address for proxy in self.proxies[name].values())

    def suffer(self, faults: Sequence[Fault], report: Report, stop: threading.Event) -> None:
        """Carry out the brokers' faults, one after the other. At the end, all brokers run and are in sync."""
        for fault in faults:
            stop.wait(fault.pause)
            if fault.kind == BROKER_KILLED:
                self.kafka.kill(fault.broker)
                report.kills[fault.kind] += 1
                stop.wait(fault.seconds)
                self.kafka.start(fault.broker)
            elif fault.kind == BROKER_ISOLATED:
                self._isolate(fault, report, stop)
            else:
                self.kafka.pause(fault.broker)
                report.faults[fault.kind] += 1
                stop.wait(fault.seconds)
                self.kafka.resume(fault.broker)
        if not stop.is_set():
            # A broker that was isolated may still be outdated, and would show outdated logs to the independent reader.
            self.kafka.wait_until_in_sync()

    def _isolate(self, fault: Fault, report: Report, stop: threading.Event) -> None:
        """Isolate the fault's broker. If it leads no partition, for example after a kill, isolate another broker."""
        nodes = [(fault.broker + offset - 1) % BROKERS + 1 for offset in range(BROKERS)]
        node = next((node for node in nodes if self.kafka.led(node)), fault.broker)
        self._links.isolate(node, silently=fault.count % 2 == 0)
        try:
            stop.wait(fault.seconds)
            rivals = self.kafka.rivals(node)
        finally:
            self._links.heal()
        report.faults[f"{fault.kind}{' while others led its partitions' if rivals else ''}"] += 1


class Positions:
    """Samples the slot's position while a ``with`` block runs."""

    def __init__(self, database: Database, slot: str) -> None:
        self._database = database
        self._slot = slot
        self.samples: list[tuple[float, int]] = []
        """The time and the position of each sample."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            with suppress(psycopg.Error), self._database.connect() as connection:
                while not self._stop.wait(SAMPLE_S):
                    position = confirmed_lsn(connection, self._slot)
                    if position is not None:
                        self.samples.append((time.time(), position))


class Storm:
    """One pipeline on one server, from its first start to the final check."""

    def __init__(self, database: Database, cluster: Cluster, listener: str, seed: str, setup: StormSetup) -> None:
        """Set the servers of the pipeline. ``listener`` is the name of the pipeline's listener in the cluster.

        The database must still be empty when ``run`` is called.
        """
        self.report = Report(Counter([*str(setup.options).split(", "), str(setup.loading)]))
        self.log: list[str] = []
        """The events, each with the seconds since the beginning."""
        self._name = f"storm_{database.name.removeprefix('test_')}"
        self._setup = setup
        self._database = database
        self._cluster = cluster
        self._brokers = cluster.proxies[listener]
        self._bootstrap_servers = cluster.bootstrap_servers(listener)
        self._workload = Workload(database, seed)
        self._commander = Commander(
            cluster.kafka.bootstrap_servers, self._name, self._note, is_atomic=setup.mode == "exactly_once"
        )
        self._adoptions: list[int] = []
        """The slot's position at the beginning of each new epoch."""
        self._lost_from: list[int] = []
        """For each restoration: the LSN at which the lost part of the WAL begins."""
        self._undisturbed = threading.Lock()
        """Held during a fault of the server, its network or the daemon, so that only one such fault happens at a time.

        The daemon's deaths do not take this lock.
        """
        self._began = time.monotonic()
        self._failed = threading.Event()
        self._failures: list[BaseException] = []

    def run(self, fate: Fate, calm: threading.Event) -> None:
        """Run the script, then check the result. ``calm`` is set after the last fault of the brokers."""
        server = self._database.server
        self._workload.prepare()
        with ExitStack() as context:
            self._proxy = context.enter_context(Proxy(server.host, server.port))
            conninfo = self._database.conninfo(port=self._proxy.port)
            self._daemon = context.enter_context(
                Daemon(self._name, conninfo, self._bootstrap_servers, settings(self._setup), at_once=False)
            )
            self._victim = Victim(self._daemon, self.report.kills, self._note, self._setup.without)
            self._positions = Positions(self._database, self._slot)
            first = [death for death in fate.deaths if death.step in FIRST_STEPS]
            self._die(first)
            self._daemon.wait_until_ready(timeout_s=CALM_S)
            self._workload.populate()
            with self._positions:
                self._suffer(replace(fate, deaths=[death for death in fate.deaths if death not in first]), calm)
                with self._accounted_for():
                    self._judge()

    @property
    def _slot(self) -> str:
        return f"pgsluice_{self._name}"

    def _note(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:7.2f} {what}")

    # --- faults

    def _suffer(self, fate: Fate, calm: threading.Event) -> None:
        self._workload.start()
        bodies = (lambda: self._weather(fate.weather), lambda: self._command(fate.orders))
        others = [threading.Thread(target=self._guarded, args=(body,), daemon=True) for body in bodies]
        for other in others:
            other.start()
        self._guarded(lambda: self._die_around(fate.restore, fate.deaths))
        for other in others:
            other.join()
        calm.wait()
        for failure in self._failures:
            raise failure
        self._note("calm")
        self._daemon.wait_until_ready(timeout_s=CALM_S)
        with self._accounted_for():
            self._load_beside_work()
            self._workload.stop()
            self._finish_loads()

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            with self._accounted_for():
                body()
        except BaseException as failure:  # noqa: BLE001 - raised again when the other threads have ended
            self._failures.append(failure)

    @contextmanager
    def _accounted_for(self) -> Iterator[None]:
        """If the block fails, log the daemon's state now, because the daemon ends before the error is reported."""
        try:
            yield
        except BaseException:
            self._note(self._victim.account())
            raise

    def _die_around(self, restore: Restore | None, deaths: Sequence[Death]) -> None:
        """Let the daemon die as the script says. If the script has a restoration, restore the server in between."""
        if restore is None:
            self._die(deaths)
            return
        self._die(deaths[: restore.after])
        self._restore(restore)
        self._die(deaths[restore.after :])

    def _die(self, deaths: Sequence[Death]) -> None:
        """Let the daemon die in each of these ways, one after the other. Then start a daemon that stays alive."""
        for death in deaths:
            if death.step in LOAD_STEPS and not self._provoke():
                self._victim.die(Death(AT_A_MOMENT, seconds=LIFE_MAX_S))
            else:
                self._victim.die(death)
        self._victim.start(None)

    def _restore(self, restore: Restore) -> None:
        with self._undisturbed:
            self._note(str(restore))
            restoration = Restoration(self._database, self._workload, self._victim, self._slot, self._note)
            position = restoration.run(restore)
            self._lost_from.append(restoration.kept_until)
        self.report.kills["PostgreSQL killed"] += 1
        self.report.faults[f"PostgreSQL restored {restore.notice}"] += 1
        self._note(f"restored, and {'not refused' if position is None else f'adopted at {position:X}'}")
        if position is None:
            self.report.tally.complain("other", "the daemon continued with a server that was restored from a snapshot")
        else:
            self._adoptions.append(position)

    # --- commands

    def _command(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if self._failures:
                return
            time.sleep(order.pause)
            self._commander.give(order.verb, [order.table] if order.table else [], order.where)

    def _provoke(self) -> bool:
        """Send commands that make the next daemon load a table. Return whether Kafka has certainly stored them."""
        return self._commander.give("resume") and self._commander.give("start", [FILLED[0]])

    def _load_beside_work(self) -> None:
        """Load tables while the workload runs.

        First wait until the daemon has caught up, because the stream has to reach the position of a chunk before the
        chunk can be delivered.
        """
        with self._database.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()
        assert row is not None, "the query returns one row"
        end = time.monotonic() + CALM_S
        while self._victim.delivered() < int(row[0]) and time.monotonic() < end:
            time.sleep(SAMPLE_S)
        self._insist("resume")
        self._insist("start", FILLED)
        self._wait_until_loaded(BESIDE_WORK_S, is_quiet=False)

    def _insist(self, verb: Verb, tables: Sequence[str] = ()) -> None:
        """Give a command on which the rest of the storm depends. If Kafka may not have stored it, give it again."""
        self._daemon.wait_until(lambda: self._commander.give(verb, tables), CALM_S)

    def _finish_loads(self) -> None:
        """Restart the daemon, and wait until every table is loaded.

        Without the restart, the daemon would wait for a long time before it retries a table that could not be read.
        """
        self._daemon.stop()
        self._victim.start(None)
        self._daemon.wait_until_ready(timeout_s=CALM_S)
        are_loaded = self._wait_until_loaded(LOADED_S)
        cancelled = [table for table, state in self._commander.loaded().items() if state == "cancelled"]
        if cancelled:
            self._insist("start", cancelled)
            are_loaded = self._wait_until_loaded(LOADED_S)
        if not are_loaded:
            raise TimeoutError(f"there was no progress for {LOADED_S:g} s, but {self._unfinished()}")
        self._note("all tables are loaded")

    def _wait_until_loaded(self, timeout_s: float, *, is_quiet: bool = True) -> bool:
        """Wait until there is nothing to load, and no command to carry out. Return False if this takes too long.

        ``is_quiet`` says that the workload is paused. In this case, ``timeout_s`` limits only the time without
        progress, because a busy machine may need minutes.
        """
        reached, end = "", time.monotonic() + timeout_s
        # If a command has loaded only some rows of a table, the daemon loads the whole table only after it has read the
        # publications again. Until then, it reports nothing to load.
        wanted = {*FILLED, *self._workload.made}
        while not (self._has_loaded() and self._commander.is_done() and wanted <= self._commander.loaded().keys()):
            if not self._daemon.alive:
                self._victim.expect_end()
            if is_quiet and (further := self._reached()) != reached:
                reached, end = further, time.monotonic() + timeout_s
            if time.monotonic() > end:
                return False
            time.sleep(SAMPLE_S)
        return True

    def _unfinished(self) -> str:
        """Describe what is still to be loaded or answered, for the message of an error."""
        missing = sorted({*FILLED, *self._workload.made} - self._commander.loaded().keys())
        return f"{self._commander.unfinished()}, tables without a record: {missing}"

    def _reached(self) -> str:
        """Return a part of the daemon's status that changes whenever the daemon makes progress."""
        try:
            status = self._daemon.status()
        except ServerError:
            return ""
        snapshot = status["snapshot"] or {}
        return f"{status.get('delivered_lsn')} {snapshot.get('tables')} {snapshot.get('rows')}"

    def _has_loaded(self) -> bool:
        """Return whether the daemon reports no table that has to be loaded."""
        try:
            snapshot = self._daemon.status()["snapshot"]
        except ServerError:
            return False
        return snapshot is not None and not any(snapshot["tables"].get(state) for state in UNFINISHED)

    def _weather(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if self._failures:
                return
            time.sleep(fault.pause)
            with self._undisturbed:
                self._note(str(fault))
                self._happen(fault)

    def _happen(self, fault: Fault) -> None:
        subject, _, what = fault.kind.partition(" ")
        if fault.kind == "PostgreSQL killed":
            self._database.server.kill()
            self.report.kills[fault.kind] += 1
            time.sleep(fault.seconds / 4)
            self._database.server.start()
            return
        self.report.faults[fault.kind] += 1
        if fault.kind == FOREIGN_TRANSACTION:
            self._write_as_somebody_else(fault.seconds)
        elif subject == "daemon":
            self._freeze(fault.seconds)
        else:
            proxies = [self._proxy] if subject == "PostgreSQL" else self._some_brokers(fault)
            self._disturb(proxies, what, fault)

    def _write_as_somebody_else(self, seconds: float) -> None:
        """Act as a foreign program: write to all topics of tables in transactions that are then aborted."""
        settings = {
            "bootstrap.servers": self._cluster.kafka.bootstrap_servers,
            "transactional.id": f"somebody else beside {self._name}",
            "transaction.timeout.ms": FOREIGN_TIMEOUT_S * 1000,
        }
        producer = Producer(settings)
        try:
            producer.init_transactions(FOREIGN_TIMEOUT_S)
            self._wait_until_streaming()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                producer.begin_transaction()
                self._write_what_is_aborted(producer)
                time.sleep(FOREIGN_PAUSE_S)
                producer.abort_transaction(FOREIGN_TIMEOUT_S)
        except KafkaException as error:  # brokers are down; after their restart, they abort the transaction
            self._note(f"somebody else: {error}")

    def _wait_until_streaming(self) -> None:
        """Wait until the daemon streams, or for ``STREAMING_S``.

        Until it streams, it predicts no offsets, so foreign records would have no effect.
        """
        end = time.monotonic() + STREAMING_S
        while self._daemon.readiness("active") != HTTP_OK and time.monotonic() < end:
            time.sleep(POLL_S)

    def _write_what_is_aborted(self, producer: Producer) -> None:
        for topic in producer.list_topics(timeout=FOREIGN_TIMEOUT_S).topics:
            if topic.startswith(f"{self._name}.public."):
                for partition in range(PARTITIONS):
                    producer.produce(topic, b"not to be seen", partition=partition)
        producer.flush(FOREIGN_TIMEOUT_S)

    def _some_brokers(self, fault: Fault) -> list[Proxy]:
        """Return the proxy in front of one broker, or all of the pipeline's proxies."""
        return list(self._brokers.values()) if fault.count % 2 else [self._brokers[fault.broker]]

    def _freeze(self, seconds: float) -> None:
        # The daemon may die while it is frozen.
        with suppress(ServerError, OSError, ValueError):
            self._daemon.send(signal.SIGSTOP)
            time.sleep(seconds)
            self._daemon.send(signal.SIGCONT)

    def _disturb(self, proxies: Sequence[Proxy], what: str, fault: Fault) -> None:
        direction: Direction | None = next((name for name in BOTH if name == fault.direction), None)
        for proxy in proxies:
            if what == "cut":
                proxy.cut()
            elif what == "cut at a byte":
                proxy.cut_after(fault.count, direction or "to_client")
            elif what == "stall":
                proxy.stall(direction)
            elif what == "drop":
                proxy.drop(direction)
            else:
                proxy.refuse()
                proxy.cut()
        time.sleep(0 if what == "cut" else fault.seconds)
        for proxy in proxies:
            proxy.resume()
            if what == "drop":
                proxy.cut()

    # --- judgement

    def _judge(self) -> None:
        tally = self.report.tally
        with self._database.connect() as connection:
            connection.execute("INSERT INTO ledger (id, changes) VALUES (-1, 0)")
            lsn = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
            assert lsn is not None, "the query returns one row"
            self._read(int(lsn[0]), connection)
            self._note("judged")
            status = self._daemon.stop()
            if status != 0:
                tally.complain("other", f"exit code {status} at the end:\n{self._daemon.log_text()[-2000:]}")
        reached = checkpoints(self._cluster.kafka.bootstrap_servers, self._name)
        check_positions(self._positions.samples, reached, tally)

    def _read(self, lsn: int, connection: psycopg.Connection) -> None:
        def is_alive() -> None:
            if not self._daemon.alive:
                self._victim.expect_end()

        reader = Reader(self._cluster.kafka.bootstrap_servers, self._daemon.url, self._name, is_alive)
        try:
            options = self._setup.options
            checker = Checker(
                self._replay(reader),
                options,
                self._adoptions,
                self._workload.prepares,
                Truth(committed(connection), self._lost_from),
            )
            checker.tally = self.report.tally
            is_exact = self._setup.mode == "exactly_once"
            if is_exact:
                checker.check_cuts(reader.read_until(lsn))
                checker.check_loaded()
                self._note("checked, cut by cut")
            else:
                self._victim.wait_until_confirmed(lsn, lambda: confirmed_lsn(connection, self._slot))
                checker.check_repeated(
                    reader.read_rest(), checkpoints(self._cluster.kafka.bootstrap_servers, self._name)
                )
            there = Contents.of(connection, options, self._workload.made)
            if not is_exact:  # after a crash, rows that were read twice cannot be distinguished from equal rows
                there = there.without(WITHOUT_KEY)
            checker.check_whole(there, reader.read_rest() if is_exact else [])
            self._commander.check(self.report.tally)
        finally:
            reader.close()

    def _replay(self, reader: Reader) -> Replay:
        """Return a consumer that starts a new copy of a table with about every second load.

        If the stream lacks the changes of some origins, loads do not replace rows. In this case, the consumer starts a
        new copy with every load, because otherwise the copy of a table without a key would have its rows twice.
        """
        is_whole = self._setup.options.origin == "none"
        return Replay(
            tombstones=lambda _: False,
            partitions=reader.partitions,
            partial=[f"public.{name}" for name in (*FILLED, *self._workload.made)],
            completes=lambda mark: mark["replaces"] or is_whole,
            forgets=lambda identifier: is_whole or int(identifier, 16) % 2 == 0,
        )


def confirmed_lsn(connection: psycopg.Connection, slot: str) -> int | None:
    """Return the slot's position, or None if there is no slot."""
    query = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
    row = connection.execute(query, [slot]).fetchone()
    return None if row is None or row[0] is None else int(row[0])


def checkpoints(bootstrap_servers: str, prefix: str) -> list[Checkpoint]:
    """Return the committed checkpoints in order."""
    consumer = Consumer({**CONSUMER, "bootstrap.servers": bootstrap_servers})
    try:
        consumer.assign([TopicPartition(f"{prefix}.checkpoint", 0, OFFSET_BEGINNING)])
        found = []
        while True:
            for message in consumer.consume(1000, POLL_S):
                if message.error() is None:
                    value = json.loads(message.value())
                    found.append(Checkpoint(message.timestamp()[1] / 1000, value["end_lsn"], value["epoch"]))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return found
    finally:
        consumer.close()
