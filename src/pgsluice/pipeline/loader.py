"""Loads tables: reads their rows in chunks while the stream continues, and inserts each chunk at its position.

The loader runs concurrently with the session's work. It reads each chunk at a snapshot that is taken between two
transactions. From then on, a :class:`pgsluice.round.Round` decides which transactions are delivered immediately, and
which wait until the chunk is in the open cut. So at the end of every cut, the rows that were read so far, together with
the changes after them, are the same as in the table at that position.

An error during a load never stops the stream. The loader logs the error and tries again later.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

import structlog

from pgsluice.commands import CommandState
from pgsluice.errors import SourceUnavailable, TableUnreadable
from pgsluice.loads import Load, Loaded, LoadPosition
from pgsluice.metrics import Metrics
from pgsluice.pipeline.alterations import Alterations
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.encoders import Encoders
from pgsluice.pipeline.ends import Reader, Source, Stream
from pgsluice.pipeline.inserter import Inserter, Opened
from pgsluice.pipeline.load_report import SHOWN_MAX, LoadReport, LoadWatch, TableReport, TableState
from pgsluice.pipeline.reading import LoadingSession, LoadingTable, LoadOptions, TableReading
from pgsluice.pipeline.requests import Requests
from pgsluice.pipeline.rounds import Rounds, Seams
from pgsluice.pipeline.trust import distrust
from pgsluice.printable import quoted
from pgsluice.relation import PublishedName, Relation, TableId
from pgsluice.snapshot import TableSize
from pgsluice.transaction import Transaction

log = structlog.get_logger(__name__)

LOOK_S: Final = 10.0
"""The interval at which the loader looks for published tables that are not loaded yet."""

AGAIN_S: Final = 2.0
AGAIN_MAX_S: Final = 60.0
"""The loader waits before it tries again to read a table. The wait grows from AGAIN_S to AGAIN_MAX_S."""

SHOWN_S: Final = 0.02
"""The interval at which the loader checks whether the server has proved that it has the same history as in earlier
sessions. Before the server has proved this, no table is read."""

STANDBY: Final = (
    "Tables cannot be loaded from a standby. Set snapshot.primary to the primary, or connect pgsluice to it."
)

REPORT_S: Final = 1.0
"""While tables are being read, the report of the loads is created at this interval. Creating it more often would be
expensive, because there may be thousands of tables."""


class Loader:
    """The loads of one session."""

    def __init__(  # noqa: PLR0913 - the arguments are the ends, and the state of former sessions
        self,
        source: Source,
        stream: Stream,
        encoders: Encoders,
        seams: Seams,
        options: LoadOptions,
        metrics: Metrics,
        *,
        epoch: int,
        commit_timestamps: bool,
        loads: Sequence[Load],
        load_position: LoadPosition,
        loaded: Mapping[tuple[str, str], Loaded],
        commands: CommandState,
        tracks_loads: bool,
    ) -> None:
        self._source = source
        self._reader: Reader = source.reader()
        self._encoders = encoders
        self._seams = seams
        self._options = options
        if options.in_each_epoch:
            loaded = {name: one for name, one in loaded.items() if one.epoch == epoch}
        self._begun = Begun(encoders, epoch, loads, loaded)
        for load in loads:
            if not options.is_initial and commands.of(load.name) is None:
                self._begun.drop(load.oid)
        self.requests = Requests(seams.outbox, self._begun, commands, seams.wake)
        self._rounds = Rounds(self._reader, stream, seams, metrics.snapshot_held_seconds.inc)
        self._inserter = Inserter(
            *(seams.outbox, self._begun, self.requests, load_position), epoch=epoch, commit_timestamps=commit_timestamps
        )
        self._tracks_loads = tracks_loads
        loads_again = options.is_initial and options.is_altered
        self._alterations = Alterations(source, encoders, self._begun, self._inserter, seams, loads_again=loads_again)
        self._tables: dict[int, LoadingTable] = {}
        """The tables to load, by oid."""
        self.looked = asyncio.Event()
        """Set as soon as the loader knows which tables are to be loaded."""
        self.at_work = asyncio.Lock()
        """Held while the loader looks for tables and while it reads rows. A pause of the pipeline waits for this lock,
        for two reasons. A round can end only if the stream continues. And the end of a round releases transactions that
        were received before the pause."""
        self.obstacle: str | None = None
        """The reason why no table can be loaded from this server, if there is one."""
        self._wake = asyncio.Event()
        session = LoadingSession(source, self._reader, encoders, seams, options, metrics, self._begun, self.requests)
        self._reading = TableReading(
            session, self._rounds, self._inserter, self._tables, self._on_end, self._say_if_due
        )
        self._published: Sequence[PublishedName] = ()
        self._strange: dict[int, PublishedName] = {}
        """The tables that are not read because their owners are not trusted, by oid."""
        self._watch = LoadWatch()
        self._said_at = 0.0
        self._trouble: str | None = None
        """Why tables could not be read at the last attempt. None after a successful read."""
        self.report: LoadReport | None = None
        """The last report of the loads. None until the published tables are known."""

    @property
    def loading(self) -> Mapping[tuple[str, str], TableId]:
        """Return the tables that are being loaded or are to be loaded, by schema and name."""
        strange = {(one.namespace, one.name): one for one in self._strange.values()}
        return strange | {one.name: one.relation for one in self._tables.values()}

    def has_begun(self, relation: TableId) -> bool:
        """Return whether the load of the table has begun, or a command has requested it."""
        return self._is_asked_for(relation) or self._begun.of(relation.oid) is not None

    def take_up(self, relations: Iterable[Relation]) -> None:
        """Add tables that a command requests. Call it while the session's work is paused."""
        for relation in relations:
            self._tables[relation.oid] = LoadingTable(relation)
        self.wake()

    def wake(self) -> None:
        """Make the loader look for work immediately."""
        self._wake.set()

    def cancel(self, relation: TableId) -> None:
        """End the load of a table, so that it does not begin again automatically.

        Call it while the session's work is paused.
        """
        name = relation.namespace, relation.name
        self._tables.pop(relation.oid, None)
        self._strange.pop(relation.oid, None)
        if self.requests.where(name):
            self._begun.drop(relation.oid)
            cancelled = None
        else:
            cancelled = self._begun.cancel(relation)
        self.requests.become(self.requests.state, (), () if cancelled is None else (cancelled,))
        self.requests.end(name, "ended", "It was cancelled.")
        log.info("loading was cancelled", table=quoted(*name))

    def on_commit(self, transaction: Transaction) -> None:
        """Record that ``transaction`` has committed and does not have to wait.

        Call it before the transaction joins its cut, because the same cut has to record the rows that got another key
        in the transaction.
        """
        self._rounds.on_commit(transaction)
        if self._begun.is_changed:
            self._seams.outbox.note_loads(self._begun.all())

    @property
    def ignores_commits(self) -> bool:
        """Return whether :meth:`on_commit` has nothing to note."""
        return self._rounds.ignores_commits and not self._begun.is_changed

    def on_held(self) -> None:
        """Record that a transaction waits for the end of the round."""
        self._rounds.on_held()

    def on_position(self, lsn: int) -> None:
        """Record that the server reports position ``lsn`` between two transactions."""
        self._rounds.on_position(lsn)

    async def run(self) -> NoReturn:
        """Load all tables that are to be loaded, and look regularly for more."""
        try:
            if not await self._source.can_read_rows():
                self.obstacle = STANDBY
            is_said = False
            while True:
                try:
                    if not await self._look_unless_paused():
                        await self._rest()
                        continue
                    self.looked.set()
                    self._say()
                    has_more = False
                    if self.obstacle is None:
                        has_more = await self._load_all()
                        self._say()
                        await self._rounds.prune()
                    elif self._tables and not is_said:
                        is_said = True
                        log.warning("no table can be loaded", reason=self.obstacle)
                    if not has_more:
                        await self._rest()
                except SourceUnavailable as error:
                    if str(error) != self._trouble:
                        self._trouble = str(error)
                        log.warning("tables cannot be read now", reason=self._trouble)
                    if self.report is not None:
                        self._say()
                    self._close_tables()
                    await self._reader.close()
                    await asyncio.sleep(AGAIN_S)
        finally:
            await self._reader.close()

    def _close_tables(self) -> None:
        """Close the tables, and stop noting which transactions pass, because nothing can be read for an unknown time.

        Before the loader opens a table again, it waits for all transactions that are changing the table. So it misses
        no transaction.
        """
        for table in self._tables.values():
            table.opened = table.writers = None
        self._rounds.watch(on=False)

    async def _rest(self) -> None:
        """Wait until it is time to look for tables or to try a table again, or until :meth:`wake` is called."""
        now = time.monotonic()
        due_at = min((one.due_at for one in self._tables.values() if one.due_at > now), default=math.inf)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(LOOK_S, due_at - now)):
                await self._wake.wait()
        self._wake.clear()

    async def _until_shown(self) -> None:
        """Wait until the server has proved that it has the same history as in earlier sessions."""
        while self._seams.progress.awaits_resent:  # noqa: ASYNC110 - no event reports the proof
            await asyncio.sleep(SHOWN_S)

    async def _look_unless_paused(self) -> bool:
        """Look for tables, and return True. If the pipeline is paused, do nothing and return False.

        During a pause, the loader must not look for tables, for two reasons. First, it may find stale tables, whose
        marks have to be delivered. Second, it would wait for the proof that the server has the same history as
        before. The proof comes from the stream, which does not advance during a pause.
        """
        async with self.at_work:
            if self.requests.state.is_pipeline_paused:
                return False
            await self._look()
            return True

    async def _look(self) -> None:
        """Find the tables to load: those that were never loaded or are stale, and those that commands request."""
        await self._until_shown()
        # Commands can request more tables while the server answers. What it answers does not apply to those.
        known, requests = list(self._tables), list(self.requests.state.requests)
        is_needed = self._options.is_initial or bool(self.requests.state.requests) or self._begun.has_loaded
        if is_needed:
            self._published = await self._alterations.look()
        if not self._tracks_loads:
            await self._assume()
        if not is_needed:
            return
        wanted = {one.oid: one for one in self._published if self._may_load(one) and self._is_wanted(one)}
        trusted = {oid: one for oid, one in wanted.items() if one.is_trusted or self._encoders.names(one)}
        self._begun.keep_only(wanted)
        for oid in known:
            if oid not in trusted:
                self._tables.pop(oid, None)
        await self._leave_out([one for oid, one in wanted.items() if oid not in trusted])
        async for relation in self._source.published_relations(list(trusted.values())):
            table = self._tables.get(relation.oid)
            if (table is None or table.relation != relation) and self._is_wanted(relation):
                self._tables[relation.oid] = LoadingTable(relation)
        await self._ask_sizes()
        names = {(one.namespace, one.name) for one in wanted.values()}  # with all tables that commands request
        for request in requests:
            if request.name not in names and request in self.requests.state.requests:
                async with self._seams.pause():
                    self.requests.end(request.name, "ended", "It is not published any more.")
        self._watch_if_needed()

    async def _assume(self) -> None:
        """Record once which tables count as loaded because an earlier version of pgsluice delivered their changes."""
        published = self._published if self._options.assumes else ()
        delivered = [one for one in published if self._encoders.possible_policy(one) is not None]
        async with self._seams.pause():
            found = self._begun.assume(delivered)
            self._seams.outbox.note_assumed(found)
            self._seams.wake()
        self._tracks_loads = True
        if found:
            log.warning(
                "tables count as loaded, because an earlier version has delivered their changes: to read the rows that "
                "are older than these changes, run `pgsluice snapshot start`",
                tables=len(found),
            )

    async def _leave_out(self, tables: Sequence[PublishedName]) -> None:
        """Record that these tables are not read, because their owners are not trusted. Log the new ones.

        There may be any number of such tables. So the loader does not ask the server for their details, and does not
        add them to the tables that wait to be loaded.
        """
        former, self._strange = self._strange, {one.oid: one for one in tables}
        new = {(one.namespace, one.name): one for one in tables if one.oid not in former}
        for one in list(new.values())[:SHOWN_MAX]:
            log.warning("a table cannot be read now", table=str(one), reason=distrust(one))
        for request in self.requests.state.requests:
            if request.name in new:
                async with self._seams.pause():
                    self.requests.note(request.name, distrust(new[request.name]))
        if len(new) > SHOWN_MAX:
            log.warning(
                "further tables cannot be read, because their owners are not trusted", tables=len(new) - SHOWN_MAX
            )

    async def _ask_sizes(self) -> None:
        new = {oid: one for oid, one in self._tables.items() if one.size is None}
        if new:
            sizes = await self._source.table_sizes(list(new))
            for oid, one in new.items():
                one.size = sizes.get(oid, TableSize())

    def _is_wanted(self, relation: TableId) -> bool:
        """Return whether the table is to be loaded: a command requests it, it was never loaded, or it is stale."""
        if self._is_asked_for(relation) or not self._options.is_initial:
            return self._is_asked_for(relation)
        return not (self._begun.is_loaded(relation) or (self._is_stale(relation) and not self._options.is_altered))

    def _is_stale(self, relation: TableId) -> bool:
        loaded = self._begun.loaded(relation)
        return loaded is not None and loaded.state == "stale"

    def _may_load(self, relation: TableId) -> bool:
        """Return whether the settings or a command allow the table to be loaded."""
        policy = self._encoders.possible_policy(relation)
        return policy is not None and (policy.is_loaded or self._is_asked_for(relation))

    def _is_asked_for(self, relation: TableId) -> bool:
        return self.requests.of((relation.namespace, relation.name)) is not None

    def _say(self) -> None:
        """If there are published tables, update the report for the status, and log it from time to time."""
        if not self._published:
            return
        now = self._said_at = time.monotonic()
        self.report = self._watch.report(map(self._report_of, self._published), now)
        self._watch.say(self.report, now)

    def _say_if_due(self) -> None:
        if time.monotonic() - self._said_at > REPORT_S:
            self._say()

    def _report_of(self, relation: PublishedName) -> TableReport:
        table, loaded = self._tables.get(relation.oid), self._begun.loaded(relation)
        if relation.oid in self._strange:
            return TableReport(str(relation), "blocked", reason=distrust(relation))
        if table is None:
            state = _REPORTED.get(loaded.state, "skipped") if loaded is not None else "skipped"
            rows = loaded.rows if loaded is not None and state in ("loaded", "stale") else 0
            return TableReport(str(relation), state, rows, is_stale=state == "stale")
        load, reason = self._begun.of(relation.oid), table.said or self.obstacle or self._trouble
        state = "waiting" if load is None else "loading"
        if table.is_out or reason is not None:
            state = "left_out" if table.is_out else "blocked"
        estimated = 0 if table.size is None else table.size.rows
        rows = 0 if load is None else load.rows
        return TableReport(str(relation), state, rows, estimated, reason, is_stale=self._is_stale(relation))

    def _watch_if_needed(self) -> None:
        self._rounds.watch(on=self.obstacle is None and any(not one.is_out for one in self._tables.values()))

    async def _load_all(self) -> bool:
        """Read until every table is loaded or has to wait.

        If it is time to look for tables before that, return True.
        """
        look_at = time.monotonic() + LOOK_S
        while True:
            now = time.monotonic()
            ready = [one for one in self._tables.values() if not one.is_out and one.due_at <= now]
            if not ready or self.requests.state.is_paused or self.requests.state.is_pipeline_paused:
                return False
            if now >= look_at:
                return True
            await asyncio.sleep(self._reading.wait_s(now))
            await self._seams.outbox.until_closed()
            async with self.at_work:
                if not self.requests.state.is_pipeline_paused:
                    await self._advance(min(ready, key=self._place_in_line))
            self._watch_if_needed()
            self._say_if_due()

    def _place_in_line(self, table: LoadingTable) -> tuple[bool, float, int]:
        """Return the sort key of a table among those that are ready.

        A table whose load has begun comes first, so that few loads are unfinished at a time and every checkpoint stays
        small. The other tables follow in the order in which they became ready, beginning with the tables that never had
        to wait. Among tables that never had to wait, small ones come before large ones, so that many are finished
        early.
        """
        size = 0 if table.size is None else table.size.bytes
        return self._begun.of(table.relation.oid) is None, table.due_at, size

    def _on_end(self, opened: Opened) -> None:
        del self._tables[opened.oid]
        if opened.shape.where:
            self.wake()  # the command requested only some rows, so the whole table may still have to be loaded

    async def _advance(self, table: LoadingTable) -> None:
        """Open the table if necessary, and read its next rows.

        If this fails for a reason that concerns only this table, log the reason, and try again later. The wait grows
        with each failure. The other tables continue.
        """
        try:
            if table.opened is None:
                table.opened = await self._reading.open(table)
            if table.opened is None:
                if not table.is_out:
                    del self._tables[table.relation.oid]  # if the table is published, the next look finds it again
                return
            await self._reading.read(table, table.opened)
            table.failures, table.said, self._trouble = 0, None, None
        except TableUnreadable as error:
            table.opened = None
            table.due_at = time.monotonic() + min(AGAIN_S * 2**table.failures, AGAIN_MAX_S)
            table.failures = min(table.failures + 1, 10)
            if str(error) != table.said:
                table.said = str(error)
                log.warning("a table cannot be read now", table=str(table.relation), reason=table.said)
                async with self._seams.pause():
                    self.requests.note(table.name, table.said)


_REPORTED: Final[Mapping[str, TableState]] = {"end": "loaded", "assumed": "assumed", "stale": "stale"}
"""The state in the report for each state in a table's record. Tables with other states are reported as skipped."""
