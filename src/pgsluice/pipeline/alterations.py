"""Finds loaded tables that have values which the stream does not contain.

Such a table was altered so that its rows got values that were not sent, or it is not published any more.

The ``loader`` uses this module each time it reads the list of published tables. The tables that this module finds
become stale. For each of them, a mark in the stream tells consumers that the table is stale. The table is loaded again
unless the settings prevent this.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import structlog

from pgsluice.layout import Layout, unsent
from pgsluice.loads import Loaded
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.encoders import Encoders
from pgsluice.pipeline.ends import Source
from pgsluice.pipeline.inserter import Inserter
from pgsluice.pipeline.rounds import Seams
from pgsluice.relation import PublishedName, Relation, in_portions
from pgsluice.tables import TablePolicy

log = structlog.get_logger(__name__)


class Alterations:
    """Compares the layout of each loaded table with the layout that it had when it was loaded."""

    def __init__(
        self, source: Source, encoders: Encoders, begun: Begun, inserter: Inserter, seams: Seams, *, loads_again: bool
    ) -> None:
        """``loads_again`` says whether the loader reads altered tables again automatically."""
        self._source = source
        self._encoders = encoders
        self._begun = begun
        self._inserter = inserter
        self._seams = seams
        self._loads_again = loads_again

    async def look(self) -> Sequence[PublishedName]:
        """Compare the present layout of each loaded table with the layout that was recorded for it.

        Return the published tables.
        """
        published = await self._source.published_names()
        for some in in_portions([one for one in published if self._begun.complete(one) is not None]):
            layouts = await self._source.layouts([one.oid for one in some])
            async for relation in self._source.published_relations(some):
                loaded, layout = self._begun.complete(relation), layouts.get(relation.oid)
                names = [one.name for one in relation.columns]
                # If a column was renamed or added between the two queries, only the next call compares the table.
                if loaded is not None and layout is not None and layout.has(names):
                    await self._compare(relation, loaded, layout.only(names))
        await self._note_left({one.oid for one in published})
        return published

    async def _note_left(self, published: Collection[int]) -> None:
        """Mark tables that are not published any more.

        Even if such a table is published again, the changes made in the meantime will be missing.
        """
        left = [one for one in self._begun.all_complete() if one.oid not in published]
        there = await self._source.layouts([one.oid for one in left]) if left else {}
        for loaded in left:
            table = PublishedName(loaded.oid, loaded.schema, loaded.table, columns=0, is_trusted=False)
            policy = self._encoders.possible_policy(table)
            if policy is not None and loaded.oid in there:  # a dropped table needs no mark
                async with self._seams.pause():
                    await self._note_stale(loaded, policy)
                log.warning(
                    "a table is not published any more, so copies of it miss its changes from now on",
                    table=str(table),
                    next=f"publish it again; then {self._next(policy, str(table))}",
                )

    async def _compare(self, relation: Relation, loaded: Loaded, layout: Layout) -> None:
        reason = None
        if loaded.layout is not None:
            layout = layout.after(loaded.layout)
            if layout == loaded.layout:
                return
            reason = unsent(loaded.layout, layout)
        policy = self._encoders.possible_policy(relation)
        if policy is None:
            return
        async with self._seams.pause():
            self._encoders.forget(relation.oid)
            if reason is None:
                await self._inserter.note(replace(loaded, layout=layout), 0)
            else:
                await self._note_stale(loaded, policy)
        if reason is not None:
            log.warning(
                "a table was altered, and existing rows have values that the stream did not send",
                table=str(relation),
                reason=reason,
                next=self._next(policy, str(relation)),
            )

    async def _note_stale(self, loaded: Loaded, policy: TablePolicy) -> None:
        """Record that the table is stale, and add a mark for consumers. Call it while the session's work is paused."""
        progress = self._seams.progress
        lsn = max(progress.received, progress.delivered)
        await self._inserter.note(replace(loaded, state="stale"), lsn, policy.topic)
        self._seams.wake()

    def _next(self, policy: TablePolicy, table: str) -> str:
        is_loaded_again = self._loads_again and policy.is_loaded
        return "it is loaded again" if is_loaded_again else f"load it again: pgsluice snapshot start {table}"
