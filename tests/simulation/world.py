"""One world: a scripted PostgreSQL, a scripted Kafka, daemons between them, and what happens to all of these.

Everything follows from the seed. :func:`run` returns what went wrong first, or None.
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
from pgsluice.errors import DrainTimeout, UnavailableError
from pgsluice.kafka.producer import ProducerOptions
from pgsluice.kafka.sink import CutFormat, KafkaSink, Mode, SinkOptions
from pgsluice.kafka.topics import TopicSpec
from pgsluice.librdkafka import ClientErrors
from pgsluice.metrics import Metrics
from pgsluice.pipeline import Pipeline, PipelineOptions, ends
from pgsluice.pipeline.outbox import Limits
from pgsluice.pipeline.session import SessionOptions
from pgsluice.spool import Spool, SpoolOptions
from pgsluice.tables import Tables
from tests.simulation.broker import Broker, Client, Partition, Weather, client_options
from tests.simulation.model import PARTITIONS, PREFIX, TRANSACTIONAL_ID, Model
from tests.simulation.server import Server
from tests.simulation.virtual import PROCESS, Loop, Process, Stuck, patched
from tests.simulation.wal import Wal
from tests.simulation.walsender import Options
from tests.support.ends import MemoryRegistry, MemorySpool

METRICS = Metrics()
"""One for all worlds: nothing is read from it."""

CALM_S = 900.0
"""How long everything may take to arrive once nothing goes wrong any more: back-offs, time-outs, patience."""

SPILLING_BYTES = 200
"""So little memory that some rows stay in it, and most go to files."""

STEPS = 150
"""What clients do to the database in one world: some 30 transactions."""


class Schemas(MemoryRegistry):
    """The registry of all daemons, which takes its time."""

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
    """One seed's world while it runs."""

    seed: int
    loop: Loop
    note: Callable[[str], None]
    mode: Mode | None = None
    violation: str | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def dice(self, what: str) -> random.Random:
        """Return dice of their own for each part, so that one part's throws leave the others' alone."""
        return random.Random(f"{self.seed} {what}")

    def violate(self, what: str) -> None:
        self.note(f"VIOLATION {what}")
        if self.violation is None:
            self.violation = what
            self.over.set()


class Simulation:
    """What is in a world, and what happens there."""

    def __init__(self, world: World, stack: contextlib.ExitStack) -> None:
        self.world = world
        self.dice = world.dice("faults")
        self.wal = Wal(world.dice("wal"))
        self.schemas = Schemas(world.dice("registry"))
        options = _server_options(world.dice("options"))
        self.model = Model(self.wal, self.schemas.by_id, world.violate, messages=options.messages)
        self.broker = Broker(world.loop, world.dice("broker"), self.model.on_commit)
        self.model.broker = self.broker
        self.broker.on_record = self.model.on_record
        self.broker.on_fence = self._check_fence
        self.broker.topics[f"{PREFIX}.checkpoint"] = [Partition()]
        self.broker.topics[f"{PREFIX}.transactions"] = [Partition()]
        self.server = Server(self.wal, options, world.dice("server"), self.model.check_ack, world.violate)
        self.model.two_phase_at = lambda: self.server.slot.two_phase_at if self.server.slot else None
        self.troubles: list[Trouble] = []
        self._happening: set[asyncio.Task[None]] = set()
        self.daemons: list[Daemon] = []
        dice = world.dice("limits")
        self._directory: Path | None = None
        if dice.random() < 0.3:
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._spools = 0
        self.limits = Limits(
            cut_interval_s=0.05,
            cut_bytes=dice.choice((600, 2_000, 1 << 20)),
            inflight_max=dice.choice((3_000, 1 << 22)),
            heartbeat_s=dice.choice((0.5, 10.0)),
        )

    def make_spool(self) -> ends.Spool:
        """Return one that spills nearly everything, or one without files, which is faster."""
        if self._directory is None:
            return MemorySpool()
        self._spools += 1
        directory = self._directory / str(self._spools)
        directory.mkdir()
        return Spool(SpoolOptions(directory, SPILLING_BYTES, 1 << 30))

    async def run(self) -> None:
        """Let it all happen."""
        world, dice = self.world, self.dice
        self.troubles = dice.sample(TROUBLES, dice.choice((1, 2, 3, len(TROUBLES))))
        drawn: Mode = "at_least_once" if dice.random() < 0.15 else "exactly_once"
        self.mode = self.world.mode or drawn
        # Without transactions nothing keeps a former owner's late records out.
        others = self.mode == "exactly_once" and (_cut_off in self.troubles or dice.random() < 0.3)
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
        trouble = asyncio.create_task(self._make_trouble())
        await self._work()
        trouble.cancel()
        await asyncio.gather(trouble, *self._happening, return_exceptions=True)
        await self._calm_down()
        await self._check_arrival()

    async def _work(self) -> None:
        dice = self.world.dice("work")
        done = 0
        while done < STEPS:
            await asyncio.sleep(dice.choice((0.0, 0.01, 0.2, 2.0)))
            if self.server.is_up and not self.server.shutting_down:
                for _ in range(dice.choice((1, 3, 8))):
                    self.wal.step()
                    done += 1
                self.server.wake()

    async def _make_trouble(self) -> None:
        pause_s = self.dice.choice((0.5, 2.0, 6.0))
        while True:
            await asyncio.sleep(self.dice.expovariate(1 / pause_s))
            trouble = self.dice.choice(self.troubles)
            self.world.note(f"-- {trouble.__name__}")
            self._happening.add(asyncio.create_task(trouble(self)))

    def _check_fence(self, process: Process) -> None:
        """A standby leaves the owner alone; who streamed, or found no slot, may not know yet that it is one."""
        active = self.server.active
        if self.mode == "exactly_once" and active is not None and active.process is not process:
            own = self.server.last[process]
            if own.found_slot and own.stream is None:
                self.world.violate("a standby fences the owner")

    def slow_down(self, lag_s: float) -> None:
        """Let every request to Kafka take up to ``lag_s`` on its way."""
        for daemon in self.daemons:
            daemon.lag_s = lag_s

    async def _calm_down(self) -> None:
        self.world.note("-- calm")
        self.broker.weather = Weather()
        self.slow_down(0.0)
        self.wal.finish()
        self.server.wake()

    async def _check_arrival(self) -> None:
        """What is committed arrives, and is acknowledged, once nothing goes wrong any more."""
        deadline = self.world.loop.now + CALM_S
        while (missing := self._missing()) is not None:
            if self.world.loop.now > deadline:
                self.world.violate(missing)
                return
            await asyncio.sleep(1.0)

    def _missing(self) -> str | None:
        owed = self.model.owes
        if owed is not None:
            return f"transaction {owed.xid} at {owed.lsn:X} never arrives"
        last = self.wal.truth[-1].end if self.wal.truth else 0
        if self.server.slot is None or self.server.slot.confirmed < last:
            return f"the slot never gets to {last:X}"
        for name, partitions in self.broker.topics.items():
            if any(partition.stable < len(partition.log) for partition in partitions):
                return f"what {name} holds can never be read: a transaction stays open"
        return None


def _server_options(dice: random.Random) -> Options:
    """Return what the client asks for, and how the server is."""
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
    """One host: its processes come one after the other, as a supervisor starts them."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.name = f"daemon {number}"
        self._number = number
        self._simulation = simulation
        self._world = simulation.world
        self._dice = simulation.world.dice(self.name)
        self.process = Process(self._world.loop)
        self.lag_s = 0.0
        """How long each of its requests to Kafka may take on its way, at most."""
        self.pipeline: Pipeline | None = None
        self._task: asyncio.Task[None] | None = None

    async def keep(self) -> None:
        """Start it again whenever it has ended."""
        while True:
            self.process = Process(self._world.loop)
            self.process.on_last_step = self.kill
            self._world.note(f"{self.name} starts")
            context_task = asyncio.create_task(self._run(self.process))
            self._task = context_task
            await asyncio.wait((context_task,))
            self._judge(context_task)
            await asyncio.sleep(self._dice.choice((0.1, 1.0, 5.0)))

    async def _run(self, process: Process) -> None:
        PROCESS.set(process)
        self.pipeline = self._make_pipeline(process)
        await self.pipeline.run()

    def _judge(self, task: "asyncio.Task[None]") -> None:
        """Say what ended it; most of what it may stop for does not happen in these worlds."""
        if not self.process.alive or task.cancelled():
            return
        error = task.exception()
        self._world.note(f"{self.name} ended: {error!r}")
        # Kafka was away for too long: its supervisor starts it again. There are no strangers in these worlds.
        excused = isinstance(error, UnavailableError) and "another pipeline" not in str(error)
        if error is None or isinstance(error, DrainTimeout) or excused:
            return
        self._world.violate(f"{self.name} stopped: {type(error).__name__}: {error}")

    def kill(self, *, unnoticed: bool = False) -> None:
        """End it as kill -9 does, or as a host that falls silent."""
        self._world.note(f"{self.name} is killed")
        self.process.kill()
        self._simulation.server.drop(self.process, unnoticed=unnoticed)
        if self._task is not None:
            self._task.cancel()

    def terminate(self) -> None:
        """SIGTERM."""
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
            simulation.mode,
        )
        cut_format = CutFormat(PREFIX.encode(), lambda part: json.dumps(part).encode(), json.loads)

        async def source() -> Any:  # noqa: ANN401 - the scripted one
            await asyncio.sleep(self._dice.choice((0.0, 0.01)))
            return simulation.server.connect(process)

        async def sink() -> KafkaSink:
            return KafkaSink(options, cut_format)

        return Pipeline(self._options(), source, sink, simulation.schemas, simulation.make_spool, METRICS)

    def _options(self) -> PipelineOptions:
        return PipelineOptions(
            name="sim",
            slot="sim",
            tables=Tables(PREFIX, partitions=PARTITIONS),
            types=TypeOptions(),
            session=SessionOptions(self._simulation.limits),
            create_slot=True,
            adopt_slot=False,
            drain_timeout_s=20.0,
        )


# What may go wrong.

Trouble: TypeAlias = Callable[[Simulation], Coroutine[Any, Any, None]]


async def _kill(simulation: Simulation) -> None:
    simulation.dice.choice(simulation.daemons).kill()


async def _kill_at_a_step(simulation: Simulation) -> None:
    """Between two steps that others see: just before a commit, just after it, before it is acknowledged."""
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
        # The server knows at once; the client perhaps only later.
        delay_s = simulation.dice.choice((0.0, 1.0, 20.0))
        asyncio.get_running_loop().call_later(delay_s, active.break_off, "the connection was lost")


async def _cut_off(simulation: Simulation) -> None:
    """The owner loses PostgreSQL and does not notice; its last cut is still on its slow way to Kafka."""
    server = simulation.server
    active = server.active
    if active is None:
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


async def _foreign_transaction(simulation: Simulation) -> None:
    """Somebody writes to the checkpoint topic and does not come to an end."""
    broker = simulation.broker
    transaction = broker.open("somebody", simulation.dice.choice((1.0, 20.0)))
    broker.append(transaction, (f"{PREFIX}.checkpoint", 0), b"x", b"x")


async def _foreign_rows(simulation: Simulation) -> None:
    """Somebody writes to a topic of changes, and perhaps thinks better of it."""
    broker, dice = simulation.broker, simulation.dice
    places = [(name, dice.randrange(PARTITIONS)) for name in sorted(broker.topics) if ".public." in name]
    transaction = broker.open("somebody", dice.choice((0.01, 1.0, 20.0)))
    for place in dice.sample(places, min(len(places), 2)):
        broker.append(transaction, place, b"x", b"x")
    await asyncio.sleep(dice.choice((0.0, 0.1, 2.0)))
    broker.decide(transaction, committed=dice.random() < 0.5)


async def _two_phase(simulation: Simulation) -> None:
    """The operator sets postgres.two_phase, and starts the daemons again."""
    server = simulation.server
    if not server.options.two_phase:
        server.options = replace(server.options, two_phase=True)
        for daemon in simulation.daemons:
            daemon.terminate()


TROUBLES: list[Trouble] = [
    _kill,
    _kill_at_a_step,
    _kill_at_a_step,
    _silence,
    _terminate,
    _cut_connection,
    _cut_off,
    _crash_server,
    _shut_server_down,
    _kafka_away,
    _kafka_weather,
    _kafka_weather,
    _foreign_transaction,
    _foreign_rows,
    _two_phase,
]


def run(seed: int, note: Callable[[str], None] | None = None, mode: Mode | None = None) -> str | None:
    """Run the world of ``seed``, delivering in its own mode or this one; return what went wrong first, or None."""
    loop = Loop()
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(lambda _loop, _context: None)  # what killed processes leave behind
    gc.disable()  # it would take a fifth of the time

    def tell(text: str) -> None:
        if note is not None:
            note(f"{loop.now:10.3f}  {text}")

    world = World(seed, loop, tell, mode)
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
