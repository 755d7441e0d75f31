"""Checks that each Kafka transaction makes exactly those records visible that a read_committed reader must see.

The model is independent of the product. It decodes records with fastavro and the registered schemas, and derives the
expected records from the WAL alone.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias

import fastavro

from pgsluice.avro.binary import POSTGRES_EPOCH_US
from pgsluice.avro.wire import unframe
from pgsluice.kafka.probe import is_probe
from pgsluice.snapshot import FLUSH_PREFIX
from tests.simulation.broker import Broker, Entry, Transaction
from tests.simulation.mirror import Mirror
from tests.simulation.orders import Orders, loaded_by
from tests.simulation.wal import INT4, Change, Snapshot, Truth, Values, Wal
from tests.simulation.wal import Transaction as Prepared

PREFIX = "sim"
PARTITIONS = 2
TRANSACTIONAL_ID = f"pgsluice-{PREFIX}-sim"
SNAPSHOTS_TOPIC = f"{PREFIX}.snapshots"
COMMANDS_TOPIC = f"{PREFIX}.commands"
SERVICE_TOPICS = (f"{PREFIX}.checkpoint", f"{PREFIX}.transactions", SNAPSHOTS_TOPIC, COMMANDS_TOPIC)

Row: TypeAlias = dict[str, int | str | None]

_parsed: dict[int, Any] = {}
"""Parsed schemas by id. All worlds share this dict, because ids are hashes of the schemas."""


@dataclass(slots=True)
class Event:
    """The expected content of a record. A row has two accepted forms: with all columns, and without the column "w".

    The publication may leave out this column.
    """

    op: str
    table: str
    before: list[Row | None]
    image: str
    after: list[Row | None]
    flags: list[str]


def _events(change: Change) -> list[Event]:
    """Return the events that have to be published for a change."""
    nothing: list[Row | None] = [None]
    if change.op == "message":
        return [Event("m", "", nothing, change.content.decode(), nothing, [])]
    if change.table is None:
        return [Event("t", table.name, nothing, "none", nothing, []) for table in change.tables]
    table = change.table
    full = table.identity == "f"
    new = _rows(change, change.new, without=frozenset() if full else change.unchanged)
    old = _rows(change, change.old, key_only=not full)
    image = "full" if full else "key"
    if change.op == "insert":
        return [Event("c", table.name, nothing, "none", new, [])]
    if change.op == "delete":
        return [Event("d", table.name, old, image, nothing, [])]
    if change.op == "update" or not table.has_key:
        return [Event("u", table.name, old if full else nothing, image if full else "none", new, [])]
    flags = ["key_change"]
    return [Event("d", table.name, old, image, nothing, flags), Event("c", table.name, old, image, new, flags)]


def _rows(
    change: Change, values: Values | None, *, key_only: bool = False, without: frozenset[str] = frozenset()
) -> list[Row | None]:
    """Return the accepted forms of a published row. ``without`` has the columns whose values were not sent."""
    if values is None:
        return [None]
    row: Row = {}
    for name, type_ in change.columns:
        value = values[name]
        if value is None or name in without or (key_only and name != "id"):
            row[name] = None
        else:
            row[name] = int(value) if type_ == INT4 and name != "v" else value.decode()
    return [row, {name: value for name, value in row.items() if name != "w"}]


def _copies(log: list[Entry], since: int) -> int:
    """Return the number of markers at offset ``since`` or later that are copies of earlier markers."""
    return sum(entry.marker and any(entry is one for one in log[:at]) for at, entry in enumerate(log) if at >= since)


class Model:
    """Checks each commit to Kafka, and keeps the state that the next check needs."""

    def __init__(self, wal: Wal, schemas: dict[int, Any], violate: Callable[[str], None], *, messages: bool) -> None:
        self.broker: Broker
        self.mirror: Mirror | None = None
        """A consumer's copies, in worlds where tables are loaded."""
        self.orders: Orders | None = None
        """The commands, in worlds that have some."""
        self.two_phase_at: Callable[[], int | None] = lambda: None
        self.delivered = 0
        """The end LSN of the last committed checkpoint, as far as it is valid for the server's present history."""
        self.recorded = 0
        """The end LSN of the last committed checkpoint of any history. It is 0 in at-least-once mode."""
        self.cuts = 0
        self.epoch = 1
        self.births = 1
        """The number of epochs so far."""
        self.born_at = 0
        """The position at which this epoch began, or 0 if the epoch has delivered something or is the first one."""
        self.seen = 0
        """The number of transactions that a reader has seen."""
        self._wal = wal
        self._schemas = schemas
        self._violate = violate
        self._messages = messages
        self._next = 0
        self.cut = 0
        self._switches: list[int] = []
        """The positions at which the server's timelines ended, from the first timeline on."""
        self._restored: list[tuple[int, int]] = []
        """For each restoration from a disk snapshot: the last producer epoch, and the end of the restored WAL."""
        self._is_refused = False
        """Whether a daemon has recorded that it refuses the server, and no epoch has begun since."""
        self._refusals: list[str] = []
        """The recorded reasons of daemons that have refused the server and have not ended yet."""
        self._not_again: set[int] = set()
        """The commit LSNs of transactions that were delivered in a former epoch and cannot be sent again completely."""
        self._last: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._present: set[tuple[str, int, int, int]] = set()
        self._last_seen: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._delivered_at: dict[int, int] = {}
        """By session: the delivered position at the time when the session wrote its first record."""
        self._following: dict[tuple[str, int], int] = {}
        """By partition: the ``next`` in the last cut record that lists the partition."""
        self._listed: set[str] = set()
        """The topics that cut records have listed."""
        self._misplaced: set[tuple[tuple[str, int], int]] = set()
        """The records that are not below the ``next`` of their cut, because a copy of a marker came before them."""

    @property
    def owes(self) -> Truth | None:
        """The first committed transaction with published changes that no reader has seen."""
        truth = self._wal.truth
        return next((one for one in truth[self._next :] if self._events_of(one)), None)

    def _events_of(self, truth: Truth) -> list[Event]:
        """Return the events that have to be published for a transaction. The index of an event is its seq."""
        if truth.lsn in self._not_again and not truth.standalone:
            return []
        changes = truth.changes if self._messages else [one for one in truth.changes if one.op != "message"]
        if self.mirror is not None:
            changes = [one for one in changes if one.is_published and one.prefix != FLUSH_PREFIX]
        return [event for change in changes for event in _events(change)]

    # Events of the server, and the daemons' reactions

    def on_history(self, end: int, *, promoted: bool) -> None:
        """Record that the server went back to ``end``, and writes other WAL from there."""
        if promoted:
            self._switches.append(end)
            self.delivered = min(self.delivered, end)
        else:
            self._restored.append((self.broker.producer_epoch, end))

    @property
    def has_rows_behind(self) -> bool:
        """Whether rows that were read from tables have positions after the end of a timeline."""
        return self.mirror is not None and any(self.mirror.placed_at > end for end in self._switches)

    def _on_this_history(self, end: int, timeline: int, producer_epoch: int | None = None) -> int:
        """Return ``end``, or a lower position if the server left the history of ``end`` at a lower position.

        A cut in flight may belong to a history that the server has left.
        """
        restored = (reach for last, reach in self._restored if producer_epoch is not None and producer_epoch <= last)
        return min((end, *self._switches[timeline - 1 :], *restored))

    def on_loss(self, snapshot: Snapshot) -> None:
        """Record that the server was restored from ``snapshot``, so later transactions do not exist any more."""
        self.on_history(snapshot.end, promoted=False)
        self._next = min(self._next, snapshot.truth)
        self._not_again = {lsn for lsn in self._not_again if lsn < snapshot.end}

    def on_refusal(self, reason: str) -> None:
        """Check that a daemon that refused the server and stopped has recorded ``reason`` in Kafka.

        The record takes effect before the daemon ends. In the meantime, another daemon may have read the record and
        begun a new epoch.
        """
        if reason not in self._refusals:
            self._violate(f"a daemon stopped without recording its reason: {reason}")
            return
        self._refusals.remove(reason)

    # Events of the broker

    def on_commit(self, transaction: Transaction) -> None:
        """Check the records that a Kafka transaction makes visible."""
        by_topic: dict[str, dict[int, list[bytes]]] = {}
        for (topic, partition), offsets in transaction.partitions.items():
            log = self.broker.partition((topic, partition)).log
            by_topic.setdefault(topic, {})[partition] = [log[offset].value or b"" for offset in offsets]
        if transaction.producer != TRANSACTIONAL_ID:
            return
        checkpoints = by_topic.pop(f"{PREFIX}.checkpoint", {}).get(0, [])
        if len(checkpoints) != 1:
            self._violate(f"a Kafka transaction with {len(checkpoints)} checkpoints was committed")
            return
        checkpoint = json.loads(checkpoints[0])
        ended = [json.loads(value) for value in by_topic.pop(SNAPSHOTS_TOPIC, {}).get(0, [])]
        answers = by_topic.pop(COMMANDS_TOPIC, {}).get(0, [])
        cuts = [json.loads(part) for part in by_topic.pop(f"{PREFIX}.transactions", {}).get(0, [])]
        if not cuts:
            self._on_announcement(checkpoint, by_topic)
            return
        if len(cuts) != 1:
            self._violate(f"a Kafka transaction with {len(cuts)} cut records was committed")
            return
        if cuts[0]["epoch"] > self.epoch:
            self._on_epoch(cuts[0], transaction)
        if self.orders is not None and self.mirror is not None:
            self.mirror.asked_for = loaded_by(answers)
            has_events = any(topic["counts"] for topic in cuts[0]["topics"])
            self.orders.on_cut(checkpoint, answers, cuts[0]["snapshots"], has_events=has_events)
        self._on_cut(cuts[0], checkpoint, ended, by_topic, transaction)
        self._check_offsets(cuts[0], transaction)
        self._check_topics(cuts[0], by_topic)

    def _on_announcement(self, checkpoint: dict[str, Any], data: dict[str, Any]) -> None:
        if (checkpoint["end_lsn"] != 0 and not checkpoint["refused"]) or data:
            self._violate("a checkpoint without a cut is neither an announcement nor a refusal")
        if checkpoint["refused"]:
            self._is_refused = True
            self._refusals.append(checkpoint["refused"])

    def _highest_epoch_before(self, transaction: Transaction) -> int:
        """Return the highest epoch of all other cut records.

        This includes aborted records, because a late marker may have made them visible.
        """
        log = self.broker.partition((f"{PREFIX}.transactions", 0)).log
        values = (entry.value for entry in log if entry.value and entry.transaction is not transaction)
        return max((json.loads(value)["epoch"] for value in values if not is_probe(value)), default=self.epoch)

    def _on_epoch(self, birth: dict[str, Any], transaction: Transaction) -> None:
        """Begin an epoch at the slot's position.

        No transaction before this position may be missing. Transactions after it may come again.
        """
        self.births += 1
        if birth["epoch"] > self._highest_epoch_before(transaction) + 1:
            self._violate(f"epoch {birth['epoch']} follows epoch {self.epoch}")
        self.epoch = birth["epoch"]
        self._is_refused = False
        self.cut = max(self.cut, birth["cut"] - 1)
        missing = self.owes
        if missing is not None and missing.end <= birth["end_lsn"]:
            self._violate(f"epoch {self.epoch} begins behind transaction {missing.xid} at {missing.lsn:X}")
        truth, two_phase_at = self._wal.truth, self.two_phase_at()
        since = two_phase_at if two_phase_at is not None else birth["end_lsn"]
        # If a transaction was prepared before the slot's position and committed after it, the server sends only its
        # commit again.
        self._not_again = {
            one.lsn
            for at, one in enumerate(truth)
            if (at < self._next or one.lsn in self._not_again)
            and one.prepare_lsn is not None
            and since <= one.prepare_lsn < birth["end_lsn"]
        }
        self._next = next((at for at, one in enumerate(truth) if one.end > birth["end_lsn"]), len(truth))
        self.delivered = self.recorded = self.born_at = birth["end_lsn"]
        if self.mirror is not None:
            self.mirror.begin_epoch(truth[: self._next])

    def _on_cut(
        self,
        cut: dict[str, Any],
        checkpoint: dict[str, Any],
        ended: list[dict[str, Any]],
        data: dict[str, dict[int, list[bytes]]],
        transaction: Transaction,
    ) -> None:
        end, number, epoch = cut["end_lsn"], cut["cut"], cut["epoch"]
        if self._is_refused:
            self._violate(f"cut {number} was written although the server had been refused")
        end = self._on_this_history(end, checkpoint["timeline"], transaction.epoch)
        about = (checkpoint["end_lsn"], checkpoint["cut"], checkpoint["epoch"])
        if about != (cut["end_lsn"], number, self.epoch) or epoch != self.epoch:
            self._violate(f"cut {number} at {end:X} and its checkpoint contradict each other")
        if number != self.cut + 1:
            self._violate(f"cut {number} follows cut {self.cut}")
        if cut["end_lsn"] < self.delivered:
            self._violate(f"cut {number} goes back from {self.delivered:X} to {end:X}")
        if self.cuts == 0:  # This is the first checkpoint. Transactions before the slot's position are not expected.
            passed = self._take_until(end)
            if self.mirror is not None:
                self.mirror.pass_over(passed)
        # A cut with the same end as the last one contains no transactions. If the server was restored since the last
        # cut, its new WAL may lie before this end. The daemon has not received that WAL yet.
        expected = self._take_until(end) if end > self.delivered else []
        if any(self._events_of(one) for one in expected):
            self.born_at = 0
        found = self._decode(data)
        rows = 0
        if self.mirror is not None:
            records = [one for at in found.values() for copies in at.values() for one in copies if "op" in one[1]]
            self.mirror.on_cut(cut, checkpoint, ended, records, expected)
            rows = self._take_rows(found)
        self._compare(number, expected, found)
        self._check_account(cut, expected, rows)
        self.cuts += 1
        self.cut, self.delivered, self.recorded = number, max(self.delivered, end), cut["end_lsn"]

    def _take_until(self, end: int) -> list[Truth]:
        first = self._next
        truth = self._wal.truth
        while self._next < len(truth) and truth[self._next].end <= end:
            self._next += 1
        return truth[first : self._next]

    def _decode(
        self, data: dict[str, dict[int, list[bytes]]]
    ) -> dict[int, dict[int, list[tuple[str, dict[str, Any]]]]]:
        """Check the order of records in each partition, and return the records by commit LSN and seq."""
        found: dict[int, dict[int, list[tuple[str, dict[str, Any]]]]] = {}
        for topic, partitions in data.items():
            for partition, values in partitions.items():
                for value in values:
                    record = self._read(value)
                    place = (record["epoch"], record["lsn"], record["seq"])
                    if place <= self._last.get((topic, partition), (0, 0, -1)):
                        self._violate(f"{topic} [{partition}] has {place} after a later position")
                    self._last[topic, partition] = place
                    found.setdefault(record["lsn"], {}).setdefault(record["seq"], []).append((topic, record))
        return found

    def _take_rows(self, found: dict[int, dict[int, list[tuple[str, dict[str, Any]]]]]) -> int:
        """Remove the rows that were read from tables, because the mirror has checked them. Return their number."""
        rows = 0
        for at in found.values():
            for seq in [seq for seq in at if seq < -1]:
                rows += len(at.pop(seq))
        for lsn in [lsn for lsn, at in found.items() if not at]:
            del found[lsn]
        return rows

    def _read(self, value: bytes) -> dict[str, Any]:
        schema_id, body = unframe(value)
        if schema_id not in _parsed:
            _parsed[schema_id] = fastavro.parse_schema(self._schemas[schema_id])
        record: dict[str, Any] = fastavro.schemaless_reader(BytesIO(body), _parsed[schema_id], None)
        return record

    def _compare(
        self, number: int, expected: list[Truth], found: dict[int, dict[int, list[tuple[str, dict[str, Any]]]]]
    ) -> None:
        for truth in expected:
            events, at = self._events_of(truth), found.get(truth.lsn, {})
            wanted = [-1] * len(events) if truth.standalone else list(range(len(events)))
            # A message outside transactions may have the same LSN as a commit.
            records = {seq: at.pop(seq) for seq in list(at) if (seq == -1) == truth.standalone}
            if sorted(records) != wanted:
                what = "was lost" if events and not records else "is torn"
                self._violate(
                    f"transaction {truth.xid} at {truth.lsn:X} {what} in cut {number}: seq {sorted(records)} of "
                    f"{len(events)}"
                )
                continue
            for seq, event in zip(wanted, events, strict=True):
                self._compare_event(truth, seq, event, records[seq])
            self.seen += bool(events)
        for lsn, records in found.items():
            if not records:
                continue
            known = next((truth for truth in self._wal.truth if truth.lsn == lsn), None)
            what = (
                "was invented" if known is None else "came twice" if known.end <= self.delivered else "came too early"
            )
            self._violate(f"a transaction at {lsn:X} {what} in cut {number}: seq {sorted(records)}")

    def _compare_event(self, truth: Truth, seq: int, event: Event, records: list[tuple[str, dict[str, Any]]]) -> None:
        where = f"transaction {truth.xid} at {truth.lsn:X}, seq {seq}"
        if len(records) != (PARTITIONS if event.op == "t" else 1):
            self._violate(f"{where}: {len(records)} copies")
        for topic, record in records:
            if event.op == "m":
                self._compare_message(truth, where, event, record)
                continue
            ts = round(record["ts"].timestamp() * 1_000_000)
            about = (topic, record["op"], record["before_image"], record["flags"], record["xid"], ts, record["origin"])
            wanted = (
                f"{PREFIX}.public.{event.table}",
                event.op,
                event.image,
                event.flags,
                truth.xid,
                truth.ts + POSTGRES_EPOCH_US,
                truth.origin,
            )
            if about != wanted:
                self._violate(f"{where}: {about} instead of {wanted}")
            if record["after"] not in event.after or record["before"] not in event.before:
                self._violate(
                    f"{where}: {record['before']}, {record['after']} instead of {event.before}, {event.after}"
                )

    def _compare_message(self, truth: Truth, where: str, event: Event, record: dict[str, Any]) -> None:
        found = (record["content"].decode(), record["transactional"], record["xid"], record["origin"])
        wanted = (event.image, *((False, None, None) if truth.standalone else (True, truth.xid, truth.origin)))
        if found != wanted:
            self._violate(f"{where}: {found} instead of {wanted}")

    def _check_account(self, cut: dict[str, Any], expected: list[Truth], rows: int) -> None:
        published = [truth for truth in expected if self._events_of(truth) and not truth.standalone]
        events = rows + sum(len(self._events_of(truth)) for truth in expected)
        if (cut["transactions"], cut["events"]) != (len(published), events):
            found = f"{cut['transactions']} transactions, {cut['events']} events"
            self._violate(f"cut {cut['cut']} has wrong counts: {found}")
        if published and (cut["first_lsn"], cut["last_lsn"]) != (published[0].lsn, published[-1].lsn):
            self._violate(f"cut {cut['cut']} names the wrong first or last transaction")

    def _check_offsets(self, cut: dict[str, Any], transaction: Transaction) -> None:
        """Check that a consumer that reads each partition from ``first`` to ``next`` gets exactly the cut's records."""
        named = {
            (topic["topic"], place["partition"]): (place["first"], place["next"])
            for topic in cut["topics"]
            for place in topic["offsets"]
        }
        touched = {place for place in transaction.partitions if place[0] not in SERVICE_TOPICS}
        topics = {topic for topic, _ in named}
        for topic in topics | {topic for topic, _ in touched}:
            listed = {number for name, number in named if name == topic}
            wanted = [set(range(len(self.broker.topics[topic])))]
            if topic in self._listed and not cut["full"]:
                wanted.append({number for name, number in touched if name == topic})
            if listed not in wanted:
                self._violate(f"cut {cut['cut']} lists partitions {listed} of {topic} instead of {wanted}")
        if cut["full"] and not self._listed <= topics:
            self._violate(f"cut {cut['cut']} is full, but does not list {self._listed - topics}")
        self._listed |= topics
        for place, (first, following) in named.items():
            self._check_range(
                f"cut {cut['cut']} lists offsets {first} to {following} of {place}",
                transaction,
                place,
                first,
                following,
            )

    def _check_range(
        self, says: str, transaction: Transaction, place: tuple[str, int], first: int, following: int
    ) -> None:
        log, own = self.broker.partition(place).log, transaction.partitions.get(place, [])
        # The daemon has to finish a cut whose checkpoint was made visible by a copy of a marker. It cannot know how
        # many copies there are, so ``next`` may be too low by their number.
        unknown = _copies(log[: own[-1]], first) if own and self._was_shown(transaction) else 0
        if own and not first <= own[0] <= own[-1] < following + unknown:
            self._violate(f"{says}, but has the offsets {own}")
        self._misplaced |= {(place, offset) for offset in own if offset >= following}
        if not self._following.get(place, 0) <= first <= following <= len(log):
            self._violate(f"{says}, but the last cut ended at {self._following.get(place, 0)}, the log at {len(log)}")
        self._following[place] = following
        for offset, entry in enumerate(log[first:following], first):
            if entry.marker or entry.transaction is transaction or (place, offset) in self._misplaced:
                continue
            other = entry.transaction
            if other is not None and other.producer == TRANSACTIONAL_ID and other.committed:
                self._violate(f"{says}, but the record at {offset} belongs to another cut")

    def _was_shown(self, transaction: Transaction) -> bool:
        """Return whether a copy of a marker made the transaction's checkpoint visible before the transaction ended."""
        place = (f"{PREFIX}.checkpoint", 0)
        log = self.broker.partition(place).log
        return any(log[offset].shown for offset in transaction.partitions.get(place, ()))

    def _check_topics(self, cut: dict[str, Any], data: dict[str, dict[int, list[bytes]]]) -> None:
        """For each topic, check the number of changes of each kind, and the schemas in the order of their last use."""
        wanted = {}
        for topic, partitions in data.items():
            changes = {}
            for value in (value for values in partitions.values() for value in values):
                record = self._read(value)
                changes[record["lsn"], record["seq"]] = record.get("op", "m"), unframe(value)[0]
            schemas: dict[int, None] = {}
            for place in sorted(changes):
                schemas.pop(changes[place][1], None)
                schemas[changes[place][1]] = None
            wanted[topic] = dict(Counter(op for op, _ in changes.values())), list(schemas)
        found = {topic["topic"]: (topic["counts"], topic["schema_ids"]) for topic in cut["topics"]}
        if {topic: what for topic, what in found.items() if what != ({}, [])} != wanted:
            self._violate(f"cut {cut['cut']} has {wanted}, but its record says {found}")

    # In at-least-once mode, readers see records one by one, and some of them more than once.

    def on_record(self, session: int, topic: str, partition: int, value: bytes) -> None:
        """Check a record outside transactions."""
        if topic == f"{PREFIX}.checkpoint":
            self._on_checkpoint(json.loads(value))
        elif topic == COMMANDS_TOPIC:
            assert self.orders is not None, "an answer was written in a world without commands"
            self.orders.on_answer(value)
        elif topic == SNAPSHOTS_TOPIC:
            assert self.mirror is not None, "a load was recorded in a world without loads"
            self.mirror.on_ended(json.loads(value))
        elif topic == f"{PREFIX}.transactions":
            number = json.loads(value)["cut"]
            if number not in (self.cut, self.cut + 1):
                self._violate(f"cut {number} follows cut {self.cut}")
            self.cut = number
        else:
            record = self._read(value)
            if self.orders is not None:
                self.orders.on_change()
            if self.mirror is not None and "op" in record:
                self.mirror.on_record(topic, record)
            self._on_change(session, topic, partition, record)

    def _on_change(self, session: int, topic: str, partition: int, record: dict[str, Any]) -> None:
        lsn, seq = record["lsn"], record["seq"]
        where = f"{topic} [{partition}]: the record at {lsn:X}, seq {seq}"
        last_session, *last = self._last_seen.get((topic, partition), (0, 0, -1))
        if session < last_session:
            self._violate(f"{where}, comes from a session that has ended")
        if session == last_session and [lsn, seq] <= last:
            self._violate(f"{where}, goes back within a session")
        self._last_seen[topic, partition] = session, lsn, seq
        if record.get("op") == "r":
            return
        found = [one for one in self._wal.truth if one.lsn == lsn and one.standalone == (seq == -1)]
        events = self._events_of(found[0]) if found else []
        if seq >= len(events):
            self._violate(f"{where}, was invented")
            return
        if found[0].end <= self._delivered_at.setdefault(session, self.delivered):
            self._violate(f"{where}, comes again after the checkpoint")
        event = events[seq]
        copies = PARTITIONS if event.op == "t" else 1
        self._compare_event(found[0], seq, event, [(topic, record)] * copies)
        self._present.add((topic, partition if event.op == "t" else 0, lsn, seq))

    def _on_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        end = checkpoint["end_lsn"]
        if not end:
            return
        end = self._on_this_history(end, checkpoint["timeline"])
        if checkpoint["cut"] != self.cut:
            self._violate(f"the checkpoint of cut {checkpoint['cut']} comes before its record")
        if end < self.delivered:
            self._violate(f"a checkpoint goes back from {self.delivered:X} to {end:X}")
        if self.cuts == 0:
            while self._next < len(self._wal.truth) and self._wal.truth[self._next].end <= end:
                self._next += 1
        for truth in self._take_until(end):
            for seq, event in enumerate(self._events_of(truth), start=-1 if truth.standalone else 0):
                topic = f"{PREFIX}.messages" if event.op == "m" else f"{PREFIX}.public.{event.table}"
                partitions = range(PARTITIONS if event.op == "t" else 1)
                if any((topic, partition, truth.lsn, seq) not in self._present for partition in partitions):
                    self._violate(f"transaction {truth.xid} at {truth.lsn:X}, seq {seq}, was lost before {end:X}")
        self.cuts += 1
        self.delivered = end
        self._look_at_loads(checkpoint)

    def _look_at_loads(self, checkpoint: dict[str, Any]) -> None:
        if self.mirror is not None:
            self.mirror.placed_at = checkpoint["place"]["lsn"]
        if self.orders is not None:
            self.orders.on_checkpoint(checkpoint)

    # Events of the server

    def check_ack(self, lsn: int) -> None:
        """Check that every change before the acknowledged position ``lsn`` is in Kafka.

        After a restoration, a position that was recorded before the restoration may be acknowledged, provided that the
        restored server has no undelivered changes before this position.
        """
        delivered = max(self.delivered, self.recorded)
        if lsn > delivered:
            self._violate(f"{lsn:X} was acknowledged, but only changes before {delivered:X} are committed in Kafka")
            return
        owed = self.owes
        if owed is not None and owed.end <= lsn:
            self._violate(f"{lsn:X} was acknowledged, but no reader has seen transaction {owed.xid} at {owed.lsn:X}")
        two_phase_at = self.two_phase_at()
        if two_phase_at is not None:
            self._check_prepares(lsn, two_phase_at)

    def _check_prepares(self, lsn: int, two_phase_at: int) -> None:
        """Check that transactions that were prepared before an acknowledged position are in Kafka.

        The server never sends their rows again.
        """
        for transaction in self._wal.prepared:
            prepare = transaction.prepared
            if prepare is not None and two_phase_at <= prepare.lsn < lsn and self._rows_of(transaction):
                self._violate(f"{lsn:X} was acknowledged, but transaction {prepare.xid} is prepared at {prepare.lsn:X}")
        for truth in self._wal.truth[self._next :]:
            if truth.prepare_lsn is not None and two_phase_at <= truth.prepare_lsn < lsn and self._events_of(truth):
                self._violate(
                    f"{lsn:X} was acknowledged, but transaction {truth.xid}, prepared at {truth.prepare_lsn:X}, is not "
                    "committed in Kafka"
                )

    def _rows_of(self, transaction: Prepared) -> bool:
        return any(
            change.subxid not in transaction.aborted
            and change.is_published
            and (self._messages or change.op != "message")
            for change in transaction.changes
        )
