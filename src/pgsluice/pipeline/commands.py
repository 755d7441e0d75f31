"""Carries out commands: reads each command, decides on its consequences, and records them in the open cut.

The commands are carried out concurrently with the session's work. One checkpoint contains both the offset after a
command and the command's consequences, so each command is applied exactly once. If a command cannot be carried out, its
answer contains the reason, and the pipeline continues.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NoReturn

import structlog

from pgsluice.commands import TABLES_MAX, WHERE_MAX, Answer, Command, CommandState, Request, read_command
from pgsluice.errors import PrimaryUnavailable, TableRefused, TableUnreadable
from pgsluice.pipeline.encoders import Encoders
from pgsluice.pipeline.ends import CommandReader, Reader, Source
from pgsluice.pipeline.loader import Loader
from pgsluice.pipeline.rounds import Seams
from pgsluice.pipeline.trust import check_trusted
from pgsluice.relation import PublishedName, Relation
from pgsluice.tables import TablePattern

log = structlog.get_logger(__name__)


class _Refusal(Exception):
    """A command has no effect. The message is a sentence with the reason, for the answer."""


class Commands:
    """Carries out the commands of one session."""

    def __init__(
        self, source: Source, commands: CommandReader, encoders: Encoders, seams: Seams, loader: Loader
    ) -> None:
        self._source = source
        self._commands = commands
        self._reader: Reader = source.reader()
        self._encoders = encoders
        self._pause = seams.pause
        self._loader = loader
        self._requests = loader.requests

    async def run(self) -> NoReturn:
        """Carry out commands as they arrive."""
        try:
            state = await self._commands.open(self._requests.state)
            await self._go_on(state.topic_id, state.offset)
            while True:
                for offset, value in await self._commands.read():
                    # A broker that has lost touch with its cluster may show commands again that were already carried
                    # out.
                    if offset >= self._requests.state.offset:
                        await self._take(offset, value)
                await self._reader.close()
        finally:
            await self._commands.close()
            await self._reader.close()

    async def _go_on(self, topic_id: str, offset: int, *answers: Answer) -> None:
        """Record in the open cut that all commands before this offset are processed. Also record ``answers``."""
        async with self._pause():
            state = replace(self._requests.state, topic_id=topic_id, offset=offset)
            if answers or state != self._requests.state:
                self._requests.become(state, answers)

    async def _take(self, offset: int, value: bytes | None) -> None:
        topic_id, command = self._requests.state.topic_id, None
        try:
            command = read_command(value)
        except ValueError as error:
            log.warning("a record in the topic of commands is ignored", offset=offset, reason=str(error))
        if command is None:
            await self._go_on(topic_id, offset + 1)
            return
        try:
            answer = await self._carry_out(command, offset)
        except (_Refusal, TableUnreadable, TableRefused, PrimaryUnavailable) as error:
            answer = Answer(command.id, "refused", str(error))
            await self._go_on(topic_id, offset + 1, answer)
        log.info(
            "command",
            verb=command.verb,
            tables=list(command.tables[:TABLES_MAX]),
            id=command.id,
            outcome=answer.outcome,
            detail=answer.detail,
        )

    async def _carry_out(self, command: Command, offset: int) -> Answer:
        """Record the consequences of the command in the open cut. Return the answer.

        Raise _Refusal if the command cannot be carried out. If a table cannot be read, raise the error that says why.
        """
        _check_in_time(command)
        if command.verb in ("pause_pipeline", "resume_pipeline"):
            return await self._pause_or_resume_pipeline(command, offset)
        if command.verb in ("start", "cancel"):
            # While the pipeline is paused, the loader may not know yet which tables are to be loaded.
            if self._requests.state.is_pipeline_paused:
                raise _Refusal("The pipeline is paused. Run `pgsluice resume`, then give the command again.")
            await self._loader.looked.wait()
        patterns = _patterns(command)
        names, left_out = await self._named(patterns) if command.verb == "start" else ((), ())
        found = await self._loadable(names, command.where)
        async with self._pause():
            state = replace(self._requests.state, offset=offset + 1)
            if command.verb == "start":
                return self._start(command, state, found, left_out)
            if command.verb == "cancel":
                return self._cancel(command, state, patterns)
            detail = "The pipeline itself is paused, until `pgsluice resume`." if state.is_pipeline_paused else ""
            answer = Answer(command.id, "done", detail)
            self._requests.become(replace(state, is_paused=command.verb == "pause"), [answer])
            self._loader.wake()
            return answer

    async def _pause_or_resume_pipeline(self, command: Command, offset: int) -> Answer:
        """Pause the pipeline, so that it delivers nothing after this command, or resume it.

        This code runs only between two transactions, so the command takes effect there. While the state says that
        the pipeline is paused, the session takes no frames from the stream. The lock ``at_work`` makes sure that the
        loader is not in the middle of a round. All changes that were received before the pause are in the same cut as
        the answer or in earlier cuts, so no changes follow the answer.
        """
        async with self._loader.at_work, self._pause():
            _check_in_time(command)  # a second check, because the wait for the pause may have been long
            pauses, former = command.verb == "pause_pipeline", self._requests.state
            answer = Answer(command.id, "done", _said_of_pause(former, pauses=pauses))
            self._requests.become(replace(former, offset=offset + 1, is_pipeline_paused=pauses), [answer])
            self._loader.wake()
            return answer

    async def _named(self, patterns: Sequence[TablePattern]) -> tuple[list[PublishedName], list[PublishedName]]:
        """Return the matching published tables: those that pgsluice may read, and those that it may not read.

        :mod:`.trust` explains why pgsluice may not read some tables. Raise _Refusal if a pattern matches no published
        table. Raise TableUnreadable if pgsluice may read none of the tables that a pattern matches.
        """
        if self._loader.obstacle is not None:
            raise _Refusal(self._loader.obstacle)
        names = {(one.namespace, one.name): one for one in await self._source.published_names()}
        found: dict[tuple[str, str], PublishedName] = {}
        left_out: dict[tuple[str, str], PublishedName] = {}
        for pattern in patterns:
            await asyncio.sleep(0)  # lets other tasks run, because there may be thousands of tables
            matching = {name: names[name] for name in _matching(pattern, names) if self._is_published(names[name])}
            if not matching:
                raise _Refusal(
                    f"No published table matches {pattern}. Add the table to the publication, or correct the name. "
                    "A name consists of schema and table, for example public.orders."
                )
            trusted = {name: one for name, one in matching.items() if self._is_trusted(one)}
            if not trusted:
                check_trusted(next(iter(matching.values())), is_trusted=False)
            found |= trusted
            left_out |= {name: one for name, one in matching.items() if name not in trusted}
        return list(found.values()), list(left_out.values())

    def _is_published(self, table: PublishedName) -> bool:
        return self._encoders.policy(table) is not None

    def _is_trusted(self, table: PublishedName) -> bool:
        return table.is_trusted or self._encoders.names(table)

    async def _loadable(self, names: Sequence[PublishedName], where: str) -> list[Relation]:
        """Return the tables as they are now. Raise an error if a table cannot be read with the condition ``where``."""
        if len(where) > WHERE_MAX:
            raise _Refusal(f"The condition has more than {WHERE_MAX} characters.")
        found = []
        for table in names:
            shape = await self._reader.shape(table)
            if shape is None:
                raise _Refusal(f"Table {table} does not exist any more.")
            check_trusted(table, is_trusted=shape.is_trusted or self._encoders.names(table))
            if where:
                await self._reader.check_readable(replace(shape, where=where))
            found.append(shape.relation)
        return found

    def _start(
        self, command: Command, state: CommandState, found: Sequence[Relation], left_out: Sequence[PublishedName]
    ) -> Answer:
        if busy := [str(one) for one in found if self._loader.has_begun(one)]:
            raise _Refusal(f"{busy[0]} is being loaded already. Wait for the end of that load, or cancel it first.")
        requests = tuple(Request(command.id, one.namespace, one.name, command.where) for one in found)
        try:
            state = state.requesting(requests)
        except ValueError as error:
            raise _Refusal(f"Nothing was begun: {error}.") from None
        notes = ["Loads are paused."] if state.is_paused else []
        if left_out:
            more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
            notes.append(f"Left out: {left_out[0]}{more}, because nobody has chosen to trust their owners.")
        answer = Answer(command.id, "accepted", " ".join(notes), tuple(map(str, found)))
        self._requests.become(state, [answer])
        self._loader.take_up(found)
        return answer

    def _cancel(self, command: Command, state: CommandState, patterns: Iterable[TablePattern]) -> Answer:
        loading = self._loader.loading
        names = dict.fromkeys(name for pattern in patterns for name in _matching(pattern, loading))
        if not names:
            raise _Refusal("None of these tables is being loaded.")
        answer = Answer(command.id, "done", f"{len(names)} cancelled")
        self._requests.become(state, [answer])
        for name in names:
            self._loader.cancel(loading[name])
        return answer


def _check_in_time(command: Command) -> None:
    if command.expires_ms < time.time() * 1000:
        raise _Refusal("The command expired before it was carried out.")


def _said_of_pause(former: CommandState, *, pauses: bool) -> str:
    """Return the answer to a command that pauses or resumes the pipeline."""
    if pauses:
        is_paused = "was paused already" if former.is_pipeline_paused else "is paused"
        return f"The pipeline {is_paused}. PostgreSQL keeps its WAL until `pgsluice resume`."
    goes_on = "The pipeline continues." if former.is_pipeline_paused else "The pipeline was not paused."
    return f"{goes_on} Loads are still paused, until `pgsluice snapshot resume`." if former.is_paused else goes_on


def _patterns(command: Command) -> list[TablePattern]:
    """Return the patterns of the tables that the command names."""
    if command.verb in ("pause", "resume"):
        return []
    if not 0 < len(command.tables) <= TABLES_MAX:
        raise _Refusal(
            f"The command names {len(command.tables)} tables, but it needs at least one, and at most {TABLES_MAX}."
        )
    try:
        return [TablePattern.parse(text) for text in command.tables]
    except ValueError as error:
        raise _Refusal(f"{error}.") from None


def _matching(pattern: TablePattern, names: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    return [name for name in names if pattern.matches(*name)]
