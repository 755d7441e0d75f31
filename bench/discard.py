"""``pgsluice`` with a sink that counts its records and drops them, to measure the daemon's cost without Kafka.

Apart from the sink, this is the product's own command line. The daemon writes only one topic, the topic of schemas.
``contenders`` starts this program.
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
    """A reader of commands that never receives a command."""

    async def open(self, state: CommandState) -> CommandState:
        """Return the state unchanged."""
        return state

    async def read(self) -> Sequence[tuple[int, bytes | None]]:
        """Wait forever."""
        await asyncio.Future()
        return ()

    async def close(self) -> None:
        """Do nothing, because there is nothing to close."""


class Discard:
    """A sink that accepts all records and keeps nothing. Each session begins as if nothing had been delivered yet."""

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
        """Ignore the checkpoint."""

    async def refuse(self, checkpoint: Checkpoint) -> None:
        """Ignore the checkpoint."""

    async def recorded(self) -> Recorded:
        """Return nothing, because no cut was ever recorded."""
        return Recorded()

    async def open_topics(self, cut: int, topics: Sequence[str], described: Collection[str]) -> None:
        """Do nothing, because there are no topics."""

    async def open_topic(self, policy: TablePolicy, *, keyed: bool) -> None:
        """Accept every topic."""

    async def prepare_topics(self, policies: Sequence[TablePolicy]) -> None:
        """Do nothing, because there are no topics."""

    async def begin(self) -> None:
        """Do nothing, because there are no transactions."""

    async def produce(self, cut: Cut, records: Sequence[Record]) -> None:
        """Do nothing, because the outbox has already counted the records, and drops them itself."""

    async def loaded(self) -> dict[tuple[str, str], Loaded]:
        """Return nothing, because no table has been loaded."""
        return {}

    def commands(self) -> "NoCommands":
        """Return a reader that finds no commands."""
        return NoCommands()

    async def commit(self, cut: Cut, _checkpoint: Checkpoint) -> None:
        """Count the events for the metrics."""
        cut.topics["discarded"] = TopicUse(counts={"discarded": cut.events})

    async def deliver(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Drop the cut's records, and count its events."""
        cut.records.clear()
        await self.commit(cut, checkpoint)

    async def close(self) -> None:
        """Do nothing, because there is nothing to close."""


MAKE: type[Sink] = Discard
"""The annotation makes the type checker verify that ``Discard`` implements the protocol ``Sink``."""

if __name__ == "__main__":
    vars(daemon)["KafkaSink"] = MAKE
    sys.exit(cli.main())
