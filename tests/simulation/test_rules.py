"""Switches off each rule of the product in turn, and checks that a simulated world (see ``world``) then goes wrong.

If no world goes wrong without a rule, the rule is not needed, or the simulation does not test it well enough. The
docstring of a function gives the reason for its rule.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from pgsluice import history, resending, waiting
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import Answer, CommandState
from pgsluice.errors import HistoryError, PgsluiceError, ProtocolError
from pgsluice.history import Facts, Identity, Resumption, resume
from pgsluice.kafka.commands import TopicCommandReader
from pgsluice.kafka.idempotent import IdempotentProducer
from pgsluice.kafka.ledger import Ledger
from pgsluice.kafka.options import Mode
from pgsluice.kafka.probe import Probe
from pgsluice.kafka.sink import KafkaSink
from pgsluice.kafka.tail import Tail
from pgsluice.kafka.topics import Topics
from pgsluice.kafka.transactional import TransactionalProducer
from pgsluice.layout import Layout
from pgsluice.loads import Load, Loaded, LoadPosition
from pgsluice.pgoutput import messages
from pgsluice.pipeline import alterations, startup
from pgsluice.pipeline import pipeline as pipelines
from pgsluice.pipeline import session as sessions
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.commands import Commands
from pgsluice.pipeline.inserter import Inserter
from pgsluice.pipeline.intake import Intake
from pgsluice.pipeline.loader import Loader
from pgsluice.pipeline.outbox import Outbox
from pgsluice.pipeline.reading import TableReading
from pgsluice.pipeline.requests import Requests
from pgsluice.pipeline.rounds import Rounds
from pgsluice.pipeline.session import Session
from pgsluice.pipeline.shutdown import ShutdownWatch
from pgsluice.pipeline.startup import Startup
from pgsluice.progress import Progress, ResentKind
from pgsluice.round import Round
from pgsluice.snapshot import Shape, Snapshot, Taken
from pgsluice.spool import disk
from pgsluice.transaction import Committed, Delivered
from pgsluice.transactions import Transactions
from tests.simulation import reader as readers
from tests.simulation.reader import Reader
from tests.simulation.virtual import PROCESS
from tests.simulation.world import KEY, run

WORLDS = 1000
"""The number of worlds, of which at least one has to go wrong without a rule."""

NOTICED: Mapping[str, int] = {
    "a_checkpoint_that_the_cut_records_deny_stops_the_start": 65,
    "a_commit_prepared_that_was_delivered_releases_at_once": 12,
    "a_commit_without_an_answer_is_no_commit": 10,
    "a_cut_begins_where_the_last_one_recorded_ended": 88,
    "a_disk_that_hangs_ends_the_process": 504,
    "a_layout_is_as_old_as_what_was_read": 19,
    "a_load_does_not_go_on_under_another_shape": 90,
    "a_load_that_was_cancelled_does_not_go_on": 14,
    "a_pause_of_the_pipeline_waits_for_the_end_of_a_round": 53,
    "a_prepare_is_outstanding_until_its_cut_is_committed": 22,
    "a_read_that_comes_no_further_asks_another_broker": 8,
    "a_refusal_stops_every_start": 34,
    "a_rollback_releases_at_once": 9,
    "a_server_that_shuts_down_is_let_go": 196,
    "a_table_is_locked_before_the_snapshot_is_taken": 46,
    "a_topic_without_changes_is_in_no_cut": 761,
    "aborts_of_what_is_not_known_are_no_error": 10,
    "an_outdated_end_does_not_take_commands_back": 200,
    "another_message_does_not_pass_for_the_last_one": 467,
    "another_transaction_does_not_pass_for_the_last_one": 275,
    "cuts_that_the_checkpoint_does_not_know_are_not_written_again": 15,
    "messages_behind_the_rows_wait": 10,
    "nothing_new_is_taken_for_what_comes_again": 181,
    "prepares_of_delivered_transactions_are_kept": 12,
    "rows_at_one_position_are_counted_over_sessions": 11,
    "rows_that_a_new_timeline_lacks_need_a_new_epoch": 11,
    "rows_that_moved_are_read_again": 23,
    "tables_are_described_in_order_of_arrival": 54,
    "the_last_message_comes_again_too": 42,
    "what_a_snapshot_sees_behind_what_waits_makes_it_void": 98,
    "who_fences_and_writes_nothing_is_no_stranger": 14,
    "without_transactions_an_owner_throws_away_what_it_has_not_sent": 191,
    "writers_of_a_table_are_waited_for": 54,
}
"""The seeds of worlds that go wrong without a rule.

They run first, because few worlds notice that this rule is missing.
"""

Sabotage = Callable[[pytest.MonkeyPatch], None]


def nothing_is_acknowledged_beyond_what_was_received(patch: pytest.MonkeyPatch) -> None:
    """Before the delivered position, there may be prepared transactions that this session has not received yet."""
    patch.setattr(
        Progress, "confirmable", property(lambda self: min(self.delivered, *self._prepares.values(), 1 << 62))
    )


def a_prepare_is_outstanding_until_its_cut_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "on_prepared_commit", lambda self, xid, _end_lsn: self.forget(xid))


def a_commit_prepared_that_was_delivered_releases_at_once(patch: pytest.MonkeyPatch) -> None:
    release = Progress.on_prepared_commit

    def late(self: Progress, xid: int, end_lsn: int) -> None:
        if end_lsn > self.delivered:
            release(self, xid, end_lsn)

    patch.setattr(Progress, "on_prepared_commit", late)


def a_rollback_releases_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "forget", lambda _self, _xid: None)


def prepares_hold_the_acknowledgement_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "on_prepared", lambda _self, _xid, _prepare_lsn: None)


def prepares_of_delivered_transactions_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A transaction that was prepared before the delivered position may be committed after it."""
    hold = Transactions._hold

    def skipping(self: Transactions, message: Any, waiting: Any) -> Any:  # noqa: ANN401 - as the original
        return () if message.end_lsn <= self._delivered.lsn else hold(self, message, waiting)

    patch.setattr(Transactions, "_hold", skipping)


def idle_progress_is_written_before_it_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    take = Session._take_keepalive

    def eager(self: Session, frame: Any) -> None:  # noqa: ANN401 - as the original
        take(self, frame)
        if self._transactions.is_between and not self._outbox._open.records and self._outbox.committing is None:
            self.progress.delivered = max(self.progress.delivered, frame.wal_end)

    patch.setattr(Session, "_take_keepalive", eager)


def what_was_delivered_is_dropped_when_it_comes_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "Transactions", lambda _delivered, spool: Transactions(Delivered(0, 0, 0), spool))


def the_checkpoint_is_read_again_after_every_error(patch: pytest.MonkeyPatch) -> None:
    """The last committed checkpoint may be newer than the one that the session knows."""
    known: dict[object, Any] = {}
    delivered = Outbox._delivered

    def note(self: Outbox, cut: Any, checkpoint: Any, seconds: float) -> None:  # noqa: ANN401 - as the original
        known[PROCESS.get()] = checkpoint
        delivered(self, cut, checkpoint, seconds)

    def remembering(facts: Facts, identity: Identity) -> Resumption:
        remembered = known.get(PROCESS.get())
        return resume(facts if remembered is None else replace(facts, checkpoints=[remembered]), identity)

    patch.setattr(Outbox, "_delivered", note)
    patch.setattr(startup, "resume", remembering)


def former_owners_are_fenced_before_the_checkpoint_is_read(patch: pytest.MonkeyPatch) -> None:
    """If a former owner commits changes after the checkpoint was read, they would be delivered twice."""
    fence, open_topics = KafkaSink._fence, KafkaSink._open_topics

    def open_then(self: KafkaSink, *topics: Any) -> None:  # noqa: ANN401 - as the original
        fence(self)
        open_topics(self, *topics)

    def at_last(self: KafkaSink) -> Any:  # noqa: ANN401 - as the original
        fence(self)
        return self._producer

    patch.setattr(KafkaSink, "_fence", lambda _self: None)
    patch.setattr(KafkaSink, "_live", property(at_last))
    patch.setattr(KafkaSink, "_open_topics", open_then)


def the_checkpoint_is_read_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """If another program has left a transaction open, the last stable offset may be before the last checkpoint.

    Reading up to the probe is enough as well, because the probe comes after every checkpoint. So this function
    switches off both.
    """
    patch.setattr(Probe, "end", lambda _self, _topic: 0)

    def stable(self: Topics, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        latest = self._offsets({place: OffsetSpec.latest()}, IsolationLevel.READ_COMMITTED)
        return 0, latest[topic, partition]

    patch.setattr(Topics, "bounds", stable)


def a_session_has_a_producer_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """A commit request that was not answered in time may still arrive, and would commit a part of the next cut."""
    kept: dict[object, TransactionalProducer] = {}
    fence, begin = KafkaSink._fence, TransactionalProducer.begin

    def reuse(self: KafkaSink) -> None:
        if self.process not in kept:  # type: ignore[attr-defined]
            fence(self)
            kept[self.process] = self._producer  # type: ignore[attr-defined, assignment]
        else:
            self._producer = kept[self.process]  # type: ignore[attr-defined]
            self._producer._given_up = self._given_up

    def begin_again(self: TransactionalProducer) -> None:
        if self._producer._in_transaction:
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(1.0)
            self._producer._in_transaction, self._producer._fatal = False, None
            self._failed = None
        begin(self)

    init = KafkaSink.__init__

    def knowing(self: KafkaSink, *args: Any) -> None:  # noqa: ANN401 - as the original
        init(self, *args)
        self.process = PROCESS.get()  # type: ignore[attr-defined]

    patch.setattr(KafkaSink, "__init__", knowing)
    patch.setattr(KafkaSink, "_fence", reuse)
    patch.setattr(TransactionalProducer, "begin", begin_again)


def a_commit_without_an_answer_is_no_commit(patch: pytest.MonkeyPatch) -> None:
    commit = TransactionalProducer.commit

    def hopeful(self: TransactionalProducer) -> None:
        with contextlib.suppress(PgsluiceError):
            commit(self)

    patch.setattr(TransactionalProducer, "commit", hopeful)


def delivered_is_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    deliver = Outbox._deliver

    async def eager(self: Outbox, cut: Any) -> None:  # noqa: ANN401 - as the original
        self._progress.on_delivered(cut.end_lsn)
        await deliver(self, cut)

    patch.setattr(Outbox, "_deliver", eager)


def half_a_transaction_is_never_committed(patch: pytest.MonkeyPatch) -> None:
    close = Outbox._close

    def early(self: Outbox, now: float) -> None:
        self.join()
        close(self, now)

    patch.setattr(Outbox, "_close", early)


def a_large_transaction_shares_no_kafka_transaction(patch: pytest.MonkeyPatch) -> None:
    async def settle(self: Outbox) -> None:
        await self.settle()

    overflow = Outbox.overflow

    async def sharing(self: Outbox, transaction: Any) -> None:  # noqa: ANN401 - as the original
        drain, self.drain = self.drain, lambda: settle(self)  # type: ignore[method-assign]
        try:
            await overflow(self, transaction)
        finally:
            self.drain = drain  # type: ignore[method-assign]

    patch.setattr(Outbox, "overflow", sharing)


def rolled_back_savepoints_are_left_out(patch: pytest.MonkeyPatch) -> None:
    abort = Transactions._stream_abort

    def whole_only(self: Transactions, message: messages.StreamAbort) -> Any:  # noqa: ANN401 - as the original
        return abort(self, message) if message.subxid == message.xid else ()

    patch.setattr(Transactions, "_stream_abort", whole_only)


def aborts_of_what_is_not_known_are_no_error(patch: pytest.MonkeyPatch) -> None:
    def strict(self: Transactions, message: messages.StreamAbort) -> Any:  # noqa: ANN401 - as the original
        waiting = self._streams[message.xid]
        if message.subxid == message.xid:
            del self._streams[message.xid]
        else:
            waiting.aborted.add(message.subxid)
        return ()

    patch.setattr(Transactions, "_stream_abort", strict)


def messages_of_their_own_keep_their_place(patch: pytest.MonkeyPatch) -> None:
    take, end = Session._take_message, Session._take_other
    waiting: list[Any] = []

    async def later(self: Session, transaction: Any, message: Any) -> None:  # noqa: ANN401 - as the original
        if transaction is None:
            waiting.append(message)
        else:
            await take(self, transaction, message)

    async def then(self: Session, event: Any) -> None:  # noqa: ANN401 - as the original
        await end(self, event)
        while waiting and isinstance(event, Committed):
            await take(self, None, waiting.pop(0))

    patch.setattr(Session, "_take_message", later)
    patch.setattr(Session, "_take_other", then)


def what_waits_dies_with_the_connection(patch: pytest.MonkeyPatch) -> None:
    kept: dict[object, Transactions] = {}

    def keeping(delivered: Delivered, spool: Any) -> Transactions:  # noqa: ANN401 - as the original
        found = Transactions(delivered, spool)
        before = kept.get(PROCESS.get())
        if before is not None:
            found._streams, found._prepares, found.prepared = before._streams, before._prepares, before.prepared
        kept[PROCESS.get()] = found
        return found

    patch.setattr(sessions, "Transactions", keeping)


def rows_that_wait_keep_the_table_they_were_sent_under(patch: pytest.MonkeyPatch) -> None:
    def latest(self: Any, relation: Any) -> int:  # noqa: ANN401 - as the original
        if relation.oid not in self.last:
            self.relations.append(relation)
            self.last[relation.oid] = relation, len(self.relations)
        number = int(self.last[relation.oid][1])
        self.relations[number - 1] = relation
        return number

    patch.setattr(waiting.Waiting, "number", latest)


def tables_are_described_in_order_of_arrival(patch: pytest.MonkeyPatch) -> None:
    """A Relation in a streamed transaction takes effect when it arrives, and not when the transaction commits."""
    commit = Transactions._stream_commit

    def merging(self: Transactions, message: messages.StreamCommit) -> Iterator[Any]:
        for relation in self._streams[message.xid].relations:
            self.relations.by_oid[relation.oid] = relation
        yield from commit(self, message)

    patch.setattr(Transactions, "_stream_commit", merging)


def predictions_are_confirmed_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Kafka may write the marker of a transaction twice, and then predicted offsets are too low."""
    patch.setattr(Ledger, "mismatch", lambda _self, _predicted: None)


def a_cut_is_all_there_before_its_offsets_are_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionalProducer, "flush", lambda _self: None)


def what_ends_a_cut_begins_the_next(patch: pytest.MonkeyPatch) -> None:
    committed = Ledger.committed

    def forgetting(self: Ledger, cut: Any, following: Any, *, full: bool) -> None:  # noqa: ANN401 - as the original
        ends = dict(self._known.ends)
        committed(self, cut, following, full=full)
        self._known.ends = ends

    patch.setattr(Ledger, "committed", forgetting)


def a_cut_begins_where_the_last_one_recorded_ended(patch: pytest.MonkeyPatch) -> None:
    """At the start of a session, the answers of a broker may be outdated."""
    pin = Ledger.pin
    patch.setattr(Ledger, "pin", lambda self, states, _reached=None: pin(self, states))


def the_first_cut_of_a_topic_lists_all_its_partitions(patch: pytest.MonkeyPatch) -> None:
    pin = Ledger.pin

    def listed(self: Ledger, states: Any, reached: Any = None) -> None:  # noqa: ANN401 - as the original
        pin(self, states, reached)
        self._unlisted.clear()

    patch.setattr(Ledger, "pin", listed)


def a_full_cut_lists_everything(patch: pytest.MonkeyPatch) -> None:
    following = Ledger.following
    patch.setattr(Ledger, "following", lambda self, cut, **_: following(self, cut, full=False))


def a_topic_without_changes_is_in_no_cut(patch: pytest.MonkeyPatch) -> None:
    """Before a topic's first change, its schemas may not be registered, and the next start would miss them."""
    patch.setattr(Ledger, "_written", lambda self, _cut: list(self._known.ends))


def the_mark_shows_that_an_answer_is_outdated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionalProducer, "write_probe", lambda _self, _topics, _key: None)


def the_probe_is_not_written_by_the_producer_of_the_session(patch: pytest.MonkeyPatch) -> None:
    """A late copy of the marker that aborts the probe would hide the session's records."""
    replacing, writing = KafkaSink._replace_producer, KafkaSink._write_probe

    def write_probe(self: KafkaSink) -> None:
        patch.setattr(KafkaSink, "_replace_producer", lambda _self: None)
        try:
            writing(self)
        finally:
            patch.setattr(KafkaSink, "_replace_producer", replacing)

    patch.setattr(KafkaSink, "_write_probe", write_probe)


def a_read_that_comes_no_further_asks_another_broker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tail, "_renew", lambda _self, _position: None)
    patch.setattr(Tail, "_why_hidden", lambda _self, _position: ProtocolError("somebody's transaction"))


def what_one_broker_says_of_a_topic_is_asked_of_others(patch: pytest.MonkeyPatch) -> None:
    """If the daemon did not ask other brokers, one outdated broker would stop it."""

    class Same:
        def __init__(self, topics: Topics) -> None:
            self.account = topics.account
            self.stable_offsets, self.next_offsets = topics.stable_offsets, topics.next_offsets

        def close(self) -> None:
            pass

    def same(self: Topics) -> Same:
        return Same(self)

    def believing(_self: Ledger, changed: Any) -> None:  # noqa: ANN401 - as the original
        if changed:
            raise HistoryError(" ".join(changed.values()))

    patch.setattr(Topics, "another", same)
    patch.setattr(Ledger, "_raise_if", believing)


def a_standby_fences_nobody(patch: pytest.MonkeyPatch) -> None:
    start = Startup.start

    async def fencing(self: Startup, source: Any, sink: Any, *, adopt: bool) -> Any:  # noqa: ANN401 - as the original
        await sink.prepare()
        await sink.fence()
        return await start(self, source, sink, adopt=adopt)

    patch.setattr(Startup, "start", fencing)


def nothing_is_confirmed_before_the_last_transaction_came_again(patch: pytest.MonkeyPatch) -> None:
    """A restored server has other transactions at the same positions, and has to send them again in a new epoch."""

    def settle(self: Progress, lsn: int) -> None:
        self._settled = max(self._settled, lsn)

    patch.setattr(Progress, "_settle", settle)


def the_last_message_comes_again_too(patch: pytest.MonkeyPatch) -> None:
    original = resending.to_be_resent

    def transactions_only(checkpoint: Checkpoint, slot_lsn: int) -> dict[int, ResentKind]:
        return {lsn: what for lsn, what in original(checkpoint, slot_lsn).items() if what == "transaction"}

    patch.setattr(pipelines, "to_be_resent", transactions_only)


def another_transaction_does_not_pass_for_the_last_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "check_resent", lambda *_args: None)


def another_message_does_not_pass_for_the_last_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "check_message_resent", lambda *_args: None)


def nothing_new_is_taken_for_what_comes_again(patch: pytest.MonkeyPatch) -> None:
    """A server that was restored writes other transactions before the delivered position. They are not repetitions."""
    patch.setattr(Session, "_judge", lambda _self, _change: None)


def a_refusal_is_for_good(patch: pytest.MonkeyPatch) -> None:
    """When the server's WAL has grown, its positions look right again, so only the recorded refusal stops a start."""
    patch.setattr(KafkaSink, "_refuse", lambda _self, _checkpoint: None)


def a_refusal_stops_every_start(patch: pytest.MonkeyPatch) -> None:
    """Another daemon may not find the reason for the refusal by itself."""
    patch.setattr(history, "check_refused", lambda _checkpoint: None)


def cuts_that_the_checkpoint_does_not_know_are_not_written_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history, "check_recorded", lambda *_args, **_options: None)


def checkpoints_under_other_keys_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """Another program may have written a checkpoint with a higher position than ours."""
    patch.setattr(Tail, "key", property(lambda _self: KEY, lambda _self, _key: None), raising=False)


def a_checkpoint_that_the_cut_records_deny_stops_the_start(patch: pytest.MonkeyPatch) -> None:
    """Another program may have written this checkpoint under our key."""
    patch.setattr(history, "is_contradicted", lambda *_args: False)


def a_checkpoint_without_its_cut_record_does_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history, "_committed", lambda last, _facts, _identity: last)


def heartbeats_that_a_new_timeline_lacks_are_no_loss(patch: pytest.MonkeyPatch) -> None:
    check = history.check_timeline

    def strict(checkpoint: Checkpoint, server: Any, switches: Any) -> Checkpoint:  # noqa: ANN401 - as the original
        return check(replace(checkpoint, last_message_lsn=checkpoint.end_lsn), server, switches)

    patch.setattr(history, "check_timeline", strict)


def positions_that_a_new_timeline_lacks_are_not_delivered(patch: pytest.MonkeyPatch) -> None:
    check = history.check_timeline

    def forgetful(checkpoint: Checkpoint, server: Any, switches: Any) -> Checkpoint:  # noqa: ANN401 - as the original
        return replace(check(checkpoint, server, switches), end_lsn=min(checkpoint.end_lsn, server.xlogpos))

    patch.setattr(history, "check_timeline", forgetful)


def a_session_knows_the_checkpoint_that_it_found(patch: pytest.MonkeyPatch) -> None:
    """After a promotion, the daemon continues from a position that differs from the checkpoint's."""
    init = Session.__init__

    def ignorant(self: Session, *args: Any, found: Any) -> None:  # noqa: ANN401, ARG001 - as the original
        init(self, *args, found=None)

    patch.setattr(Session, "__init__", ignorant)


def who_fences_and_writes_nothing_is_no_stranger(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "may_have_written", lambda _self, _checkpoint: False)


def a_slot_is_announced_before_it_is_made(patch: pytest.MonkeyPatch) -> None:
    """A crash after the slot was created must not look like a lost checkpoint."""

    async def silent(_self: KafkaSink, _checkpoint: Any) -> None:  # noqa: ANN401 - as the original
        pass

    patch.setattr(KafkaSink, "announce", silent)


def a_slot_that_is_made_has_a_birth(patch: pytest.MonkeyPatch) -> None:
    """The first cut of an epoch has to be committed before a position is acknowledged."""
    find = Startup._find_start

    async def unborn(self: Startup, source: Any, sink: Any, *rest: Any) -> Any:  # noqa: ANN401 - as the original
        async def deliver(_cut: Any, _checkpoint: Any) -> None:  # noqa: ANN401 - as the original
            pass

        sink.deliver, really = deliver, sink.deliver
        try:
            return await find(self, source, sink, *rest)
        finally:
            sink.deliver = really

    patch.setattr(Startup, "_find_start", unborn)


def a_server_that_shuts_down_is_let_go(patch: pytest.MonkeyPatch) -> None:
    """The server waits for an acknowledgement that cannot come while Kafka is down or a transaction is prepared."""
    patch.setattr(ShutdownWatch, "overdue", property(lambda _self: False))


def a_disk_that_hangs_ends_the_process(patch: pytest.MonkeyPatch) -> None:
    """A process on another host may have a disk that works, but cannot use the slot while this process occupies it."""
    patch.setattr(disk, "DISK_LIMIT_S", 1e9)


def without_transactions_the_checkpoint_waits_for_all_before_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdempotentProducer, "is_atomic", True)


def without_transactions_an_owner_throws_away_what_it_has_not_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdempotentProducer, "abandon", lambda _self: None)
    patch.setattr(IdempotentProducer, "close", lambda _self: None)


def a_table_is_locked_before_the_snapshot_is_taken(patch: pytest.MonkeyPatch) -> None:
    """If a truncate came after the snapshot and before the lock, no rows could be read at the snapshot's position."""
    take = Reader.take
    shapes: dict[Reader, Shape] = {}

    async def begin(self: Reader, shape: Shape) -> None:
        shapes[self] = shape

    async def take_first(self: Reader) -> Taken:
        taken = await take(self)
        await self._lock(shapes[self])
        return taken

    patch.setattr(Reader, "begin", begin)
    patch.setattr(Reader, "take", take_first)


def rows_stand_behind_all_that_was_inserted(patch: pytest.MonkeyPatch) -> None:
    """An asynchronous commit is visible before it is flushed, so a snapshot can see more than the flushed WAL."""
    take = Reader.take

    async def flushed(self: Reader) -> Taken:
        taken, wal = await take(self), self._wal
        return taken if wal.flushed == len(wal.records) else replace(taken, end_lsn=wal.records[wal.flushed].lsn)

    patch.setattr(Reader, "take", flushed)


def a_snapshot_sees_all_that_was_sent(patch: pytest.MonkeyPatch) -> None:
    """With synchronous replication, a commit is sent before other sessions can see it."""

    async def at_once(_self: Rounds) -> None:
        pass

    patch.setattr(Rounds, "_see_all", at_once)


def what_a_snapshot_does_not_see_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Round, "admits", lambda _self, _transaction: True)


def what_a_snapshot_sees_behind_what_waits_makes_it_void(patch: pytest.MonkeyPatch) -> None:
    hold = Round.hold

    def blind(self: Round, transaction: Any) -> None:  # noqa: ANN401 - as the original
        hold(self, transaction)
        self.is_void = False

    patch.setattr(Round, "hold", blind)


def nothing_behind_what_waits_counts_as_received(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "limit_received", lambda _self, _lsn: None)


def messages_behind_the_rows_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Round, "admits_message", lambda _self, _lsn: True)


def rows_that_moved_are_read_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Begun, "_on_incomplete", lambda _self, _relation, _new: None)


def writers_of_a_table_are_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A writer may have changed the table before it was published, and these changes are not in the stream."""

    async def at_once(_self: TableReading, _table: Any, _shape: Shape) -> None:  # noqa: ANN401 - as the original
        pass

    patch.setattr(TableReading, "_wait_for_writers", at_once)


def rows_at_one_position_are_counted_over_sessions(patch: pytest.MonkeyPatch) -> None:
    init = Inserter.__init__

    def forgetful(self: Inserter, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as the original
        init(self, *args, **options)
        self._position = LoadPosition()

    patch.setattr(Inserter, "__init__", forgetful)


def a_load_does_not_go_on_under_another_shape(patch: pytest.MonkeyPatch) -> None:
    """If a column was added, it may have a value in rows that were read before."""
    patch.setattr(readers, "_digest", lambda _relation: "")


def transaction_ids_have_64_bits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Snapshot, "_widened", lambda _self, xid: xid)


def rows_that_a_new_timeline_lacks_need_a_new_epoch(patch: pytest.MonkeyPatch) -> None:
    check = history.check_timeline

    def forgetful(checkpoint: Checkpoint, server: Any, switches: Any) -> Checkpoint:  # noqa: ANN401 - as the original
        return check(replace(checkpoint, load_position=LoadPosition()), server, switches)

    patch.setattr(history, "check_timeline", forgetful)


def forgetting(patch: pytest.MonkeyPatch, **fields: Any) -> None:  # noqa: ANN401 - those of CommandState
    """Make sessions ignore these fields of the command state that the checkpoint contains."""
    init = Requests.__init__

    def begin(self: Requests, outbox: Outbox, begun: Begun, state: CommandState, wake: Callable[[], None]) -> None:
        init(self, outbox, begun, replace(state, **fields), wake)

    patch.setattr(Requests, "__init__", begin)


def commands_that_were_taken_are_not_taken_again(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, offset=0)


def commands_are_read_from_where_the_last_session_ended(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, topic_id="")


def what_commands_ask_for_outlives_a_session(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, requests=())


def a_pause_outlives_a_session(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, is_paused=False)


def a_paused_pipeline_delivers_nothing(patch: pytest.MonkeyPatch) -> None:
    init = Intake.__init__
    patch.setattr(Intake, "__init__", lambda self, stream, _is_paused: init(self, stream, lambda: False))


def a_pause_of_the_pipeline_outlives_a_session(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, is_pipeline_paused=False)


def a_pause_of_the_pipeline_waits_for_the_end_of_a_round(patch: pytest.MonkeyPatch) -> None:
    """During a pause, the round would wait for the paused stream, or its end would deliver waiting transactions."""
    init = Loader.__init__

    def hasty(self: Loader, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as the original
        init(self, *args, **options)
        self.at_work = contextlib.nullcontext()  # type: ignore[assignment]  # so that no command waits for it

    patch.setattr(Loader, "__init__", hasty)


def a_paused_session_reads_commands_before_it_knows_its_tables(patch: pytest.MonkeyPatch) -> None:
    """The loader reads the list of tables only after the pause, and only a command ends the pause."""
    run_commands = Commands.run

    async def late(self: Commands) -> NoReturn:
        await self._loader.looked.wait()
        await run_commands(self)

    patch.setattr(Commands, "run", late)


def an_outdated_end_does_not_take_commands_back(patch: pytest.MonkeyPatch) -> None:
    """A broker that lost touch may report an end offset before the last command that was read."""
    opened = TopicCommandReader._open

    def believing(self: TopicCommandReader, state: CommandState) -> CommandState:
        found = opened(self, state)
        with contextlib.closing(Topics(self._options, self._given_up)) as topics:
            _, high = topics.bounds(self._topic, 0)
        return replace(found, offset=min(found.offset, high))

    patch.setattr(TopicCommandReader, "_open", believing)


def an_answer_is_in_the_cut_of_what_follows(patch: pytest.MonkeyPatch) -> None:
    """If a command is carried out in one cut and answered in the next, a crash in between loses the answer."""
    become = Requests.become
    late: dict[Requests, list[Answer]] = {}

    def later(
        self: Requests, state: CommandState, answers: Sequence[Answer] = (), loaded: Sequence[Loaded] = ()
    ) -> None:
        due, late[self] = late.get(self, []), list(answers)
        become(self, state, due, loaded)

    patch.setattr(Requests, "become", later)


def a_load_that_was_cancelled_does_not_go_on(patch: pytest.MonkeyPatch) -> None:
    """A chunk may have been read already when the command is carried out."""
    patch.setattr(TableReading, "_is_current", lambda _self, _opened: True)
    patch.setattr(Loader, "_on_end", lambda self, opened: self._tables.pop(opened.oid, None))


def ddl_that_changes_rows_is_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alterations, "unsent", lambda _old, _new: None)


def a_layout_is_as_old_as_what_was_read(patch: pytest.MonkeyPatch) -> None:
    """If a table is altered during its load, only a layout from before the rows were read shows the difference."""
    finish = Begun.finish

    def forgetful(self: Begun, load: Load, _layout: Layout | None) -> Loaded:
        return finish(self, load, None)

    patch.setattr(Begun, "finish", forgetful)


RULES: list[Sabotage] = [
    nothing_is_acknowledged_beyond_what_was_received,
    a_prepare_is_outstanding_until_its_cut_is_committed,
    a_commit_prepared_that_was_delivered_releases_at_once,
    a_rollback_releases_at_once,
    prepares_hold_the_acknowledgement_back,
    prepares_of_delivered_transactions_are_kept,
    idle_progress_is_written_before_it_is_acknowledged,
    what_was_delivered_is_dropped_when_it_comes_again,
    the_checkpoint_is_read_again_after_every_error,
    former_owners_are_fenced_before_the_checkpoint_is_read,
    the_checkpoint_is_read_to_the_high_watermark,
    a_session_has_a_producer_of_its_own,
    a_commit_without_an_answer_is_no_commit,
    delivered_is_what_is_committed,
    half_a_transaction_is_never_committed,
    a_large_transaction_shares_no_kafka_transaction,
    rolled_back_savepoints_are_left_out,
    aborts_of_what_is_not_known_are_no_error,
    messages_of_their_own_keep_their_place,
    what_waits_dies_with_the_connection,
    rows_that_wait_keep_the_table_they_were_sent_under,
    tables_are_described_in_order_of_arrival,
    predictions_are_confirmed_before_the_commit,
    a_cut_is_all_there_before_its_offsets_are_compared,
    what_ends_a_cut_begins_the_next,
    a_cut_begins_where_the_last_one_recorded_ended,
    the_first_cut_of_a_topic_lists_all_its_partitions,
    a_full_cut_lists_everything,
    a_topic_without_changes_is_in_no_cut,
    the_mark_shows_that_an_answer_is_outdated,
    the_probe_is_not_written_by_the_producer_of_the_session,
    a_read_that_comes_no_further_asks_another_broker,
    what_one_broker_says_of_a_topic_is_asked_of_others,
    a_standby_fences_nobody,
    nothing_is_confirmed_before_the_last_transaction_came_again,
    the_last_message_comes_again_too,
    another_transaction_does_not_pass_for_the_last_one,
    another_message_does_not_pass_for_the_last_one,
    nothing_new_is_taken_for_what_comes_again,
    a_refusal_is_for_good,
    a_refusal_stops_every_start,
    cuts_that_the_checkpoint_does_not_know_are_not_written_again,
    checkpoints_under_other_keys_do_not_count,
    a_checkpoint_that_the_cut_records_deny_stops_the_start,
    a_checkpoint_without_its_cut_record_does_not_count,
    heartbeats_that_a_new_timeline_lacks_are_no_loss,
    positions_that_a_new_timeline_lacks_are_not_delivered,
    a_session_knows_the_checkpoint_that_it_found,
    who_fences_and_writes_nothing_is_no_stranger,
    a_slot_is_announced_before_it_is_made,
    a_slot_that_is_made_has_a_birth,
    a_server_that_shuts_down_is_let_go,
    a_disk_that_hangs_ends_the_process,
]


WITHOUT_TRANSACTIONS: list[Sabotage] = [
    without_transactions_the_checkpoint_waits_for_all_before_it,
    without_transactions_an_owner_throws_away_what_it_has_not_sent,
]


OF_LOADING: list[Sabotage] = [
    a_table_is_locked_before_the_snapshot_is_taken,
    rows_stand_behind_all_that_was_inserted,
    a_snapshot_sees_all_that_was_sent,
    what_a_snapshot_does_not_see_waits,
    what_a_snapshot_sees_behind_what_waits_makes_it_void,
    nothing_behind_what_waits_counts_as_received,
    messages_behind_the_rows_wait,
    rows_that_moved_are_read_again,
    writers_of_a_table_are_waited_for,
    rows_at_one_position_are_counted_over_sessions,
    a_load_does_not_go_on_under_another_shape,
    transaction_ids_have_64_bits,
    rows_that_a_new_timeline_lacks_need_a_new_epoch,
    ddl_that_changes_rows_is_noticed,
    a_layout_is_as_old_as_what_was_read,
]


OF_COMMANDS: list[Sabotage] = [
    commands_that_were_taken_are_not_taken_again,
    commands_are_read_from_where_the_last_session_ended,
    what_commands_ask_for_outlives_a_session,
    a_pause_outlives_a_session,
    a_paused_pipeline_delivers_nothing,
    a_pause_of_the_pipeline_outlives_a_session,
    a_pause_of_the_pipeline_waits_for_the_end_of_a_round,
    a_paused_session_reads_commands_before_it_knows_its_tables,
    an_outdated_end_does_not_take_commands_back,
    an_answer_is_in_the_cut_of_what_follows,
    a_load_that_was_cancelled_does_not_go_on,
]


@pytest.mark.parametrize(
    "rule", [*RULES, *WITHOUT_TRANSACTIONS, *OF_LOADING, *OF_COMMANDS], ids=lambda rule: str(rule.__name__)
)
def test_without_the_rule_some_world_goes_wrong(
    rule: Sabotage, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    rule(monkeypatch)
    mode: Mode = "at_least_once" if rule in WITHOUT_TRANSACTIONS else "exactly_once"
    first = NOTICED.get(str(rule.__name__), 0)
    for seed in (*range(first, WORLDS), *range(first)):
        commands = rule in OF_COMMANDS
        if violation := run(seed, mode=mode, loads=commands or rule in OF_LOADING, commands=commands):
            record_property("violation", f"seed {seed}: {violation}")
            return
    pytest.fail(f"{WORLDS} worlds did not need the rule")
