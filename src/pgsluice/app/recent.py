"""The last minutes of a pipeline, for the status page: lag, rates, open transactions, warnings.

Everything is in memory and bounded. Nothing here accesses PostgreSQL or Kafka.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NoReturn

from pgsluice.app.http.overview import OpenTransaction, Overview, TopicRate
from pgsluice.app.log import RecentWarnings
from pgsluice.app.status import Status
from pgsluice.config import Settings, reference
from pgsluice.lsn import format_lsn
from pgsluice.metrics import Delivered, Metrics
from pgsluice.pipeline.session_status import age_s

SAMPLE_S: Final = 5.0
"""How often a sample is taken."""

SAMPLES_MAX: Final = 181
"""The maximum number of samples. They cover the last fifteen minutes."""

RATE_SAMPLES: Final = 13
"""A rate is the mean of one minute. Thirteen samples have twelve intervals of five seconds between them."""

TOPICS_SHOWN: Final = 20
OPEN_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    lag_s: float | None
    delivered: Delivered


class Recent:
    """The last minutes of one pipeline."""

    def __init__(self, settings: Settings, status: Status, metrics: Metrics, warnings: RecentWarnings) -> None:
        self._status = status
        self._metrics = metrics
        self._warnings = warnings
        self._settings = reference.show(settings)
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_MAX)
        self._totals: deque[tuple[float, dict[str, int]]] = deque(maxlen=RATE_SAMPLES)
        """The samples of the last minute: the time, and the number of events of each topic since the start.
        ``metrics.TOTALS_MAX`` limits the number of topics."""
        self._seen: dict[int, float] = {}
        """When each open transaction was seen for the first time."""

    async def keep(self) -> NoReturn:
        """Take a sample every ``SAMPLE_S`` seconds. Never return."""
        while True:
            self.sample(time.monotonic())
            await asyncio.sleep(SAMPLE_S)

    def sample(self, now: float) -> None:
        """Take a sample."""
        lag_s, _ = self._status.lag()
        self._samples.append(_Sample(now, lag_s, self._metrics.delivered))
        self._totals.append((now, dict(self._metrics.topic_events.totals)))
        session = self._status.pipeline.session
        streamed = [] if session is None else session.status.streamed
        self._seen = {xid: self._seen.get(xid, now) for xid in streamed}

    def overview(self) -> Overview:
        """Return what the status page shows besides the status itself."""
        now = time.monotonic()
        rates = sorted(self._rates(), key=lambda one: (-one.per_s, -one.total, one.topic))
        found = list(self._open(now))
        first = self._samples[-min(RATE_SAMPLES, len(self._samples))].delivered if self._samples else Delivered()
        return Overview(
            lag=[(now - one.at, one.lag_s) for one in self._samples],
            events_per_s=list(self._curve(now)),
            topics=rates[:TOPICS_SHOWN],
            more_topics=max(0, len(rates) - TOPICS_SHOWN),
            open=found[:OPEN_SHOWN],
            more_open=max(0, len(found) - OPEN_SHOWN),
            last_minute=self._metrics.delivered.since(first),
            delivered=self._metrics.delivered,
            warnings=self._warnings.newest_first(),
            settings=self._settings,
        )

    def _rates(self) -> Iterator[TopicRate]:
        if not self._totals:
            return
        (began, before), (ended, totals) = self._totals[0], self._totals[-1]
        seconds = max(ended - began, SAMPLE_S)
        for topic, total in totals.items():
            yield TopicRate(topic, (total - before.get(topic, 0)) / seconds, total)

    def _curve(self, now: float) -> Iterator[tuple[float, float | None]]:
        for before, one in zip(self._samples, islice(self._samples, 1, None), strict=False):
            events = one.delivered.events - before.delivered.events
            yield now - one.at, events / max(one.at - before.at, 0.001)

    def _open(self, now: float) -> Iterator[OpenTransaction]:
        """Yield the undelivered transactions: the large one that is being written, and streamed and prepared ones."""
        session = self._status.pipeline.session
        if session is None:
            return
        if session.status.own is not None:
            own, size, seconds = session.status.own
            yield OpenTransaction("large", own.xid, seconds, f"{size:,} bytes written to Kafka so far")
        for xid in session.status.streamed:
            yield OpenTransaction("open", xid, now - self._seen.get(xid, now), "its rows wait for its commit")
        for one in session.status.prepared:
            where = f"prepared as {one.gid} at {format_lsn(one.prepare_lsn)}"
            yield OpenTransaction("prepared", one.xid, age_s(one.prepare_ts), where)
