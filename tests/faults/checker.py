"""Compares what a read_committed consumer saw with what PostgreSQL committed, without any code of pgsluice.

The replay of ``tests.support.replay`` applies each cut to copies of the tables, and checks the cut itself. This module
compares each whole transaction with its line in the ledger: the row that the transaction wrote to the table ``ledger``.
It checks the sum of all balances after each cut. It compares rows that loads have read, and complete copies, with the
content of the tables at the same position. This content comes from the module ``witness``.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple, Self

import psycopg

from tests.faults.script import Options
from tests.faults.witness import KEY, Key, Row, TableContents, Truth
from tests.faults.workload import TABLES, TOTAL, VISITED, WORKER_NUMBERS
from tests.support.reader import Cut, Event
from tests.support.replay import Replay, Table, contents, differences

Position = tuple[int, int, int]

FIRST_EPOCH = 1

Rows = tuple[list[str], Counter[tuple[str | None, ...]]]
"""The columns and rows of a table. Values are in PostgreSQL's text format."""


@dataclass
class Tally:
    """What was checked, and the problems that were found."""

    cuts: int = 0
    transactions: int = 0
    prepared: int = 0
    messages: int = 0
    """The number of messages, in transactions and outside of them."""
    events: int = 0
    sums: int = 0
    positions: int = 0
    """The number of positions of the slot that were compared with the checkpoints."""
    loads: int = 0
    """The number of loads that have ended."""
    rows_read: int = 0
    compared: int = 0
    """The number of rows of copies that were compared with tables at the end of a cut."""
    commands: int = 0
    repeated: int = 0
    """The number of records that were delivered again.

    This is allowed in at-least-once mode, and at the beginning of a new epoch.
    """
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    out_of_order: int = 0
    untrue: int = 0
    """The number of tables with a loaded row or a consumer's copy that differed from PostgreSQL's content."""
    other: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add the figures of another run."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def complain(self, kind: str, what: str) -> None:
        """Count a problem under its kind, and describe it."""
        setattr(self, kind, getattr(self, kind) + 1)
        self.problems.append(f"{kind.replace('_', ' ')}: {what}")


class Checkpoint(NamedTuple):
    """A committed checkpoint: when it was written, and the LSN up to which everything was delivered."""

    moment_s: float
    end_lsn: int
    epoch: int = FIRST_EPOCH


@dataclass(frozen=True)
class Contents:
    """The final content of the database, without the changes that the options exclude from the stream."""

    committed: frozenset[int]
    """The numbers of the committed transactions, from the ledger."""
    asides: Mapping[int, int]
    """The LSNs of messages outside of transactions, by number, if their writers committed."""
    last_aside: int
    """The highest number of a message outside of transactions.

    Messages whose writers rolled back count as well, because they may be delivered.
    """
    tables: Mapping[str, Rows]

    @classmethod
    def of(cls, connection: psycopg.Connection, options: Options, made: Sequence[str] = ()) -> Self:
        """Read the database. ``made`` has the tables that were created during the storm."""
        some = " WHERE origin IS NULL" if options.origin == "none" else ""
        committed = connection.execute(f"SELECT id FROM ledger{some}").fetchall()
        asides = connection.execute(f"SELECT id, (lsn - '0/0')::bigint FROM aside{some}").fetchall()
        ((last_aside,),) = connection.execute("SELECT last_value FROM aside_id_seq").fetchall()
        queries = {name: f"SELECT * FROM public.{name}{some if name in VISITED else ''}" for name in (*TABLES, *made)}
        return cls(
            frozenset(number for (number,) in committed),
            dict(asides) if options.messages else {},
            last_aside,
            {name: contents(connection, query) for name, query in queries.items()},
        )

    def without(self, name: str) -> Self:
        """Return the contents without one table."""
        return replace(self, tables={other: rows for other, rows in self.tables.items() if other != name})


class Checker:
    """Checks the records of one pipeline, first cut by cut and then as a whole."""

    def __init__(
        self,
        replay: Replay,
        options: Options,
        adoptions: Sequence[int] = (),
        prepares: Mapping[int, int] | None = None,
        truth: Truth | None = None,
    ) -> None:
        """Set the replay that applies the cuts, and the facts with which the results are compared.

        ``adoptions`` has the position of the slot at each start with --adopt-slot. ``prepares`` has the end of the WAL
        before each PREPARE TRANSACTION, by the transaction's number. ``truth`` gives the content of the tables at each
        position. Without ``truth``, loaded rows and copies are not compared with the tables.
        """
        self.tally = Tally()
        self._truth = truth
        self._untrue: set[str] = set()
        """The tables whose copies were already reported as wrong."""
        self._adoptions = deque(adoptions)
        self._prepares = (prepares or {}) if options.two_phase else {}
        self._epoch = FIRST_EPOCH
        self._epoch_begins = 0
        self._delivered: list[list[Event]] = []
        """The transactions of this epoch, and messages outside of transactions, in the order of delivery."""
        self._due: deque[list[Event]] = deque()
        """The transactions of the previous epoch that have to come again at the beginning of this epoch."""
        self._replay = replay
        self._options = options
        self._seen: set[int] = set()
        self._asides: dict[int, int] = {}
        """The LSNs of delivered messages outside of transactions, by number."""
        self._last: Position = (0, 0, 0)
        self._last_ticket = 0
        self._last_total = TOTAL
        self._last_numbers: dict[int, int] = {}
        """The number of the last transaction of each worker."""

    def check_cuts(self, cuts: Iterable[Cut]) -> None:
        """Apply cuts in order, and check the content after each of them."""
        for cut in cuts:
            self._check_epoch(cut)
            self._check_cut(cut, {_beginning(found[0]) for found in self._take_repeated(cut)})

    def _check_cut(self, cut: Cut, repeated: set[Position]) -> None:
        def is_new(event: Event) -> bool:
            return _beginning(event) not in repeated

        self._replay.apply([cut], is_new)
        self.tally.cuts += 1
        self._check_events(filter(is_new, _changes(cut)))
        if self._truth is not None:
            self._check_copies(cut, is_new, self._truth)
        if self._seen:
            self._check_sum(cut)

    # --- loads

    def _check_copies(self, cut: Cut, is_new: Callable[[Event], bool], truth: Truth) -> None:
        """Compare the rows that were read with the tables. In complete copies, also compare all changed rows."""
        touched = self._check_rows_read(cut, truth)
        touched |= truth.advance(cut.record["epoch"], cut.record["end_lsn"])
        touched |= {_touched(event) for event in _changes(cut) if event.op != "m" and is_new(event)}
        ended = [mark["table"] for mark in cut.record["snapshots"] if mark["state"] == "end"]
        self.tally.loads += len(ended)
        whole = {*ended, *(table for table, key in touched if key is None)}
        touched = {one for one in touched if one[0] not in whole} | {(table, None) for table in whole}
        for table, key in touched:
            if not self._replay.table(f"public.{table}").is_partial:
                self._check_copy(cut, table, key, truth.table(table))

    def _check_rows_read(self, cut: Cut, truth: Truth) -> set[tuple[str, Key]]:
        """Compare each row that was read with the table at the row's position.

        Return the table and key of each row that was read, and of each row that changed before the last row was read.
        """
        touched: set[tuple[str, Key]] = set()
        for event in sorted((event for event in cut.events if event.op == "r"), key=_order):
            self.tally.rows_read += 1
            touched |= truth.advance(event["epoch"], event["lsn"]) | {_touched(event)}
            row, table = self._replay.row(event), truth.table(event["table"])
            assert row is not None, "the event was read from a table, so it has a row"
            there = table.rows.get(str(row[KEY])) if KEY in row else row
            if there != row or (KEY not in row and not table.keyless[frozenset(row.items())]):
                self._complain_of_copy(event["table"], f"{event} was read, but the table has {there}")
        return touched

    def _check_copy(self, cut: Cut, table: str, key: Key, truth: TableContents) -> None:
        """Compare one row of a copy with the table. If ``key`` is None, compare all rows."""
        copy = self._replay.table(f"public.{table}").rows
        where = f"at the end of cut {cut.record['cut']}, the copy of {table}"
        if key is None and copy and all(KEY not in row for row in copy.values()):
            self.tally.compared += len(copy)
            there = Counter(frozenset(row.items()) for row in copy.values())
            if there != +truth.keyless:
                surplus, lacking = there - truth.keyless, truth.keyless - there
                sizes = f"{there.total()} rows instead of {truth.keyless.total()}"
                self._complain_of_copy(table, f"{where} has {sizes}; too many: {surplus}; missing: {lacking}")
            return
        keys = {key} if key is not None else {*truth.rows, *(str(row[KEY]) for row in copy.values())}
        for one in keys:
            self.tally.compared += 1
            found, expected = self._seen_row(table, copy.get((one,))), self._seen_row(table, truth.rows.get(one))
            if found != expected:
                self._complain_of_copy(table, f"{where} has {found}, but the table has {expected}")

    def _seen_row(self, table: str, row: Row | None) -> Row | None:
        """Return the row, or None if the options exclude its changes from the stream."""
        return None if row is None or (table in VISITED and self._is_left_out(row["origin"])) else row

    def _complain_of_copy(self, table: str, what: str) -> None:
        """Report a wrong copy. Report each table only once, because the first problem causes others."""
        if table not in self._untrue:
            self._untrue.add(table)
            self.tally.complain("untrue", what)

    def check_loaded(self) -> None:
        """Report tables whose load has not ended."""
        for name, table in self._replay.tables.items():
            if table.is_partial:
                self.tally.complain("lost", f"no load of {name} has ended, so rows from before the slot are missing")

    # --- epochs

    def _check_epoch(self, cut: Cut) -> None:
        """Check that a new epoch follows a start with --adopt-slot, and begins at the slot's position at that time.

        PostgreSQL sends everything after this position, so exactly the transactions after it have to come again.
        """
        epoch, end_lsn = cut.record["epoch"], cut.record["end_lsn"]
        if epoch == self._epoch:
            return
        self._complain_of_missing()
        position = self._adoptions.popleft() if self._adoptions else None
        if position is None or epoch != self._epoch + 1:
            self.tally.complain(
                "other", f"epoch {epoch} follows epoch {self._epoch}, without a start with --adopt-slot"
            )
        elif end_lsn != position:
            self.tally.complain("other", f"epoch {epoch} begins at {end_lsn:X}, but the slot was at {position:X}")
        former, self._delivered, self._epoch = self._delivered, [], epoch
        self._epoch_begins = end_lsn if position is None else position
        self._due = deque(found for found in former if position is not None and found[0]["lsn"] >= position)

    def _take_repeated(self, cut: Cut) -> Iterator[list[Event]]:
        """Yield the transactions of this cut that were also delivered in the previous epoch.

        These transactions must be unchanged, and come before all new transactions.
        """
        for _, group in groupby(sorted(_changes(cut), key=_order), _beginning):
            found = list(group)
            self._delivered.append(found)
            place = _beginning(found[0])[1:]
            while self._due and _beginning(self._due[0][0])[1:] != place and self._cannot_come_again(self._due[0]):
                self._due.popleft()
            if self._due and _beginning(self._due[0][0])[1:] == place:
                self._check_same(found, self._due.popleft())
                self._last = max(self._last, _beginning(found[0]))
                yield found
            else:
                self._complain_of_missing(f", before {found[0]} came")

    def _check_same(self, found: list[Event], former: list[Event]) -> None:
        self.tally.repeated += len(found)
        if [_content(event) for event in found] != [_content(event) for event in former]:
            self.tally.complain("other", f"{found} was {former} in the previous epoch")

    def _cannot_come_again(self, found: list[Event]) -> bool:
        """Return whether a transaction was prepared before the slot's position and committed after it.

        PostgreSQL sends only the commit of this transaction again, and not its rows. The transaction may have been
        delivered although the slot's position is before its commit, because another prepared transaction can hold the
        slot back.
        """
        lines = [event["after"]["id"] for event in found if event.op == "c" and event["table"] == "ledger"]
        return any(self._prepares.get(number, self._epoch_begins) < self._epoch_begins for number in lines)

    def _complain_of_missing(self, when: str = "") -> None:
        """Report how many transactions should have come again by now, and the first of them."""
        missing = [found for found in self._due if not self._cannot_come_again(found)]
        if missing:
            what = f"{len(missing)} transactions after the slot's position have not come again{when}"
            self.tally.complain("other", f"epoch {self._epoch}: {what}; the first is {missing[0]}")
        self._due.clear()

    def _check_sum(self, cut: Cut) -> None:
        tables = [self._replay.table(f"public.{name}") for name in ("debit", "credit")]
        if any(table.is_partial for table in tables):
            return
        rows = [row for table in tables for row in table.rows.values()]
        total = sum(int(row["balance"] or 0) for row in rows)
        self.tally.sums += 1
        changed, self._last_total = total != self._last_total, total
        if total != TOTAL and changed:
            self.tally.complain("torn", f"after cut {cut.record['cut']}, the balances add up to {total}, not {TOTAL}")

    def _check_events(self, events: Iterable[Event]) -> None:
        """Check whole transactions, and messages outside of transactions, in the order of their positions."""
        copies = {event.position: event for event in events}
        for position, found in groupby((copies[position] for position in sorted(copies)), _beginning):
            if position <= self._last:
                self.tally.complain("out_of_order", f"{position[1]:X} comes after {self._last[1]:X}")
            self._last = max(position, self._last)
            check = self._check_transaction if position[2] == 0 else self._check_asides
            check(list(found))

    def _check_asides(self, found: list[Event]) -> None:
        for event in found:
            self._check_aside(event)

    def _check_aside(self, event: Event) -> None:
        """Check a message outside of transactions.

        It must come once, have the right attributes, and not be excluded by the options.
        """
        self.tally.messages += 1
        number, *origin = event["content"].decode().split()
        known = event["transactional"], event["prefix"], event["xid"], event["ts"], event["origin"]
        if known != (False, "aside", None, None, None) or not self._options.messages or self._is_left_out(origin):
            self.tally.complain("other", f"{event} has wrong attributes, or the options exclude it")
        if int(number) in self._asides:
            self.tally.complain("doubled", f"{event} was at {self._asides[int(number)]:X} before")
        self._asides[int(number)] = event["lsn"]

    def _is_left_out(self, origin: object) -> bool:
        return bool(origin) and self._options.origin == "none"

    def _check_transaction(self, found: list[Event]) -> None:
        """Check that a transaction is complete, comes once, and has the right attributes."""
        tally = self.tally
        rows = [event for event in found if event.op != "m"]
        tally.transactions += 1
        tally.events += len(found)
        name = f"transaction at {found[0]['lsn']:X}"
        if (places := [event["seq"] for event in found]) != list(range(len(found))):
            tally.complain("torn", f"{name} has events with seq {places}")
        lines = [event["after"] for event in rows if event["table"] == "ledger"]
        if len(lines) != 1:
            tally.complain("torn", f"{name} has {len(lines)} lines of the ledger and {len(rows)} changes")
        for line in lines:
            self._check_stamp(name, line["origin"], found)
            self._check_line(name, line, len(rows))
        self._check_remarks(name, found)

    def _check_stamp(self, name: str, origin: str | None, found: list[Event]) -> None:
        told = {(event["xid"], event["ts"], event["origin"]) for event in found}
        if [told_origin for _, _, told_origin in told] != [origin] or self._is_left_out(origin):
            self.tally.complain("other", f"{name} has xid, time and origin {told}, but its origin is {origin}")

    def _check_remarks(self, name: str, found: list[Event]) -> None:
        """Check that each message is directly before or after its row in ``note``, at the place that this row says."""
        messages = {event["seq"]: (event["transactional"], event["content"]) for event in found if event.op == "m"}
        self.tally.messages += len(messages)
        notes = [(event["seq"], event["after"]) for event in found if event.op == "c" and event["table"] == "note"]
        expected = {seq + note["place"]: (True, str(note["id"]).encode()) for seq, note in notes}
        if messages != (expected if self._options.messages else {}):
            self.tally.complain("torn", f"{name} has the messages {messages} and the notes {notes}")

    def _check_line(self, name: str, line: dict[str, int], changes: int) -> None:
        """Compare a transaction with its line in the ledger."""
        tally, number = self.tally, line["id"]
        name = f"{name}, number {number}"
        if number in self._seen:
            tally.complain("doubled", name)
        self._seen.add(number)
        if changes != line["changes"] + 1:
            tally.complain("torn", f"{name}, has {changes} changes instead of {line['changes'] + 1}")
        if line["ticket"] is None:
            tally.prepared += 1  # includes the transaction that populates the tables, which has no ticket either
            return
        if line["ticket"] <= self._last_ticket:
            tally.complain("out_of_order", f"{name}, with ticket {line['ticket']}, comes after {self._last_ticket}")
        self._last_ticket = line["ticket"]
        worker = number // WORKER_NUMBERS
        if number <= self._last_numbers.get(worker, -1):
            tally.complain("out_of_order", f"{name}, comes after {self._last_numbers[worker]}")
        self._last_numbers[worker] = number
        if line["follows"] is not None and line["follows"] not in self._seen:
            tally.complain("out_of_order", f"{name}, comes before {line['follows']}")

    def check_repeated(self, records: Iterable[Event], checkpoints: Sequence[Checkpoint]) -> None:
        """For at-least-once mode: check that only records after the last checkpoint come again, and are unchanged."""
        known: dict[tuple[str, int, Position], Event] = {}
        delivered, left = 0, list(checkpoints)
        for record in sorted(records, key=lambda record: record.timestamp_ms):
            while left and left[0].moment_s < record.timestamp_ms / 1000:
                delivered = max(delivered, left.pop(0).end_lsn)
            if record["lsn"] < delivered:
                self.tally.complain("doubled", f"{record} came after the checkpoint {delivered:X}")
            place = record.topic, record.partition, record.position
            former = known.setdefault(place, record)
            self.tally.repeated += former is not record
            if former.value != record.value:
                self.tally.complain("other", f"{record} was {former} before")
        self._check_order(records)
        self._replay.apply_changes(known.values())
        self._check_events(record for record in known.values() if record.op != "r")

    def _check_order(self, records: Iterable[Event]) -> None:
        """Check that new records come in order in each partition."""
        last: dict[tuple[str, int], Position] = {}
        seen: set[tuple[str, int, Position]] = set()
        for record in sorted(records, key=lambda record: record.offset):
            place = record.topic, record.partition
            if (*place, record.position) not in seen and record.position < last.get(place, record.position):
                self.tally.complain("out_of_order", f"{record} comes after {last[place]}")
            seen.add((*place, record.position))
            last[place] = max(record.position, last.get(place, record.position))

    def check_whole(self, there: Contents, rest: list[Event]) -> None:
        """Compare everything that was delivered with the database. ``rest`` has the records that no cut lists."""
        tally = self.tally
        self._complain_of_missing()
        for position in self._adoptions:
            tally.complain("other", f"the slot was adopted at {position:X}, but no epoch began")
        for number in sorted(there.committed - self._seen):
            tally.complain("lost", f"transaction number {number}")
        for number in sorted(self._seen - there.committed):
            tally.complain("other", f"transaction number {number} was never committed")
        self._check_all_asides(there)
        for event in rest:
            tally.complain("other", f"outside of all cuts: {event}")
        for name, rows in there.tables.items():
            table = self._replay.table(f"public.{name}")
            self._leave_out(name, table)
            for problem in (*table.problems, *differences(table, *rows)):
                tally.complain("other", f"{name}: {problem}")
        for problem in self._replay.problems:
            tally.complain("other", problem)

    def _leave_out(self, name: str, table: Table) -> None:
        """Remove from a copy the rows whose changes the options exclude, because loads read these rows nevertheless."""
        table.rows = {key: row for key, row in table.rows.items() if self._seen_row(name, row) is not None}

    def _check_all_asides(self, there: Contents) -> None:
        """Check all messages outside of transactions.

        A message must have been delivered if its writer committed, because the commit flushed the message to disk.
        """
        for number, lsn in there.asides.items():
            if number not in self._asides:
                self.tally.complain("lost", f"message {number} at {lsn:X}")
            elif self._asides[number] != lsn:
                self.tally.complain("other", f"message {number} is at {self._asides[number]:X} instead of {lsn:X}")
        for number in self._asides:
            if number > there.last_aside:
                self.tally.complain("other", f"message {number} was never written")


def check_positions(samples: Iterable[tuple[float, int]], checkpoints: Iterable[Checkpoint], tally: Tally) -> None:
    """Report each sampled position of the slot that is beyond the last checkpoint at that time.

    Only checkpoints of the same epoch are compared, because positions of two epochs cannot be compared.
    """
    reached, epoch, left = 0, FIRST_EPOCH, deque(checkpoints)
    for moment, position in samples:
        while left and left[0].moment_s <= moment:
            found = left.popleft()
            reached = max(reached, found.end_lsn) if found.epoch == epoch else found.end_lsn
            epoch = found.epoch
        tally.positions += 1
        if reached and position > reached:
            tally.complain("other", f"the slot was at {position:X}, but the last checkpoint at {reached:X}")


def _changes(cut: Cut) -> list[Event]:
    """Return the records of a cut without the loaded rows, because these belong to no transaction."""
    return [event for event in cut.events if event.op != "r"]


def _touched(event: Event) -> tuple[str, Key]:
    return event["table"], None if event.key is None else str(event.key[KEY])


def _beginning(event: Event) -> Position:
    """Return the position of the first event of the event's transaction.

    If the event belongs to no transaction, return its own position.
    """
    epoch, lsn, seq = event.position
    return epoch, lsn, min(seq, 0)


def _order(event: Event) -> tuple[Position, str, int]:
    """Return the sort key of an event. It includes the partition, because a truncate has a copy in each partition."""
    return event.position, event.topic, event.partition


def _content(event: Event) -> tuple[Any, ...]:
    """Return the part of an event that is the same in each epoch."""
    value = None if event.value is None else {**event.value, "epoch": None}
    return event.topic, event.partition, event.key_bytes, value
