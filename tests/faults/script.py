"""The script of a round of storms (see ``run``): each daemon's options and deaths, and the faults around it.

A seed decides the whole script.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal, Self

from pgsluice.commands import Verb
from pgsluice.kafka.transactional import TransactionalProducer
from tests.faults.daemon import COMMIT_PREPARED, CUT_RECORD, SILENCE, STEPS

BROKERS = 3

PASSES = {
    "message received": 3000,
    "reported": 8,
    "prepared": 4,
    "commit prepared received": 2,
    "rollback prepared received": 2,
    COMMIT_PREPARED: 1,
    "stream committed": 5,
    "stream aborted": 5,
    "spilled": 5,
    "read back": 3,
    "command read": 1,
    "command carried out": 1,
    "load about to end": 1,
    "load ended": 1,
}
"""For each of these steps, the daemon dies at a pass between 1 and this number. The daemon passes these steps either
more often or less often than the other steps."""
USUAL_PASSES = 15
"""The highest pass for a death at any other step. At START_STEPS, the daemon always dies at the first pass."""
EARLY_PASSES = 5
"""The highest pass for a death that has to come early, while most of the faults happen."""
FIRST_STEPS = ("slot announced", "slot created")
"""The steps that are passed only when a pipeline starts for the first time."""
START_STEPS = (
    "streaming, not fenced",
    "fenced, checkpoint not read",
    "checkpoint read",
    SILENCE,
)
"""The steps that are passed once in each session."""

FIRST_STARTS = START_STEPS[:3]
"""The steps of a start that come before the daemon can notice that the server was restored."""

ADOPTING_STEPS = ("checkpoint read", "Kafka transaction begun", "checkpoint produced", "commit sent", "committed")
"""The steps that a daemon passes when it begins a new epoch."""

SCRATCH = (40, 160)

TWO_PHASE_VERSION = 15
TWO_PHASE_STEPS = ("prepared", *(step for step in STEPS if "prepared received" in step))
"""The steps that are passed only if ``two_phase`` is set."""

STREAM_STEPS = ("stream committed", "stream aborted", "spilled", "read back")
"""The steps that are passed only if large transactions are sent before their commit."""

TRANSACTION_STEPS = [name for name, step in STEPS.items() if step.owner is TransactionalProducer]

Mode = Literal["exactly_once", "at_least_once"]

AT_A_MOMENT = "at a moment"

DEATHS_BEFORE_TRAPS = 5
"""If more deaths than this number are drawn, some of them are at steps where a prepared transaction could be lost."""

LIFE_MAX_S = 4.0
"""The longest life of a daemon that dies at a random moment, including its start."""


CHUNK_ROWS = (8, 40)

ORDERED = (
    *["goods"] * 5,
    "loose",
    "loose",
    "debit",
    "credit",
    "document",
    "shape",
    "note",
    "aside",
    "made_1",
    "made_2",
)
"""The tables that commands may load. Tables that are listed several times are loaded more often. Other tables are so
large that their loads would take too long."""

ORDER_PAUSE_S = (1.0, 5.0)
PAUSED_S = (0.5, 2.0)

PARALLEL_VERSION = 16
ORIGIN_VERSION = 16


@dataclass(frozen=True)
class Loading:
    """How tables are loaded. The fields are settings of ``[snapshot]``."""

    mode: str = "initial"
    chunk_rows: int = 40

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        """Draw settings with a small chunk size, so that loads take long."""
        return cls(rng.choice(("initial", "when_needed")), rng.randint(*CHUNK_ROWS))

    def __str__(self) -> str:
        return f"snapshot {self.mode}"


@dataclass(frozen=True)
class Order:
    """A command that is given after a ``pause``."""

    verb: Verb
    pause: float
    table: str = ""
    where: str = ""

    def __str__(self) -> str:
        return f"{' '.join(filter(None, (self.verb, self.table, self.where)))} after {self.pause:.2f} s"


@dataclass(frozen=True)
class Options:
    """The options of the stream. The fields are settings of ``[postgres]``."""

    streaming: str = "on"
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: str = "any"

    @classmethod
    def draw(cls, rng: random.Random, version: int) -> Self:
        """Draw a combination of options that the server supports."""
        streaming = rng.choice(("off", "on", "parallel" if version >= PARALLEL_VERSION else "on"))
        binary, messages = rng.random() < 1 / 2, rng.random() < 1 / 3
        origin = "none" if version >= ORIGIN_VERSION and rng.random() < 1 / 4 else "any"
        return cls(streaming, version >= TWO_PHASE_VERSION and origin == "any", binary, messages, origin)

    @property
    def streams(self) -> bool:
        """Whether large transactions are sent before their commit."""
        return self.streaming != "off" and not self.messages

    def __str__(self) -> str:
        return ", ".join(f"{name} {str(value).lower()}" for name, value in asdict(self).items())


def orders(rng: random.Random, options: Options, count: int) -> list[Order]:
    """Draw ``count`` commands, and two more that pause all loads for a short time."""
    found: list[Order] = []
    while len(found) < count:
        verb: Verb = rng.choices(("start", "cancel"), (4, 1))[0]
        # A load of only some rows never replaces rows. If changes of some origins are not sent, a load of all rows does
        # not replace rows either, so marks cannot tell the two kinds of load apart. Therefore, a load of only some
        # rows is drawn only if the changes of all origins are sent.
        where = "id % 3 = 0" if verb == "start" and options.origin == "any" and rng.random() < 1 / 5 else ""
        table = "goods" if where else rng.choice(ORDERED)
        found.append(Order(verb, rng.uniform(*ORDER_PAUSE_S), table, where))
    at = rng.randrange(len(found) + 1)
    found[at:at] = [Order("pause", rng.uniform(*ORDER_PAUSE_S)), Order("resume", rng.uniform(*PAUSED_S))]
    return found


@dataclass(frozen=True)
class Death:
    """The death of a daemon, when it passes a step for the ``passes``-th time, or after ``seconds``."""

    step: str
    passes: int = 1
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.step}, {f'{self.seconds:.2f} s' if self.step == AT_A_MOMENT else f'pass {self.passes}'}"


@dataclass(frozen=True)
class Fault:
    """A fault around the daemon, which begins after a ``pause`` and lasts for ``seconds``."""

    kind: str
    pause: float
    seconds: float
    broker: int = 1
    direction: str | None = None
    count: int = 0

    def __str__(self) -> str:
        more = f" broker {self.broker}" if "broker" in self.kind or "Kafka" in self.kind else ""
        way = f" {self.direction or 'both'}" if "stall" in self.kind or "byte" in self.kind else ""
        return f"{self.kind}{more}{way} after {self.pause:.2f} s for {self.seconds:.2f} s, {self.count} bytes"


class Notice(StrEnum):
    """The moments at which the daemon can notice that its server was restored."""

    RUNNING = "while the daemon runs"
    AT_ONCE = "before a daemon starts"
    LATE = "before a daemon starts, but after the server has written as much WAL as it lost"


@dataclass(frozen=True)
class Restore:
    """How the server is restored from a snapshot of its disk.

    ``after`` is the number of the daemon's deaths before the restoration.

    Between the snapshot and the restoration, nobody writes to published tables. The server would lose such changes, but
    Kafka would not, so the expected result would be unknown.
    """

    after: int
    scratch: int
    """The number of unpublished transactions between the snapshot and the restoration, each of some tens of KiB."""
    saves_slot: bool
    """Whether the snapshot contains the slot's last position. Otherwise, delivered transactions come again."""
    notice: Notice
    death: Death | None
    """The death of the first daemon that connects to the restored server, if it dies."""
    adopter: Death | None
    """The death of the daemon that is to adopt the slot, if it dies."""

    @classmethod
    def draw(cls, rng: random.Random, deaths: int) -> Self:
        """Draw a restoration for a pipeline whose daemon is going to die ``deaths`` times."""
        notice = rng.choice(list(Notice))
        dies = notice is not Notice.RUNNING and rng.random() < 1 / 2
        return cls(
            rng.randrange(max(1, deaths)),
            rng.randint(*SCRATCH),
            rng.random() < 1 / 2,
            notice,
            Death(rng.choice(FIRST_STARTS)) if dies else None,
            Death(rng.choice(ADOPTING_STEPS)) if rng.random() < 1 / 2 else None,
        )

    def __str__(self) -> str:
        deaths = [f"the daemon dies first: {self.death}"] if self.death else []
        deaths += [f"the adopter dies: {self.adopter}"] if self.adopter else []
        slot = "saved" if self.saves_slot else "not saved"
        story = f"PostgreSQL restored {self.notice}, after {self.after} deaths"
        return ", ".join((story, f"{self.scratch} unpublished transactions", f"slot {slot}", *deaths))


NETWORK = ("cut", "cut at a byte", "stall", "drop", "refuse")

FOREIGN_TRANSACTION = "foreign transactions"
"""Another program writes to every topic of changes, and aborts. Consumers do not see its records, but the records use
up offsets."""

FOREIGN_AT_LEAST = 2
"""The minimum number of foreign transactions per pipeline and round. They have no effect while brokers are down."""

DATABASE_FAULTS = (
    ("daemon frozen", 2),
    (FOREIGN_TRANSACTION, 2),
    *((f"PostgreSQL {name}", 1) for name in NETWORK),
    *((f"Kafka {name}", 1) for name in NETWORK),
)
"""The faults around one pipeline, with their relative frequency. Kills of the pipeline's server are added later."""

BROKER_KILLED = "broker killed"
BROKER_FROZEN = "broker frozen"
BROKER_ISOLATED = "broker isolated"
"""The broker is cut off from the other brokers, but not from clients. It still claims to lead its partitions."""

ISOLATION_S = (8.0, 24.0)
"""The duration of an isolation. New leaders are elected after ``broker.session.timeout.ms``, which is 6 s here."""


def steps(options: Options, mode: Mode) -> list[str]:
    """Return the steps that a daemon with these options can pass, except those of a pipeline's first start."""
    never = [*FIRST_STEPS]
    if not options.two_phase:
        never += TWO_PHASE_STEPS
    if not options.streams:
        never += STREAM_STEPS
    if mode == "at_least_once":
        never += TRANSACTION_STEPS
    return [step for step in STEPS if step not in never]


def deaths(rng: random.Random, count: int, usual: Sequence[str]) -> list[Death]:
    """Draw ``count`` deaths of a daemon that passes the ``usual`` steps.

    About every third death is at a random moment.
    """
    found = [Death(rng.choice(FIRST_STEPS))] if count > 2 and rng.random() < 0.5 else []
    # In at-least-once mode, this death causes repeated records.
    found.append(Death(CUT_RECORD, rng.randint(2, EARLY_PASSES)))
    while len(found) < count:
        if rng.random() < 1 / 3:
            found.append(Death(AT_A_MOMENT, seconds=rng.uniform(0.3, LIFE_MAX_S)))
        else:
            step = rng.choice(usual)
            most = 1 if step in START_STEPS else PASSES.get(step, USUAL_PASSES)
            found.append(Death(step, rng.randint(1, most)))
    if count > DEATHS_BEFORE_TRAPS:
        # First, the daemon lives long enough to deliver prepared transactions. Then it dies at the critical steps. One
        # more death follows, so the consequences show in later sessions.
        traps = [Death(AT_A_MOMENT, seconds=LIFE_MAX_S), Death(SILENCE)]
        traps += [Death(COMMIT_PREPARED)] if COMMIT_PREPARED in usual else []
        found[-len(traps) - 1 : -1] = traps
    return found


def database_weather(rng: random.Random, count: int, kills: int) -> list[Fault]:
    """Draw ``count`` faults around one pipeline, and add ``kills`` kills of its server."""
    kinds = rng.choices(*zip(*DATABASE_FAULTS, strict=True), k=count)
    kinds[:FOREIGN_AT_LEAST] = [FOREIGN_TRANSACTION for _ in kinds[:FOREIGN_AT_LEAST]]
    kinds += ["PostgreSQL killed"] * kills
    rng.shuffle(kinds)
    return [_fault(rng, kind, 0.1, 3.0) for kind in kinds]


def cluster_weather(rng: random.Random, freezes: int, isolations: int, kills: int) -> list[Fault]:
    """Draw faults of brokers, which happen one after the other.

    An isolation is not the first of several faults, because there are no topics yet at the beginning.
    """
    kinds = [BROKER_FROZEN] * freezes + [BROKER_KILLED] * kills
    rng.shuffle(kinds)
    for _ in range(isolations):
        kinds.insert(rng.randint(min(1, len(kinds)), len(kinds)), BROKER_ISOLATED)
    return [_fault(rng, kind, *(ISOLATION_S if kind == BROKER_ISOLATED else (0.1, 8.0))) for kind in kinds]


def _fault(rng: random.Random, kind: str, shortest: float, longest: float) -> Fault:
    direction = rng.choice(("to_server", "to_client", None))
    if kind.endswith("byte"):
        direction = rng.choice(("to_server", "to_client"))
    return Fault(
        kind,
        rng.uniform(0.2, 3.0),
        rng.uniform(shortest, longest),
        rng.randint(1, BROKERS),
        direction,
        rng.randint(0, 200_000),
    )
