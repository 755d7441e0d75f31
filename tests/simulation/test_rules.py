"""Every rule is needed: with any one of them taken out of the product, some world goes wrong.

A sabotage that no world notices means that the simulation is too weak there.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from pgsluice import transaction as transactions
from pgsluice.errors import PgsluiceError
from pgsluice.kafka.idempotent import IdempotentProducer
from pgsluice.kafka.ledger import Ledger
from pgsluice.kafka.producer import TransactionalProducer
from pgsluice.kafka.sink import KafkaSink, Mode
from pgsluice.kafka.topics import Topics
from pgsluice.pgoutput import messages
from pgsluice.pipeline import Pipeline
from pgsluice.pipeline import session as sessions
from pgsluice.pipeline.outbox import Outbox
from pgsluice.pipeline.session import Session
from pgsluice.progress import Progress
from pgsluice.transaction import Transactions
from tests.simulation.virtual import PROCESS
from tests.simulation.world import run

WORLDS = 1000
"""So many worlds may pass before one has to notice."""

Sabotage = Callable[[pytest.MonkeyPatch], None]


def nothing_is_acknowledged_beyond_what_was_received(patch: pytest.MonkeyPatch) -> None:
    """Before R, prepares may be outstanding that this session does not know yet."""
    patch.setattr(
        Progress, "confirmable", property(lambda self: min(self.delivered, *self._prepares.values(), 1 << 62))
    )


def a_prepare_is_outstanding_until_its_cut_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "release", lambda self, xid, _end_lsn: self.forget(xid))


def a_commit_prepared_that_was_delivered_releases_at_once(patch: pytest.MonkeyPatch) -> None:
    release = Progress.release

    def late(self: Progress, xid: int, end_lsn: int) -> None:
        if end_lsn > self.delivered:
            release(self, xid, end_lsn)

    patch.setattr(Progress, "release", late)


def a_rollback_releases_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "forget", lambda _self, _xid: None)


def prepares_hold_the_acknowledgement_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "hold", lambda _self, _xid, _prepare_lsn: None)


def prepares_of_delivered_transactions_are_kept(patch: pytest.MonkeyPatch) -> None:
    """What was prepared before D may be committed after it."""
    hold = Transactions._hold

    def skipping(self: Transactions, message: Any, waiting: Any) -> Any:  # noqa: ANN401 - as the original
        return () if message.end_lsn <= self._delivered_lsn else hold(self, message, waiting)

    patch.setattr(Transactions, "_hold", skipping)


def idle_progress_is_written_before_it_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    take = Session._take_keepalive

    def eager(self: Session, frame: Any) -> None:  # noqa: ANN401 - as the original
        take(self, frame)
        if self._transactions.is_between and not self._outbox._open.records and self._outbox.committing is None:
            self.progress.delivered = max(self.progress.delivered, frame.wal_end)

    patch.setattr(Session, "_take_keepalive", eager)


def what_was_delivered_is_dropped_when_it_comes_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "Transactions", lambda _delivered, spool: Transactions(0, spool))


def the_checkpoint_is_read_again_after_every_error(patch: pytest.MonkeyPatch) -> None:
    """What was last known to be committed is not what is."""
    known: dict[object, Any] = {}
    delivered, resume = Outbox._delivered, Pipeline._resume

    def note(self: Outbox, cut: Any, checkpoint: Any, seconds: float) -> None:  # noqa: ANN401 - as the original
        known[PROCESS.get()] = checkpoint
        delivered(self, cut, checkpoint, seconds)

    def remembering(self: Pipeline, checkpoint: Any, *rest: Any) -> Any:  # noqa: ANN401 - as the original
        return resume(self, known.get(PROCESS.get(), checkpoint), *rest)

    patch.setattr(Outbox, "_delivered", note)
    patch.setattr(Pipeline, "_resume", remembering)


def former_owners_are_fenced_before_the_checkpoint_is_read(patch: pytest.MonkeyPatch) -> None:
    """What they commit after it was read would come twice."""
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
    def stable(self: Topics, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        latest = self._offsets({place: OffsetSpec.latest()}, IsolationLevel.READ_COMMITTED)
        return 0, latest[topic, partition]

    patch.setattr(Topics, "bounds", stable)


def a_session_has_a_producer_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """A commit that was given up may still arrive, and would commit half of the next cut."""
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
        while waiting and isinstance(event, transactions.Committed):
            await take(self, None, waiting.pop(0))

    patch.setattr(Session, "_take_message", later)
    patch.setattr(Session, "_take_other", then)


def what_waits_dies_with_the_connection(patch: pytest.MonkeyPatch) -> None:
    kept: dict[object, Transactions] = {}

    def keeping(delivered: int, spool: Any) -> Transactions:  # noqa: ANN401 - as the original
        found = Transactions(delivered, spool)
        before = kept.get(PROCESS.get())
        if before is not None:
            found._streams, found._prepares, found.prepared = before._streams, before._prepares, before.prepared
        kept[PROCESS.get()] = found
        return found

    patch.setattr(sessions, "Transactions", keeping)


def rows_that_wait_keep_the_table_they_were_sent_under(patch: pytest.MonkeyPatch) -> None:
    def latest(self: Any, relation: Any) -> int:  # noqa: ANN401 - as the original
        number = self.numbers.get(relation.oid)
        if number is None:
            self.relations.append(relation)
            number = self.numbers[relation.oid] = len(self.relations)
        self.relations[number - 1] = relation
        return int(number)

    patch.setattr(transactions._Waiting, "number", latest)


def tables_are_described_in_order_of_arrival(patch: pytest.MonkeyPatch) -> None:
    """A stream's Relation does not come into force at its commit."""
    commit = Transactions._stream_commit

    def merging(self: Transactions, message: messages.StreamCommit) -> Iterator[Any]:
        for relation in self._streams[message.xid].relations:
            self.relations.by_oid[relation.oid] = relation
        yield from commit(self, message)

    patch.setattr(Transactions, "_stream_commit", merging)


def what_is_foretold_is_confirmed_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Kafka may mark the end of a transaction twice."""
    patch.setattr(Ledger, "unlike", lambda _self, _foretold: None)


def a_cut_is_all_there_before_its_offsets_are_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionalProducer, "flush", lambda _self: None)


def what_ends_a_cut_begins_the_next(patch: pytest.MonkeyPatch) -> None:
    committed = Ledger.committed

    def forgetting(self: Ledger, cut: Any, following: Any, *, full: bool) -> None:  # noqa: ANN401 - as the original
        ends = dict(self._known.ends)
        committed(self, cut, following, full=full)
        self._known.ends = ends

    patch.setattr(Ledger, "committed", forgetting)


def the_first_cut_of_a_topic_lists_all_its_partitions(patch: pytest.MonkeyPatch) -> None:
    pin = Ledger.pin

    def listed(self: Ledger, states: Any) -> None:  # noqa: ANN401 - as the original
        pin(self, states)
        self._unlisted.clear()

    patch.setattr(Ledger, "pin", listed)


def a_full_cut_lists_everything(patch: pytest.MonkeyPatch) -> None:
    following = Ledger.following
    patch.setattr(Ledger, "following", lambda self, cut, **_: following(self, cut, full=False))


def a_standby_fences_nobody(patch: pytest.MonkeyPatch) -> None:
    start = Pipeline._start

    async def fencing(self: Pipeline, source: Any, sink: Any) -> Any:  # noqa: ANN401 - as the original
        await sink.prepare()
        await sink.fence()
        return await start(self, source, sink)

    patch.setattr(Pipeline, "_start", fencing)


def who_fences_and_writes_nothing_is_no_stranger(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "may_have_written", lambda _self, _checkpoint: False)


def a_slot_is_announced_before_it_is_made(patch: pytest.MonkeyPatch) -> None:
    """A crash between the two must not look as if the checkpoint were lost."""

    async def silent(_self: KafkaSink, _checkpoint: Any) -> None:  # noqa: ANN401 - as the original
        pass

    patch.setattr(KafkaSink, "announce", silent)


def a_slot_that_is_made_has_a_birth(patch: pytest.MonkeyPatch) -> None:
    """Before anything is acknowledged."""
    find = Pipeline._find_checkpoint

    async def unborn(self: Pipeline, source: Any, sink: Any, *rest: Any) -> Any:  # noqa: ANN401 - as the original
        async def deliver(_cut: Any, _checkpoint: Any) -> None:  # noqa: ANN401 - as the original
            pass

        sink.deliver, really = deliver, sink.deliver
        try:
            return await find(self, source, sink, *rest)
        finally:
            sink.deliver = really

    patch.setattr(Pipeline, "_find_checkpoint", unborn)


def a_server_that_shuts_down_is_let_go(patch: pytest.MonkeyPatch) -> None:
    """Also while Kafka is away, or a prepared transaction is outstanding."""
    patch.setattr(sessions._ShutdownWatch, "overdue", property(lambda _self: False))


def without_transactions_the_checkpoint_waits_for_all_before_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdempotentProducer, "is_atomic", True)


def without_transactions_an_owner_throws_away_what_it_has_not_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdempotentProducer, "abandon", lambda _self: None)


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
    what_is_foretold_is_confirmed_before_the_commit,
    a_cut_is_all_there_before_its_offsets_are_compared,
    what_ends_a_cut_begins_the_next,
    the_first_cut_of_a_topic_lists_all_its_partitions,
    a_full_cut_lists_everything,
    a_standby_fences_nobody,
    who_fences_and_writes_nothing_is_no_stranger,
    a_slot_is_announced_before_it_is_made,
    a_slot_that_is_made_has_a_birth,
    a_server_that_shuts_down_is_let_go,
]


WITHOUT_TRANSACTIONS: list[Sabotage] = [
    without_transactions_the_checkpoint_waits_for_all_before_it,
    without_transactions_an_owner_throws_away_what_it_has_not_sent,
]


@pytest.mark.parametrize("rule", [*RULES, *WITHOUT_TRANSACTIONS], ids=lambda rule: str(rule.__name__))
def test_without_it_some_world_goes_wrong(
    rule: Sabotage, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    rule(monkeypatch)
    mode: Mode = "at_least_once" if rule in WITHOUT_TRANSACTIONS else "exactly_once"
    for seed in range(WORLDS):
        if violation := run(seed, mode=mode):
            record_property("violation", f"seed {seed}: {violation}")
            return
    pytest.fail(f"{WORLDS} worlds did not need the rule")
