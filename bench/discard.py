"""``pgsluice`` with a sink that counts its records and drops them, to measure the daemon's cost without Kafka.

Everything else is the product's own command line. The only topic that it writes is that of schemas. ``contenders``
starts it.
"""

import asyncio
import sys
from collections.abc import Collection, Sequence

from pgsluice.app import cli, daemon
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import CommandState
from pgsluice.cut import Cut, Recorded, TopicUse
from pgsluice.kafka.options import CutFormat, SinkOptions
from pgsluice.loads import Loaded
from pgsluice.pipeline.ends import Sink
from pgsluice.record import Record
from pgsluice.tables import TablePolicy


class NoCommands:
    """Reads a topic that stays empty."""

    async def open(self, state: CommandState) -> CommandState:
        """Begin at its end."""
        return state

    async def read(self) -> Sequence[tuple[int, bytes | None]]:
        """Wait forever."""
        await asyncio.Future()
        return ()

    async def close(self) -> None:
        """Do nothing, because there is nothing to close."""


class Discard:
    """Accepts everything, and starts empty in each session."""

    def __init__(self, _options: SinkOptions, _cut_format: CutFormat) -> None:
        pass

    async def prepare(self) -> None:
        """Do nothing, because there are no topics."""

    async def present_checkpoint(self) -> Checkpoint | None:
        """Return nothing, because nothing was ever committed."""
        return None

    is_atomic = True

    async def checkpoints(self) -> Sequence[Checkpoint]:
        """Return nothing, because nothing was ever committed."""
        return ()

    async def fence(self) -> None:
        """Do nothing, because there is no other producer."""

    async def announce(self, checkpoint: Checkpoint) -> None:
        """Forget it."""

    async def refuse(self, checkpoint: Checkpoint) -> None:
        """Forget it."""

    async def recorded(self) -> Recorded:
        """Return nothing, because no cut was ever recorded."""
        return Recorded()

    async def open_topics(self, cut: int, topics: Sequence[str], described: Collection[str]) -> None:
        """Do nothing, because there are no topics."""

    async def open_topic(self, policy: TablePolicy, *, keyed: bool) -> None:
        """Accept every topic."""

    async def prepare_topics(self, policies: Sequence[TablePolicy]) -> None:
        """Every topic is as good as any."""

    async def begin(self) -> None:
        """Do nothing, because there are no transactions."""

    async def produce(self, cut: Cut, records: Sequence[Record]) -> None:
        """Drop the records. The outbox has counted them, and drops its list."""

    async def loaded(self) -> dict[tuple[str, str], Loaded]:
        """Return nothing: no table is loaded."""
        return {}

    def commands(self) -> "NoCommands":
        """Return a reader that finds no commands."""
        return NoCommands()

    async def commit(self, cut: Cut, _checkpoint: Checkpoint) -> None:
        """Count the events for the metrics."""
        cut.topics["discarded"] = TopicUse(counts={"discarded": cut.events})

    async def deliver(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Do nothing, because nothing is kept."""
        cut.records.clear()
        await self.commit(cut, checkpoint)

    async def close(self) -> None:
        """Do nothing, because there is nothing to close."""


MAKE: type[Sink] = Discard
"""Let the type checker compare the class with the protocol that a pipeline expects."""

if __name__ == "__main__":
    vars(daemon)["KafkaSink"] = MAKE
    sys.exit(cli.main())
