"""Disables each rule of the product in turn, and checks that at least one simulated world then goes wrong.

If no world goes wrong without a rule, the rule is not needed, or the simulation does not test it well enough. Each rule
has a function that disables it. The name of the function is the rule, and its docstring gives the reason for the rule.
The module ``world`` runs the simulated worlds.
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
"""The maximum number of worlds that run while one rule is disabled. At least one of them has to go wrong."""

NOTICED: Mapping[str, int] = {
    "a_cancelled_load_does_not_continue": 14,
    "a_checkpoint_that_contradicts_the_cut_records_stops_the_start": 65,
    "a_commit_without_an_answer_does_not_count_as_committed": 10,
    "a_disk_that_hangs_ends_the_process": 504,
    "a_layout_is_read_before_the_rows": 19,
    "a_load_does_not_continue_with_another_shape": 90,
    "a_load_waits_for_the_writers_of_its_table": 54,
    "a_pause_of_the_pipeline_waits_for_the_end_of_a_round": 53,
    "a_prepare_ends_immediately_if_it_is_rolled_back": 9,
    "a_prepare_ends_immediately_if_its_commit_was_already_delivered": 12,
    "a_prepare_is_outstanding_until_its_commit_is_delivered": 22,
    "a_process_that_only_fenced_the_session_is_not_a_second_owner": 14,
    "a_read_that_makes_no_progress_asks_another_broker": 8,
    "a_recorded_refusal_stops_every_start": 34,
    "a_relation_takes_effect_when_it_arrives": 54,
    "a_round_is_void_if_its_snapshot_sees_a_transaction_after_a_waiting_one": 98,
    "a_server_that_shuts_down_is_not_kept_waiting": 196,
    "a_table_is_locked_before_the_snapshot_is_taken": 46,
    "an_abort_of_an_unknown_transaction_is_not_an_error": 10,
    "an_outdated_end_offset_does_not_make_commands_come_again": 200,
    "another_message_is_not_mistaken_for_the_last_one": 467,
    "another_transaction_is_not_mistaken_for_the_last_one": 275,
    "loaded_rows_that_a_new_timeline_lacks_need_a_new_epoch": 11,
    "messages_after_the_rows_wait": 10,
    "new_transactions_are_not_mistaken_for_repetitions": 181,
    "no_cut_lists_a_topic_that_never_had_changes": 761,
    "prepares_before_the_delivered_position_are_kept": 12,
    "recorded_cuts_after_the_last_checkpoint_stop_the_start": 15,
    "rows_at_one_position_are_counted_across_sessions": 11,
    "rows_that_moved_are_read_again": 23,
    "the_first_cut_of_a_session_begins_where_the_last_recorded_cut_ended": 88,
    "the_last_message_has_to_come_again_as_well": 42,
    "without_transactions_a_session_drops_unsent_records_when_it_ends": 191,
}
"""By rule: the seed of a world that goes wrong without it.

This world runs first, because only few worlds go wrong without these rules.
"""

Sabotage = Callable[[pytest.MonkeyPatch], None]


def nothing_is_acknowledged_beyond_what_was_received(patch: pytest.MonkeyPatch) -> None:
    """Before the delivered position, there may be prepared transactions that this session has not received yet."""
    patch.setattr(
        Progress, "confirmable", property(lambda self: min(self.delivered, *self._prepares.values(), 1 << 62))
    )


def a_prepare_is_outstanding_until_its_commit_is_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "on_prepared_commit", lambda self, xid, _end_lsn: self.forget(xid))


def a_prepare_ends_immediately_if_its_commit_was_already_delivered(patch: pytest.MonkeyPatch) -> None:
    release = Progress.on_prepared_commit

    def late(self: Progress, xid: int, end_lsn: int) -> None:
        if end_lsn > self.delivered:
            release(self, xid, end_lsn)

    patch.setattr(Progress, "on_prepared_commit", late)


def a_prepare_ends_immediately_if_it_is_rolled_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "forget", lambda _self, _xid: None)


def outstanding_prepares_limit_the_acknowledged_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "on_prepared", lambda _self, _xid, _prepare_lsn: None)


def prepares_before_the_delivered_position_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A transaction that was prepared before the delivered position may be committed after it."""
    hold = Transactions._hold

    def skipping(self: Transactions, message: Any, waiting: Any) -> Any:  # noqa: ANN401 - as the original
        return () if message.end_lsn <= self._delivered.lsn else hold(self, message, waiting)

    patch.setattr(Transactions, "_hold", skipping)


def an_idle_position_is_written_to_kafka_before_it_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    take = Session._take_keepalive

    def eager(self: Session, frame: Any) -> None:  # noqa: ANN401 - as the original
        take(self, frame)
        if self._transactions.is_between and not self._outbox._open.records and self._outbox.committing is None:
            self.progress.delivered = max(self.progress.delivered, frame.wal_end)

    patch.setattr(Session, "_take_keepalive", eager)


def delivered_transactions_are_dropped_when_they_are_sent_again(patch: pytest.MonkeyPatch) -> None:
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
    """If a former owner could commit changes after the checkpoint was read, they would be delivered twice."""
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

    Before a session reads the topic, it writes a probe (``kafka.probe``). All checkpoints are before the probe, so
    it would also be enough to read up to the probe. For this reason, this function disables the probe as well.
    """
    patch.setattr(Probe, "end", lambda _self, _topic: 0)

    def stable(self: Topics, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        latest = self._offsets({place: OffsetSpec.latest()}, IsolationLevel.READ_COMMITTED)
        return 0, latest[topic, partition]

    patch.setattr(Topics, "bounds", stable)


def each_session_has_its_own_producer(patch: pytest.MonkeyPatch) -> None:
    """A commit request that was not answered in time may arrive later, and would then commit a part of the next cut."""
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


def a_commit_without_an_answer_does_not_count_as_committed(patch: pytest.MonkeyPatch) -> None:
    commit = TransactionalProducer.commit

    def hopeful(self: TransactionalProducer) -> None:
        with contextlib.suppress(PgsluiceError):
            commit(self)

    patch.setattr(TransactionalProducer, "commit", hopeful)


def only_committed_cuts_count_as_delivered(patch: pytest.MonkeyPatch) -> None:
    deliver = Outbox._deliver

    async def eager(self: Outbox, cut: Any) -> None:  # noqa: ANN401 - as the original
        self._progress.on_delivered(cut.end_lsn)
        await deliver(self, cut)

    patch.setattr(Outbox, "_deliver", eager)


def an_incomplete_transaction_is_never_committed(patch: pytest.MonkeyPatch) -> None:
    close = Outbox._close

    def early(self: Outbox, now: float) -> None:
        self.join()
        close(self, now)

    patch.setattr(Outbox, "_close", early)


def a_large_transaction_has_its_own_kafka_transaction(patch: pytest.MonkeyPatch) -> None:
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


def changes_of_rolled_back_savepoints_are_dropped(patch: pytest.MonkeyPatch) -> None:
    abort = Transactions._stream_abort

    def whole_only(self: Transactions, message: messages.StreamAbort) -> Any:  # noqa: ANN401 - as the original
        return abort(self, message) if message.subxid == message.xid else ()

    patch.setattr(Transactions, "_stream_abort", whole_only)


def an_abort_of_an_unknown_transaction_is_not_an_error(patch: pytest.MonkeyPatch) -> None:
    def strict(self: Transactions, message: messages.StreamAbort) -> Any:  # noqa: ANN401 - as the original
        waiting = self._streams[message.xid]
        if message.subxid == message.xid:
            del self._streams[message.xid]
        else:
            waiting.aborted.add(message.subxid)
        return ()

    patch.setattr(Transactions, "_stream_abort", strict)


def messages_outside_transactions_keep_their_place(patch: pytest.MonkeyPatch) -> None:
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


def waiting_transactions_are_dropped_when_the_connection_ends(patch: pytest.MonkeyPatch) -> None:
    kept: dict[object, Transactions] = {}

    def keeping(delivered: Delivered, spool: Any) -> Transactions:  # noqa: ANN401 - as the original
        found = Transactions(delivered, spool)
        before = kept.get(PROCESS.get())
        if before is not None:
            found._streams, found._prepares, found.prepared = before._streams, before._prepares, before.prepared
        kept[PROCESS.get()] = found
        return found

    patch.setattr(sessions, "Transactions", keeping)


def waiting_rows_keep_the_relation_with_which_they_were_sent(patch: pytest.MonkeyPatch) -> None:
    def latest(self: Any, relation: Any) -> int:  # noqa: ANN401 - as the original
        if relation.oid not in self.last:
            self.relations.append(relation)
            self.last[relation.oid] = relation, len(self.relations)
        number = int(self.last[relation.oid][1])
        self.relations[number - 1] = relation
        return number

    patch.setattr(waiting.Waiting, "number", latest)


def a_relation_takes_effect_when_it_arrives(patch: pytest.MonkeyPatch) -> None:
    """A Relation in a streamed transaction applies to all rows that arrive after it, even before the commit."""
    commit = Transactions._stream_commit

    def merging(self: Transactions, message: messages.StreamCommit) -> Iterator[Any]:
        for relation in self._streams[message.xid].relations:
            self.relations.by_oid[relation.oid] = relation
        yield from commit(self, message)

    patch.setattr(Transactions, "_stream_commit", merging)


def predicted_offsets_are_checked_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """If Kafka writes the marker of a transaction twice, predicted offsets are too low."""
    patch.setattr(Ledger, "mismatch", lambda _self, _predicted: None)


def all_records_of_a_cut_are_written_before_its_offsets_are_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionalProducer, "flush", lambda _self: None)


def a_cut_begins_at_the_end_offsets_of_the_previous_cut(patch: pytest.MonkeyPatch) -> None:
    committed = Ledger.committed

    def forgetting(self: Ledger, cut: Any, following: Any, *, full: bool) -> None:  # noqa: ANN401 - as the original
        ends = dict(self._known.ends)
        committed(self, cut, following, full=full)
        self._known.ends = ends

    patch.setattr(Ledger, "committed", forgetting)


def the_first_cut_of_a_session_begins_where_the_last_recorded_cut_ended(patch: pytest.MonkeyPatch) -> None:
    """At the start of a session, an outdated broker may report end offsets that are too low."""
    pin = Ledger.pin
    patch.setattr(Ledger, "pin", lambda self, states, _reached=None: pin(self, states))


def the_first_cut_of_a_topic_lists_all_its_partitions(patch: pytest.MonkeyPatch) -> None:
    pin = Ledger.pin

    def listed(self: Ledger, states: Any, reached: Any = None) -> None:  # noqa: ANN401 - as the original
        pin(self, states, reached)
        self._unlisted.clear()

    patch.setattr(Ledger, "pin", listed)


def a_full_cut_lists_all_partitions(patch: pytest.MonkeyPatch) -> None:
    following = Ledger.following
    patch.setattr(Ledger, "following", lambda self, cut, **_: following(self, cut, full=False))


def no_cut_lists_a_topic_that_never_had_changes(patch: pytest.MonkeyPatch) -> None:
    """Before a topic's first change, its schemas may not be registered. If a cut listed the topic, the next start would
    report these schemas as missing."""
    patch.setattr(Ledger, "_written", lambda self, _cut: list(self._known.ends))


def the_probe_shows_that_an_answer_is_outdated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionalProducer, "write_probe", lambda _self, _topics, _key: None)


def the_probe_is_not_written_by_the_producer_of_the_session(patch: pytest.MonkeyPatch) -> None:
    """Kafka may append a second copy of the probe's abort marker late. This copy would hide the records that the same
    producer has written since."""
    replacing, writing = KafkaSink._replace_producer, KafkaSink._write_probe

    def write_probe(self: KafkaSink) -> None:
        patch.setattr(KafkaSink, "_replace_producer", lambda _self: None)
        try:
            writing(self)
        finally:
            patch.setattr(KafkaSink, "_replace_producer", replacing)

    patch.setattr(KafkaSink, "_write_probe", write_probe)


def a_read_that_makes_no_progress_asks_another_broker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tail, "_renew", lambda _self, _position: None)
    patch.setattr(Tail, "_why_hidden", lambda _self, _position: ProtocolError("somebody's transaction"))


def other_brokers_are_asked_before_a_topic_counts_as_changed(patch: pytest.MonkeyPatch) -> None:
    """If only one broker were asked, an outdated broker could stop the daemon."""

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


def a_standby_does_not_fence_the_owner(patch: pytest.MonkeyPatch) -> None:
    start = Startup.start

    async def fencing(self: Startup, source: Any, sink: Any, *, adopt: bool) -> Any:  # noqa: ANN401 - as the original
        await sink.prepare()
        await sink.fence()
        return await start(self, source, sink, adopt=adopt)

    patch.setattr(Startup, "start", fencing)


def nothing_is_confirmed_before_the_last_transaction_has_come_again(patch: pytest.MonkeyPatch) -> None:
    """A restored server may have other transactions at the same positions.

    A new epoch can deliver these transactions only if their positions have not been confirmed.
    """

    def settle(self: Progress, lsn: int) -> None:
        self._settled = max(self._settled, lsn)

    patch.setattr(Progress, "_settle", settle)


def the_last_message_has_to_come_again_as_well(patch: pytest.MonkeyPatch) -> None:
    original = resending.to_be_resent

    def transactions_only(checkpoint: Checkpoint, slot_lsn: int) -> dict[int, ResentKind]:
        return {lsn: what for lsn, what in original(checkpoint, slot_lsn).items() if what == "transaction"}

    patch.setattr(pipelines, "to_be_resent", transactions_only)


def another_transaction_is_not_mistaken_for_the_last_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "check_resent", lambda *_args: None)


def another_message_is_not_mistaken_for_the_last_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "check_message_resent", lambda *_args: None)


def new_transactions_are_not_mistaken_for_repetitions(patch: pytest.MonkeyPatch) -> None:
    """A restored server writes other transactions before the delivered position. They are not repetitions."""
    patch.setattr(Session, "_judge", lambda _self, _change: None)


def a_refusal_is_recorded(patch: pytest.MonkeyPatch) -> None:
    """When a restored server's WAL has grown, its positions look right. Then only a recorded refusal stops a start."""
    patch.setattr(KafkaSink, "_refuse", lambda _self, _checkpoint: None)


def a_recorded_refusal_stops_every_start(patch: pytest.MonkeyPatch) -> None:
    """Another daemon may be unable to find the reason for the refusal by itself."""
    patch.setattr(history, "check_refused", lambda _checkpoint: None)


def recorded_cuts_after_the_last_checkpoint_stop_the_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history, "check_recorded", lambda *_args, **_options: None)


def checkpoints_with_other_keys_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """Another program may have written a checkpoint with a higher position than ours."""
    patch.setattr(Tail, "key", property(lambda _self: KEY, lambda _self, _key: None), raising=False)


def a_checkpoint_that_contradicts_the_cut_records_stops_the_start(patch: pytest.MonkeyPatch) -> None:
    """Another program may have written this checkpoint with our key."""
    patch.setattr(history, "is_contradicted", lambda *_args: False)


def a_checkpoint_without_its_cut_record_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history, "_committed", lambda last, _facts, _identity: last)


def heartbeats_that_a_new_timeline_lacks_are_not_a_loss(patch: pytest.MonkeyPatch) -> None:
    check = history.check_timeline

    def strict(checkpoint: Checkpoint, server: Any, switches: Any) -> Checkpoint:  # noqa: ANN401 - as the original
        return check(replace(checkpoint, last_message_lsn=checkpoint.end_lsn), server, switches)

    patch.setattr(history, "check_timeline", strict)


def positions_that_a_new_timeline_lacks_do_not_count_as_delivered(patch: pytest.MonkeyPatch) -> None:
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


def a_process_that_only_fenced_the_session_is_not_a_second_owner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "may_have_written", lambda _self, _checkpoint: False)


def a_slot_is_announced_before_it_is_created(patch: pytest.MonkeyPatch) -> None:
    """A crash after the slot was created must not look like a lost checkpoint."""

    async def silent(_self: KafkaSink, _checkpoint: Any) -> None:  # noqa: ANN401 - as the original
        pass

    patch.setattr(KafkaSink, "announce", silent)


def a_new_slot_begins_with_a_committed_cut(patch: pytest.MonkeyPatch) -> None:
    """No position may be acknowledged before the first cut of the epoch is committed."""
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


def a_server_that_shuts_down_is_not_kept_waiting(patch: pytest.MonkeyPatch) -> None:
    """While Kafka is down, or a transaction is prepared, the acknowledgement that the server waits for cannot come."""
    patch.setattr(ShutdownWatch, "overdue", property(lambda _self: False))


def a_disk_that_hangs_ends_the_process(patch: pytest.MonkeyPatch) -> None:
    """A standby on another host may have a working disk, but cannot use the slot while this process occupies it."""
    patch.setattr(disk, "DISK_LIMIT_S", 1e9)


def without_transactions_the_checkpoint_waits_for_all_records_before_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdempotentProducer, "is_atomic", True)


def without_transactions_a_session_drops_unsent_records_when_it_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdempotentProducer, "abandon", lambda _self: None)
    patch.setattr(IdempotentProducer, "close", lambda _self: None)


def a_table_is_locked_before_the_snapshot_is_taken(patch: pytest.MonkeyPatch) -> None:
    """If a TRUNCATE came between the snapshot and the lock, the query would see no rows.

    But at the snapshot's position, the rows still exist.
    """
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


def rows_are_placed_at_the_insert_lsn_of_their_snapshot(patch: pytest.MonkeyPatch) -> None:
    """An asynchronous commit is visible before it is flushed, so a snapshot can see commits beyond the flush LSN."""
    take = Reader.take

    async def flushed(self: Reader) -> Taken:
        taken, wal = await take(self), self._wal
        return taken if wal.flushed == len(wal.records) else replace(taken, end_lsn=wal.records[wal.flushed].lsn)

    patch.setattr(Reader, "take", flushed)


def a_snapshot_sees_all_transactions_that_were_sent(patch: pytest.MonkeyPatch) -> None:
    """With synchronous replication, a transaction is sent before other sessions can see it."""

    async def at_once(_self: Rounds) -> None:
        pass

    patch.setattr(Rounds, "_see_all", at_once)


def transactions_wait_if_the_snapshot_does_not_see_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Round, "admits", lambda _self, _transaction: True)


def a_round_is_void_if_its_snapshot_sees_a_transaction_after_a_waiting_one(patch: pytest.MonkeyPatch) -> None:
    hold = Round.hold

    def blind(self: Round, transaction: Any) -> None:  # noqa: ANN401 - as the original
        hold(self, transaction)
        self.is_void = False

    patch.setattr(Round, "hold", blind)


def nothing_after_a_waiting_transaction_counts_as_received(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "limit_received", lambda _self, _lsn: None)


def messages_after_the_rows_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Round, "admits_message", lambda _self, _lsn: True)


def rows_that_moved_are_read_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Begun, "_on_incomplete", lambda _self, _relation, _new: None)


def a_load_waits_for_the_writers_of_its_table(patch: pytest.MonkeyPatch) -> None:
    """A transaction may have changed the table before the table was published. These changes are not in the stream."""

    async def at_once(_self: TableReading, _table: Any, _shape: Shape) -> None:  # noqa: ANN401 - as the original
        pass

    patch.setattr(TableReading, "_wait_for_writers", at_once)


def rows_at_one_position_are_counted_across_sessions(patch: pytest.MonkeyPatch) -> None:
    init = Inserter.__init__

    def forgetful(self: Inserter, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as the original
        init(self, *args, **options)
        self._position = LoadPosition()

    patch.setattr(Inserter, "__init__", forgetful)


def a_load_does_not_continue_with_another_shape(patch: pytest.MonkeyPatch) -> None:
    """If a column was added during the load, the rows that were already read may lack its value."""
    patch.setattr(readers, "_digest", lambda _relation: "")


def transaction_ids_have_64_bits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Snapshot, "_widened", lambda _self, xid: xid)


def loaded_rows_that_a_new_timeline_lacks_need_a_new_epoch(patch: pytest.MonkeyPatch) -> None:
    check = history.check_timeline

    def forgetful(checkpoint: Checkpoint, server: Any, switches: Any) -> Checkpoint:  # noqa: ANN401 - as the original
        return check(replace(checkpoint, load_position=LoadPosition()), server, switches)

    patch.setattr(history, "check_timeline", forgetful)


def forgetting(patch: pytest.MonkeyPatch, **fields: Any) -> None:  # noqa: ANN401 - those of CommandState
    """Make sessions replace these fields of the checkpoint's command state, as if they had forgotten them."""
    init = Requests.__init__

    def begin(self: Requests, outbox: Outbox, begun: Begun, state: CommandState, wake: Callable[[], None]) -> None:
        init(self, outbox, begun, replace(state, **fields), wake)

    patch.setattr(Requests, "__init__", begin)


def commands_are_not_executed_twice(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, offset=0)


def commands_are_read_from_the_offset_at_which_the_last_session_ended(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, topic_id="")


def requested_loads_outlive_a_session(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, requests=())


def a_pause_of_loads_outlives_a_session(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, is_paused=False)


def a_paused_pipeline_delivers_nothing(patch: pytest.MonkeyPatch) -> None:
    init = Intake.__init__
    patch.setattr(Intake, "__init__", lambda self, stream, _is_paused: init(self, stream, lambda: False))


def a_pause_of_the_pipeline_outlives_a_session(patch: pytest.MonkeyPatch) -> None:
    forgetting(patch, is_pipeline_paused=False)


def a_pause_of_the_pipeline_waits_for_the_end_of_a_round(patch: pytest.MonkeyPatch) -> None:
    """If a pause began in a round, the round would wait for the stream, or the round's end would deliver changes."""
    init = Loader.__init__

    def hasty(self: Loader, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as the original
        init(self, *args, **options)
        self.at_work = contextlib.nullcontext()  # type: ignore[assignment]  # commands to pause wait for this lock

    patch.setattr(Loader, "__init__", hasty)


def a_paused_session_reads_commands_before_it_knows_its_tables(patch: pytest.MonkeyPatch) -> None:
    """The loader reads the list of tables only after the pause, which only a command can end."""
    run_commands = Commands.run

    async def late(self: Commands) -> NoReturn:
        await self._loader.looked.wait()
        await run_commands(self)

    patch.setattr(Commands, "run", late)


def an_outdated_end_offset_does_not_make_commands_come_again(patch: pytest.MonkeyPatch) -> None:
    """An outdated broker may report an end offset that is lower than the offset of the last command that was read."""
    opened = TopicCommandReader._open

    def believing(self: TopicCommandReader, state: CommandState) -> CommandState:
        found = opened(self, state)
        with contextlib.closing(Topics(self._options, self._given_up)) as topics:
            _, high = topics.bounds(self._topic, 0)
        return replace(found, offset=min(found.offset, high))

    patch.setattr(TopicCommandReader, "_open", believing)


def an_answer_is_in_the_same_cut_as_the_effects_of_its_command(patch: pytest.MonkeyPatch) -> None:
    """If a command took effect in one cut and was answered in the next, a crash in between would lose the answer."""
    become = Requests.become
    late: dict[Requests, list[Answer]] = {}

    def later(
        self: Requests, state: CommandState, answers: Sequence[Answer] = (), loaded: Sequence[Loaded] = ()
    ) -> None:
        due, late[self] = late.get(self, []), list(answers)
        become(self, state, due, loaded)

    patch.setattr(Requests, "become", later)


def a_cancelled_load_does_not_continue(patch: pytest.MonkeyPatch) -> None:
    """A chunk may already have been read when the command to cancel is carried out."""
    patch.setattr(TableReading, "_is_current", lambda _self, _opened: True)
    patch.setattr(Loader, "_on_end", lambda self, opened: self._tables.pop(opened.oid, None))


def ddl_that_changes_rows_is_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alterations, "unsent", lambda _old, _new: None)


def a_layout_is_read_before_the_rows(patch: pytest.MonkeyPatch) -> None:
    """If a table is altered during its load, only a layout that was read before the rows shows the difference."""
    finish = Begun.finish

    def forgetful(self: Begun, load: Load, _layout: Layout | None) -> Loaded:
        return finish(self, load, None)

    patch.setattr(Begun, "finish", forgetful)


RULES: list[Sabotage] = [
    nothing_is_acknowledged_beyond_what_was_received,
    a_prepare_is_outstanding_until_its_commit_is_delivered,
    a_prepare_ends_immediately_if_its_commit_was_already_delivered,
    a_prepare_ends_immediately_if_it_is_rolled_back,
    outstanding_prepares_limit_the_acknowledged_position,
    prepares_before_the_delivered_position_are_kept,
    an_idle_position_is_written_to_kafka_before_it_is_acknowledged,
    delivered_transactions_are_dropped_when_they_are_sent_again,
    the_checkpoint_is_read_again_after_every_error,
    former_owners_are_fenced_before_the_checkpoint_is_read,
    the_checkpoint_is_read_to_the_high_watermark,
    each_session_has_its_own_producer,
    a_commit_without_an_answer_does_not_count_as_committed,
    only_committed_cuts_count_as_delivered,
    an_incomplete_transaction_is_never_committed,
    a_large_transaction_has_its_own_kafka_transaction,
    changes_of_rolled_back_savepoints_are_dropped,
    an_abort_of_an_unknown_transaction_is_not_an_error,
    messages_outside_transactions_keep_their_place,
    waiting_transactions_are_dropped_when_the_connection_ends,
    waiting_rows_keep_the_relation_with_which_they_were_sent,
    a_relation_takes_effect_when_it_arrives,
    predicted_offsets_are_checked_before_the_commit,
    all_records_of_a_cut_are_written_before_its_offsets_are_compared,
    a_cut_begins_at_the_end_offsets_of_the_previous_cut,
    the_first_cut_of_a_session_begins_where_the_last_recorded_cut_ended,
    the_first_cut_of_a_topic_lists_all_its_partitions,
    a_full_cut_lists_all_partitions,
    no_cut_lists_a_topic_that_never_had_changes,
    the_probe_shows_that_an_answer_is_outdated,
    the_probe_is_not_written_by_the_producer_of_the_session,
    a_read_that_makes_no_progress_asks_another_broker,
    other_brokers_are_asked_before_a_topic_counts_as_changed,
    a_standby_does_not_fence_the_owner,
    nothing_is_confirmed_before_the_last_transaction_has_come_again,
    the_last_message_has_to_come_again_as_well,
    another_transaction_is_not_mistaken_for_the_last_one,
    another_message_is_not_mistaken_for_the_last_one,
    new_transactions_are_not_mistaken_for_repetitions,
    a_refusal_is_recorded,
    a_recorded_refusal_stops_every_start,
    recorded_cuts_after_the_last_checkpoint_stop_the_start,
    checkpoints_with_other_keys_are_ignored,
    a_checkpoint_that_contradicts_the_cut_records_stops_the_start,
    a_checkpoint_without_its_cut_record_is_ignored,
    heartbeats_that_a_new_timeline_lacks_are_not_a_loss,
    positions_that_a_new_timeline_lacks_do_not_count_as_delivered,
    a_session_knows_the_checkpoint_that_it_found,
    a_process_that_only_fenced_the_session_is_not_a_second_owner,
    a_slot_is_announced_before_it_is_created,
    a_new_slot_begins_with_a_committed_cut,
    a_server_that_shuts_down_is_not_kept_waiting,
    a_disk_that_hangs_ends_the_process,
]


WITHOUT_TRANSACTIONS: list[Sabotage] = [
    without_transactions_the_checkpoint_waits_for_all_records_before_it,
    without_transactions_a_session_drops_unsent_records_when_it_ends,
]


OF_LOADING: list[Sabotage] = [
    a_table_is_locked_before_the_snapshot_is_taken,
    rows_are_placed_at_the_insert_lsn_of_their_snapshot,
    a_snapshot_sees_all_transactions_that_were_sent,
    transactions_wait_if_the_snapshot_does_not_see_them,
    a_round_is_void_if_its_snapshot_sees_a_transaction_after_a_waiting_one,
    nothing_after_a_waiting_transaction_counts_as_received,
    messages_after_the_rows_wait,
    rows_that_moved_are_read_again,
    a_load_waits_for_the_writers_of_its_table,
    rows_at_one_position_are_counted_across_sessions,
    a_load_does_not_continue_with_another_shape,
    transaction_ids_have_64_bits,
    loaded_rows_that_a_new_timeline_lacks_need_a_new_epoch,
    ddl_that_changes_rows_is_noticed,
    a_layout_is_read_before_the_rows,
]


OF_COMMANDS: list[Sabotage] = [
    commands_are_not_executed_twice,
    commands_are_read_from_the_offset_at_which_the_last_session_ended,
    requested_loads_outlive_a_session,
    a_pause_of_loads_outlives_a_session,
    a_paused_pipeline_delivers_nothing,
    a_pause_of_the_pipeline_outlives_a_session,
    a_pause_of_the_pipeline_waits_for_the_end_of_a_round,
    a_paused_session_reads_commands_before_it_knows_its_tables,
    an_outdated_end_offset_does_not_make_commands_come_again,
    an_answer_is_in_the_same_cut_as_the_effects_of_its_command,
    a_cancelled_load_does_not_continue,
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
    pytest.fail(f"none of {WORLDS} worlds went wrong without the rule")
