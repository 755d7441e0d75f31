"""One world: a scripted PostgreSQL, a scripted Kafka, the daemons between them, and the faults of all three.

The seed decides everything. :func:`run` returns a description of the first error, or None.
"""

import asyncio
import contextlib
import gc
import json
import random
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from pgsluice.avro.types import TypeOptions
from pgsluice.avro.wire import Schema
from pgsluice.checkpoint import Checkpoint
from pgsluice.errors import Diverged, DrainTimeout, HistoryError, UnavailableError
from pgsluice.kafka.checkpoint import checkpoint_key
from pgsluice.kafka.client import ClientErrors
from pgsluice.kafka.options import CutFormat, Mode, SinkOptions
from pgsluice.kafka.probe import is_probe
from pgsluice.kafka.producer import ProducerOptions
from pgsluice.kafka.sink import KafkaSink
from pgsluice.kafka.topic_spec import TopicSpec
from pgsluice.metrics import Metrics
from pgsluice.pipeline import ends
from pgsluice.pipeline.options import PipelineOptions
from pgsluice.pipeline.outbox import Limits
from pgsluice.pipeline.pipeline import Pipeline
from pgsluice.pipeline.reading import LoadOptions
from pgsluice.pipeline.session import SessionOptions
from pgsluice.spool.disk_spool import DiskSpool, SpoolOptions
from pgsluice.tables import Tables
from tests.simulation.broker import Broker, Client, Entry, Partition, Transaction, Weather, client_options
from tests.simulation.disk import ScriptedDisk
from tests.simulation.mirror import Mirror
from tests.simulation.model import COMMANDS_TOPIC, PARTITIONS, PREFIX, SNAPSHOTS_TOPIC, TRANSACTIONAL_ID, Model
from tests.simulation.orders import Orders
from tests.simulation.server import Server
from tests.simulation.tables import IDS, TableWal
from tests.simulation.virtual import PROCESS, Loop, Process, Stuck, patched
from tests.simulation.wal import Wal
from tests.simulation.walsender import Options
from tests.support.ends import MemoryRegistry, MemorySpool

METRICS = Metrics()
"""The metrics of all worlds. They are shared, because nothing reads them."""

GONE_BACK = "The slot has gone back since"
ROWS_BEHIND = "Rows that were read from tables are in Kafka"

PIPELINE = "sim"

KEY = checkpoint_key(PIPELINE)

FOREIGN = Checkpoint(PIPELINE, "sim", "1", timeline=1, epoch=1000, cut=0, end_lsn=1)
"""A checkpoint that another program writes under its own key. Its epoch is higher than all epochs of the pipeline."""

OWN_TOPICS = [f"{PREFIX}.checkpoint", f"{PREFIX}.transactions"]

CALM_S = 900.0
"""The time after the last fault within which everything must arrive, in spite of back-offs, time-outs and retries."""

SPILLING_BYTES = 200
"""The memory limit of spools. It is so low that most rows go to files."""

STEPS = 150
"""The number of actions of clients in one world. These actions result in about 30 transactions."""


COMMANDED = 0.5
"""The share of worlds with commands among the worlds in which tables are loaded."""

ORDER_S = (0.3, 2.0, 6.0)
"""The possible mean times between two commands. Each world uses one of them."""

MEANWHILE = 0.2
"""The probability that a client acts between two steps of a load."""


class Schemas(MemoryRegistry):
    """The schema registry of all daemons. Its answers take some time."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    async def start(self) -> None:
        await asyncio.sleep(self._dice.choice((0.0, 0.001)))

    async def register(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None = None) -> int:
        await asyncio.sleep(self._dice.choice((0.0, 0.001)))
        return await super().register(subject, schema, postgres)


@dataclass(slots=True)
class World:
    """The state of one world while it runs."""

    seed: int
    loop: Loop
    note: Callable[[str], None]
    mode: Mode | None = None
    loads: bool = False
    """Whether tables have rows before the stream begins, so that they have to be loaded."""
    commands: bool | None = None
    """Whether commands are given if tables are loaded. If None, the seed decides."""
    violation: str | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def dice(self, what: str) -> random.Random:
        """Return the random generator of one part, so that no part influences the choices of another part."""
        return random.Random(f"{self.seed} {what}")

    def violate(self, what: str) -> None:
        self.note(f"VIOLATION {what}")
        if self.violation is None:
            self.violation = what
            self.over.set()


class Simulation:
    """Creates the parts of a world, and runs it."""

    def __init__(self, world: World, stack: contextlib.ExitStack) -> None:
        self.world = world
        self.dice = world.dice("faults")
        self.strangers = world.dice("strangers")
        """The random generator for the records that other programs write to the checkpoint topic."""
        self.wal = TableWal(world.dice("wal")) if world.loads else Wal(world.dice("wal"))
        self.schemas = Schemas(world.dice("registry"))
        options = _server_options(world.dice("options"))
        self.model = Model(self.wal, self.schemas.by_id, world.violate, messages=options.messages)
        self.broker = Broker(world.loop, world.dice("broker"), self.model.on_commit)
        self.model.broker = self.broker
        self.broker.on_record = self.model.on_record
        self.broker.on_fence = self._check_fence
        self.broker.topics |= {topic: [Partition()] for topic in OWN_TOPICS}
        self.server = Server(self.wal, options, world.dice("server"), self.model.check_ack, world.violate)
        self.model.two_phase_at = lambda: self.server.slot.two_phase_at if self.server.slot else None
        self.loading: LoadOptions | None = None
        self._meanwhile = world.dice("meanwhile")
        if isinstance(self.wal, TableWal):
            self.loading = _load_options(world.dice("loads"))
            self.model.mirror = Mirror(self.wal, PREFIX, world.violate, in_each_epoch=self.loading.in_each_epoch)
            self.model.mirror.may_repeat = lambda: self.broker.leader_epoch > 0
            self.broker.topics[SNAPSHOTS_TOPIC] = [Partition()]
            self.server.on_reading = self._write_meanwhile
            orders = world.dice("orders")
            if world.commands if world.commands is not None else orders.random() < COMMANDED:
                self.model.orders = Orders(self.broker, COMMANDS_TOPIC, orders, world.violate)
                self.broker.topics[COMMANDS_TOPIC] = [Partition()]
        self.is_quiet = False
        """Whether a fault requires that clients write nothing that is published."""
        self.is_over = False
        """Whether clients have finished their work in this world."""
        self.is_held = False
        """Whether daemons that have ended must not be started again yet."""
        self.epochs_due = 1
        """The highest allowed number of epochs. Each fault that requires a new epoch increases it."""
        self.troubles: list[Trouble] = []
        self._happening: set[asyncio.Task[None]] = set()
        self.daemons: list[Daemon] = []
        dice = world.dice("limits")
        self._directory: Path | None = None
        if dice.random() < 0.3:
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._processes = 0
        self.limits = Limits(
            cut_interval_s=0.05,
            cut_bytes=dice.choice((600, 2_000, 1 << 20)),
            inflight_max=dice.choice((3_000, 1 << 22)),
            heartbeat_s=dice.choice((0.5, 10.0)),
        )

    def make_directory(self) -> Path | None:
        """Make a directory for one process. Return None in worlds without files, which are faster."""
        if self._directory is None:
            return None
        self._processes += 1
        directory = self._directory / str(self._processes)
        directory.mkdir()
        return directory

    async def run(self) -> None:
        """Run the world until everything has arrived, or until the first error."""
        world, dice = self.world, self.dice
        possible = [trouble for trouble in TROUBLES if trouble is not _disk_hangs or self._directory is not None]
        self.troubles = dice.sample(possible, dice.choice((1, 2, 3, len(possible))))
        drawn: Mode = "at_least_once" if dice.random() < 0.15 else "exactly_once"
        self.mode = self.world.mode or drawn
        # Without transactions, a former owner cannot be prevented from writing late records.
        takeovers = _cut_off in self.troubles or _promote in self.troubles
        others = self.mode == "exactly_once" and (takeovers or dice.random() < 0.3)
        self.daemons = [Daemon(self, n) for n in range(1 + others)]
        keepers = [asyncio.create_task(daemon.keep()) for daemon in self.daemons]
        works = [asyncio.create_task(self._happen()), asyncio.create_task(world.over.wait())]
        await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        for task in (*keepers, *works):
            task.cancel()
        for daemon in self.daemons:
            daemon.kill()
        results = await asyncio.gather(*keepers, *works, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and world.violation is None:
                raise result

    async def _happen(self) -> None:
        others = [asyncio.create_task(self._make_trouble()), asyncio.create_task(self._give_orders())]
        await self._work()
        for other in others:
            other.cancel()
        await asyncio.gather(*others, *self._happening, return_exceptions=True)
        await self._calm_down()
        await self._check_arrival()

    async def _work(self) -> None:
        dice = self.world.dice("work")
        done = 0
        while done < STEPS:
            await asyncio.sleep(dice.choice((0.0, 0.01, 0.2, 2.0)))
            if self._may_write:
                for _ in range(dice.choice((1, 3, 8))):
                    self.wal.step()
                    done += 1
                self.server.wake()

        self.is_over = True

    @property
    def _may_write(self) -> bool:
        return self.server.is_up and not self.server.shutting_down and not self.is_quiet

    def _write_meanwhile(self) -> None:
        """Let a client act between two steps of a load, because then its changes can do the most harm."""
        if self._may_write and not self.is_over and self._meanwhile.random() < MEANWHILE:
            for _ in range(self._meanwhile.choice((1, 1, 5))):
                self.wal.step()
            self.server.wake()

    async def _make_trouble(self) -> None:
        pause_s = self.dice.choice((0.5, 2.0, 6.0))
        while True:
            await asyncio.sleep(self.dice.expovariate(1 / pause_s))
            trouble = self.dice.choice(self.troubles)
            self.world.note(f"-- {trouble.__name__}")
            self._happening.add(asyncio.create_task(trouble(self)))

    async def _give_orders(self) -> None:
        orders, dice = self.model.orders, self.world.dice("when orders are given")
        if orders is None:
            return
        orders.may_go_back = _lose_checkpoints in self.troubles
        pause_s = dice.choice(ORDER_S)
        while True:
            await asyncio.sleep(dice.expovariate(1 / pause_s))
            orders.give([table.name for table in self.wal.tables])

    def _check_fence(self, process: Process) -> None:
        """Check that a standby does not fence the owner.

        A process that has streamed, or that found no slot, may fence the owner, because such a process may not know yet
        that it has become a standby.
        """
        active = self.server.active
        if self.mode == "exactly_once" and active is not None and active.process is not process:
            own = self.server.last[process]
            if own.found_slot and own.stream is None:
                self.world.violate("a standby has fenced the owner")

    @property
    def is_new_epoch_due(self) -> bool:
        """Whether a fault has happened after which a daemon may stop until an operator begins a new epoch."""
        return self.model.births < self.epochs_due

    def expect_new_epoch(self) -> None:
        """Record that a fault has happened after which a new epoch has to begin.

        There may already be more epochs than required, because a daemon with --adopt-slot may begin one after a
        promotion.
        """
        self.epochs_due = max(self.epochs_due, self.model.births) + 1

    @property
    def is_slot_before_epoch(self) -> bool:
        """Whether a crash moved the slot back to a position before the beginning of an epoch that delivered nothing.

        A daemon cannot distinguish such a server from a restored one.
        """
        slot = self.server.slot
        return slot is not None and slot.confirmed < self.model.born_at

    def slow_down(self, lag_s: float) -> None:
        """Make every request to Kafka take up to ``lag_s``."""
        for daemon in self.daemons:
            daemon.lag_s = lag_s

    async def _calm_down(self) -> None:
        self.world.note("-- calm")
        self.broker.weather = Weather()
        self.slow_down(0.0)
        self.wal.finish()
        self.wal.write_elsewhere()
        while self.wal.end == self.model.delivered:
            # The WAL of a restored server may end exactly where its former WAL ended. Daemons cannot notice the
            # restoration before the server writes more.
            self.wal.write_elsewhere()
        self.server.wake()
        if self.model.orders is not None:
            self.model.orders.resume()

    async def _check_arrival(self) -> None:
        """Wait until all committed transactions are delivered and acknowledged, but no longer than ``CALM_S``."""
        deadline = self.world.loop.now + CALM_S
        while (missing := self._missing()) is not None:
            if self.world.loop.now > deadline:
                self.world.violate(missing)
                return
            await asyncio.sleep(1.0)
        if self.model.mirror is not None and self.mode == "at_least_once":
            self.model.mirror.check_all(self.wal.truth)

    def _missing(self) -> str | None:
        owed = self.model.owes
        if owed is not None:
            return f"transaction {owed.xid} at {owed.lsn:X} never arrives"
        last = self.wal.truth[-1].end if self.wal.truth else 0
        if self.server.slot is None or self.server.slot.confirmed < last:
            return f"the slot never reaches {last:X}"
        for name, partitions in self.broker.topics.items():
            if any(partition.stable < len(partition.log) for partition in partitions):
                return f"records in {name} can never be read, because a transaction stays open"
        never = set() if self.model.mirror is None else self._published() - self.model.mirror.loaded
        if never:
            return f"tables {never} are never loaded"
        if self.model.mirror is not None and (unnoticed := self.model.mirror.unnoticed()):
            return f"columns {unnoticed} have values, and no daemon has noticed this"
        return None if self.model.orders is None else self.model.orders.missing()

    def _published(self) -> set[int]:
        return {table.oid for table in self.wal.tables if table.is_published}


def _load_options(dice: random.Random) -> LoadOptions:
    return LoadOptions(
        chunk_rows=dice.choice((1, 2, 100)),
        chunk_bytes=dice.choice((40, 1 << 20)),
        without_key_max=IDS,
        replaces=True,
        in_each_epoch=dice.random() < 0.5,
    )


def _server_options(dice: random.Random) -> Options:
    """Draw the client's options and the server's quirks."""
    messages = dice.random() < 0.3
    return Options(
        streaming=not messages and dice.random() < 0.7,
        two_phase=dice.random() < 0.5,
        messages=messages,
        parallel=dice.random() < 0.3,
        work_mem=dice.choice((1, 4, 12)),
        empty=dice.random() < 0.3,
        stray_aborts=dice.random() < 0.3,
        skips_aborted=dice.random() < 0.5,
        bare_prepare=dice.random() < 0.3,
    )


class Daemon:
    """A host that runs the daemon. Its supervisor starts a new process whenever one has ended."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.name = f"daemon {number}"
        self._number = number
        self._simulation = simulation
        self._world = simulation.world
        self._dice = simulation.world.dice(self.name)
        self.process = Process(self._world.loop)
        self.adopts = False
        """Whether the operator starts the next process with --adopt-slot."""
        self.lag_s = 0.0
        """The longest time that a request to Kafka may take."""
        self.pipeline: Pipeline | None = None
        self.disk: ScriptedDisk | None = None
        """The disk of the process that runs now."""
        self._task: asyncio.Task[None] | None = None
        self._may_adopt = False

    async def keep(self) -> None:
        """Start a process, and start a new one whenever it has ended."""
        while True:
            self.process = Process(self._world.loop)
            self.process.on_last_step = self.kill
            self._world.note(f"{self.name} starts")
            context_task = asyncio.create_task(self._run(self.process))
            self._task = context_task
            self._may_adopt = self._simulation.is_new_epoch_due
            await asyncio.wait((context_task,))
            self._judge(context_task)
            await asyncio.sleep(self._dice.choice((0.1, 1.0, 5.0)))
            while self._simulation.is_held:  # noqa: ASYNC110 - a simple poll is enough
                await asyncio.sleep(0.1)

    async def _run(self, process: Process) -> None:
        PROCESS.set(process)
        self.disk = ScriptedDisk(self._world.loop, process, self._dice)
        self.pipeline = self._make_pipeline(process)
        self.adopts = False
        await self.pipeline.run()

    def _judge(self, task: "asyncio.Task[None]") -> None:
        """Check that the error that ended the process is an expected one. Most errors cannot occur in these worlds."""
        if not self.process.alive or task.cancelled():
            return
        error = task.exception()
        self._world.note(f"{self.name} ended: {error!r}")
        is_slot_before = GONE_BACK in str(error) and self._simulation.is_slot_before_epoch
        is_left_before = ROWS_BEHIND in str(error) and self._simulation.model.has_rows_behind
        if isinstance(error, HistoryError) and (is_slot_before or is_left_before):
            self._simulation.epochs_due = max(self._simulation.epochs_due, self._simulation.model.births + 1)
        if isinstance(error, HistoryError) and (self._may_adopt or self._simulation.is_new_epoch_due):
            # The supervisor may start the daemon again, without --adopt-slot, before the operator decides.
            self.adopts = self._dice.random() < 0.5
            if isinstance(error, Diverged):
                self._simulation.model.on_refusal(str(error))
            return
        # A daemon may stop if Kafka was down or a disk hung for too long. The supervisor starts the daemon again. But
        # a daemon must not stop because of another pipeline, because these worlds have only one pipeline.
        excused = isinstance(error, UnavailableError) and "another pipeline" not in str(error)
        if error is None or isinstance(error, DrainTimeout) or excused:
            return
        self._world.violate(f"{self.name} stopped: {type(error).__name__}: {error}")

    def kill(self, *, unnoticed: bool = False) -> None:
        """Kill the process like kill -9. With ``unnoticed``, the whole host fails, so that no connection is closed."""
        self._world.note(f"{self.name} is killed")
        self.process.kill()
        self._simulation.server.drop(self.process, unnoticed=unnoticed)
        if self._task is not None:
            self._task.cancel()

    def terminate(self) -> None:
        """Stop the process like SIGTERM."""
        if self.pipeline is not None and self.process.alive:
            self.pipeline.stop()

    def _make_pipeline(self, process: Process) -> Pipeline:
        simulation = self._simulation
        client = Client(simulation.broker, process, self._dice, lambda: self.lag_s)
        errors = ClientErrors(clock=simulation.world.loop.time)
        options = SinkOptions(
            ProducerOptions(client_options(client, errors), TRANSACTIONAL_ID, 1 << 24, 60.0),
            TopicSpec(f"{PREFIX}.transactions", 1),
            TopicSpec(f"{PREFIX}.checkpoint", 1),
            PIPELINE,
            simulation.mode,
            snapshots_topic=None if simulation.loading is None else TopicSpec(SNAPSHOTS_TOPIC, 1),
            commands_topic=None if simulation.model.orders is None else TopicSpec(COMMANDS_TOPIC, 1),
        )
        cut_format = CutFormat(PREFIX.encode(), lambda part: json.dumps(part).encode(), json.loads)

        async def source() -> Any:  # noqa: ANN401 - the scripted source
            await asyncio.sleep(self._dice.choice((0.0, 0.01)))
            return simulation.server.connect(process)

        async def sink() -> KafkaSink:
            return KafkaSink(options, cut_format)

        return Pipeline(self._options(), source, sink, simulation.schemas, self._spool_maker(), METRICS)

    def _spool_maker(self) -> Callable[[], ends.Spool]:
        """Return a factory of spools that write nearly all rows to files, or of spools without files."""
        directory, disk = self._simulation.make_directory(), self.disk
        if directory is None or disk is None:
            return MemorySpool
        return lambda: DiskSpool(SpoolOptions(directory, SPILLING_BYTES, 1 << 30), disk)

    def _options(self) -> PipelineOptions:
        return PipelineOptions(
            name=PIPELINE,
            slot="sim",
            tables=Tables(PREFIX, partitions=PARTITIONS),
            types=TypeOptions(),
            session=SessionOptions(self._simulation.limits, loading=self._simulation.loading),
            create_slot=True,
            adopt_slot=self.adopts,
            drain_timeout_s=20.0,
        )


# The faults.

Trouble: TypeAlias = Callable[[Simulation], Coroutine[Any, Any, None]]


async def _kill(simulation: Simulation) -> None:
    simulation.dice.choice(simulation.daemons).kill()


async def _kill_at_a_step(simulation: Simulation) -> None:
    """Kill a process just before or after a step that others can see, such as a commit or an acknowledgement."""
    process = simulation.dice.choice(simulation.daemons).process
    process.steps_left = simulation.dice.randrange(1, 60)


async def _silence(simulation: Simulation) -> None:
    simulation.dice.choice(simulation.daemons).kill(unnoticed=True)


async def _terminate(simulation: Simulation) -> None:
    simulation.dice.choice(simulation.daemons).terminate()


async def _cut_connection(simulation: Simulation) -> None:
    active = simulation.server.active
    if active is not None:
        simulation.server.forget(active)
        # The server notices immediately that the connection is broken. The client may notice later.
        delay_s = simulation.dice.choice((0.0, 1.0, 20.0))
        asyncio.get_running_loop().call_later(delay_s, active.break_off, "the connection was lost")


async def _cut_off(simulation: Simulation) -> None:
    """Cut the owner off from PostgreSQL while its last cut is still in flight to Kafka. The owner does not notice."""
    server = simulation.server
    active = server.active
    if active is None or simulation.is_quiet:
        return
    for daemon in simulation.daemons:
        daemon.lag_s = 3.0 if daemon.process is active.process else 0.0
    for _ in range(20):
        simulation.wal.step()
    server.wake()
    await asyncio.sleep(simulation.dice.choice((0.0, 0.1, 1.0)))
    server.forget(active)
    asyncio.get_running_loop().call_later(30.0, active.break_off, "the connection was lost")
    for _ in range(40):
        await asyncio.sleep(0.1)
        if server.active is not None:
            break
    simulation.slow_down(1.0)
    await asyncio.sleep(3.0)
    simulation.slow_down(0.0)


async def _crash_server(simulation: Simulation) -> None:
    if not simulation.server.is_up or simulation.server.shutting_down:
        return
    simulation.server.crash()
    await asyncio.sleep(simulation.dice.choice((0.5, 5.0)))
    simulation.server.is_up = True


async def _promote(simulation: Simulation) -> None:
    """Promote a standby that has not received the last WAL. The missing WAL has no published changes."""
    if simulation.mode == "at_least_once" and simulation.loading is not None:
        return  # loaded rows may require a new epoch, which the model cannot check without transactions
    await _go_back(simulation, promote=True)


async def _overtake_a_start(simulation: Simulation) -> None:
    """Let the next owner of the slot lose the slot immediately. The owner does not notice, and fences its successor."""
    server = simulation.server
    simulation.slow_down(2.0)
    for _ in range(300):
        await asyncio.sleep(0.1)
        if server.active is not None:
            break
    first = server.active
    if first is not None:
        for daemon in simulation.daemons:
            daemon.lag_s = 2.0 if daemon.process is first.process else 0.0
        server.forget(first)
        asyncio.get_running_loop().call_later(10.0, first.break_off, "the connection was lost")
        await asyncio.sleep(4.0)
    simulation.slow_down(0.0)


async def _restore(simulation: Simulation) -> None:
    """Restore the server from a snapshot of its disk that lacks the last WAL."""
    if simulation.mode == "exactly_once":
        await _go_back(simulation, promote=False)


async def _restore_without_the_last(simulation: Simulation) -> None:
    """Restore the server from a snapshot of its disk that also lacks published transactions."""
    server, dice = simulation.server, simulation.dice
    if simulation.mode != "exactly_once" or simulation.is_held or not _can_go_back(simulation):
        return
    assert server.slot is not None, "_can_go_back has checked this"
    simulation.is_quiet = True
    snapshot, slot = simulation.wal.snapshot(), server.slot.snapshot()
    messages = dice.choice((0.0, 0.3, 1.0))
    for _ in range(dice.randrange(1, 5)):
        simulation.wal.transact(messages)
        server.wake()
        await asyncio.sleep(dice.choice((0.1, 1.0, 11.0)))
    if server.is_up and not server.shutting_down:
        for daemon in simulation.daemons:
            daemon.kill()
        simulation.broker.time_out()  # so that no change that the server loses is in flight to Kafka
        server.go_back(simulation.wal.restore(snapshot), slot, promote=False)
        simulation.expect_new_epoch()
        simulation.model.on_loss(snapshot)
        for _ in range(dice.choice((0, 3, 20))):
            simulation.wal.transact(messages)
        await asyncio.sleep(dice.choice((0.5, 5.0)))
        server.is_up = True
    simulation.is_quiet = False


def _can_go_back(simulation: Simulation) -> bool:
    server = simulation.server
    return not simulation.is_quiet and server.is_up and not server.shutting_down and server.slot is not None


async def _go_back(simulation: Simulation, *, promote: bool) -> None:
    server, dice = simulation.server, simulation.dice
    if not _can_go_back(simulation):
        return
    assert server.slot is not None, "_can_go_back has checked this"
    simulation.is_quiet = True
    since, slot = simulation.wal.end, server.slot.snapshot()
    for _ in range(dice.randrange(4)):
        simulation.wal.write_elsewhere()
        server.wake()
        await asyncio.sleep(dice.choice((0.1, 1.0, 11.0)))
    if server.is_up and not server.shutting_down:
        before = simulation.wal.end
        end = simulation.wal.lose_tail(since)
        server.go_back(end, slot, promote=promote)
        if end < before and not promote:
            simulation.expect_new_epoch()
        simulation.model.on_history(end, promoted=promote)
        if dice.random() < 0.5:
            for _ in range(20):  # write about as much WAL as was lost, before a daemon connects
                simulation.wal.step()
        await asyncio.sleep(dice.choice((0.5, 5.0)))
        server.is_up = True
        if promote and len(simulation.daemons) > 1 and dice.random() < 0.5:
            await _overtake_a_start(simulation)
    simulation.is_quiet = False


async def _lose_checkpoints(simulation: Simulation) -> None:
    """While no daemon runs, let Kafka lose the last checkpoints, or let another program forge a checkpoint."""
    if simulation.mode != "exactly_once" or simulation.is_held:
        return
    simulation.is_held = True
    for daemon in simulation.daemons:
        daemon.kill()
    await asyncio.sleep(simulation.dice.choice((1.0, 70.0)))
    partition = simulation.broker.partition((f"{PREFIX}.checkpoint", 0))
    last = simulation.model.cut - simulation.dice.choice((2, 3, 9))

    def is_lost(value: bytes) -> bool:
        return is_probe(value) or json.loads(value)["cut"] > last

    if not partition.open and simulation.broker.outdated is None:
        is_forged = simulation.strangers.random() < 0.5
        if _forge(simulation, partition) if is_forged else partition.lose(KEY, is_lost):
            simulation.expect_new_epoch()
    simulation.is_held = False


def _forge(simulation: Simulation, partition: Partition) -> bool:
    """Under the pipeline's key, write a checkpoint that contradicts the cut records, and return True.

    Return False if the last checkpoint does not belong to the last cut. In this case, a checkpoint was already lost or
    forged, and pgsluice does not have to survive two of these faults.
    """
    values = [entry.value or b"" for entry in partition.log if entry.is_visible and entry.key == KEY]
    genuine = [json.loads(value) for value in values if not is_probe(value)]
    if not genuine or not genuine[-1]["end_lsn"] or genuine[-1]["cut"] != simulation.model.cut:
        return False
    last = genuine[-1]
    earlier = [one for one in genuine if one["cut"] == last["cut"] - 1 and one["end_lsn"]]
    forged = simulation.strangers.choice(
        [
            {**last, "end_lsn": last["end_lsn"] + 4096},
            {**last, "epoch": last["epoch"] + 1},
            {**last, "cut": last["cut"] + 5, "end_lsn": last["end_lsn"] + 4096},
            *earlier[-1:],
        ]
    )
    partition.log.append(Entry(None, KEY, json.dumps({**forged, "refused": ""}).encode()))
    return True


async def _late_marker(simulation: Simulation) -> None:
    """Let a late marker make a checkpoint or a cut record visible or invisible, and kill the process.

    If the record becomes visible, the process is killed before it commits the cut. Otherwise, the process may have
    committed the cut before it is killed.
    """
    broker, dice = simulation.broker, simulation.dice
    topic = dice.choice(OWN_TOPICS)

    def on_append(transaction: Transaction, place: tuple[str, int]) -> None:
        owner = simulation.server.active
        if place[0] != topic or owner is None:
            return
        shows = broker.mark_again(transaction, place)
        if shows is not None:
            broker.on_append = lambda *_: None
            owner.process.steps_left = 1 if shows else dice.choice((2, 3, 5, 10))

    broker.on_append = on_append


async def _shut_server_down(simulation: Simulation) -> None:
    if not simulation.server.is_up or simulation.server.shutting_down:
        return
    await simulation.server.shut_down()
    await asyncio.sleep(simulation.dice.choice((0.5, 5.0)))
    simulation.server.is_up = True


async def _kafka_away(simulation: Simulation) -> None:
    simulation.broker.weather = Weather(is_away=True)
    await asyncio.sleep(simulation.dice.choice((0.5, 5.0, 20.0, 70.0)))
    simulation.broker.weather = Weather()


async def _kafka_weather(simulation: Simulation) -> None:
    dice = simulation.dice

    def often() -> float:
        return dice.choice((0.0, 0.0, 0.5))

    simulation.broker.weather = Weather(often(), often(), often(), often(), slow=often(), marked_twice=often())
    simulation.slow_down(dice.choice((0.0, 0.0, 0.5)))
    await asyncio.sleep(dice.choice((1.0, 10.0)))
    simulation.broker.weather = Weather()
    simulation.slow_down(0.0)


async def _outdated_broker(simulation: Simulation) -> None:
    """Isolate a broker from its cluster. Some clients, perhaps those of a new session, get outdated answers."""
    broker, server, dice = simulation.broker, simulation.server, simulation.dice
    if broker.leader_epoch:
        return  # this fault happens only once in a world
    # If other programs write, or markers are written twice, an outdated end offset may equal the predicted one by
    # chance. pgsluice does not have to survive an outdated broker together with one of these two faults. In such a
    # world, the broker is therefore outdated only for the service topics, and not for the topics of changes.
    disturbed = {_foreign_rows, _kafka_weather}.intersection(simulation.troubles)
    led = OWN_TOPICS if disturbed else list(broker.topics)
    broker.lose_touch(led, dice.choice((0.3, 0.7)))
    await asyncio.sleep(dice.choice((0.5, 3.0)))
    active = server.active
    if active is not None and dice.random() < 0.9:
        server.forget(active)
        active.break_off("the connection was lost")
    # Some outages last longer than the time limit of a read.
    await asyncio.sleep(dice.choice((3.0, 10.0, 90.0)))
    broker.outdated = None


async def _foreign_transaction(simulation: Simulation) -> None:
    """Let another program write a record that looks like a checkpoint, and commit it or leave its transaction open."""
    broker = simulation.broker
    transaction = broker.open("somebody", simulation.dice.choice((1.0, 20.0)))
    broker.append(transaction, (f"{PREFIX}.checkpoint", 0), b"x", FOREIGN.to_json())
    if simulation.strangers.random() < 0.5:
        await asyncio.sleep(0.5)
        broker.decide(transaction, committed=True)


async def _foreign_rows(simulation: Simulation) -> None:
    """Let another program write to topics of changes in a transaction, and commit or abort the transaction."""
    broker, dice = simulation.broker, simulation.dice
    places = [(name, dice.randrange(PARTITIONS)) for name in sorted(broker.topics) if ".public." in name]
    transaction = broker.open("somebody", dice.choice((0.01, 1.0, 20.0)))
    for place in dice.sample(places, min(len(places), 2)):
        broker.append(transaction, place, b"x", b"x")
    await asyncio.sleep(dice.choice((0.0, 0.1, 2.0)))
    broker.decide(transaction, committed=dice.random() < 0.5)


async def _two_phase(simulation: Simulation) -> None:
    """Let the operator switch on postgres.two_phase and restart the daemons."""
    server = simulation.server
    if not server.options.two_phase:
        server.options = replace(server.options, two_phase=True)
        for daemon in simulation.daemons:
            daemon.terminate()


async def _disk_hangs(simulation: Simulation) -> None:
    """Let the disk of one process hang for a while, or until the process ends. Other disks work."""
    dice = simulation.dice
    disk = dice.choice(simulation.daemons).disk
    if disk is None:
        return
    disk.freeze()
    seconds = dice.choice((0.5, 20.0, 70.0, None))
    if seconds is not None:
        await asyncio.sleep(seconds)
        disk.thaw()


TROUBLES: list[Trouble] = [
    _kill,
    _kill_at_a_step,
    _kill_at_a_step,
    _silence,
    _terminate,
    _cut_connection,
    _cut_off,
    _crash_server,
    _promote,
    _restore,
    _restore_without_the_last,
    _shut_server_down,
    _lose_checkpoints,
    _late_marker,
    _kafka_away,
    _kafka_weather,
    _kafka_weather,
    _outdated_broker,
    _outdated_broker,
    _foreign_transaction,
    _foreign_rows,
    _two_phase,
    _disk_hangs,
]


def run(
    seed: int,
    note: Callable[[str], None] | None = None,
    mode: Mode | None = None,
    *,
    loads: bool | None = None,
    commands: bool | None = None,
) -> str | None:
    """Run the world of ``seed``. Return a description of the first error, or None.

    ``mode`` is the delivery mode, ``loads`` says whether tables are loaded, and ``commands`` says whether commands are
    given in a world with loads. If one of them is None, the seed decides.
    """
    loop = Loop()
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(lambda _loop, _context: None)  # killed processes leave errors behind
    gc.disable()  # garbage collection would take a fifth of the time

    def tell(text: str) -> None:
        if note is not None:
            note(f"{loop.now:10.3f}  {text}")

    world = World(seed, loop, tell, mode, seed % 4 == 3 if loads is None else loads, commands)
    with patched(loop, world.dice("jitter"), tell if note is not None else None):
        try:
            with contextlib.ExitStack() as stack:
                loop.run_until_complete(Simulation(world, stack).run())
        except Stuck:
            world.violate("nothing can happen any more")
        finally:
            _end(loop)
            gc.enable()
    return world.violation


def _end(loop: Loop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    asyncio.set_event_loop(None)
    loop.close()
