"""Runs ``pgsluice`` with a failpoint. The process kills itself when it passes a step for the n-th time.

    python daemon.py STEP N RULE run -c config.toml

The product has no failpoints. This script wraps the methods before or after which a crash could do harm. When the
process passes STEP for the n-th time, the script first brings about the state that the name of the step describes, and
then sends SIGKILL to the process. If RULE is given, the script disables this rule of the product. The test run (a
storm, see ``storm``) then has to fail. STEP and RULE may be empty. ``victim`` starts this script.
"""

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from confluent_kafka import KafkaException

from pgsluice.app import cli
from pgsluice.commands import Answer, CommandState
from pgsluice.kafka.ledger import Ledger
from pgsluice.kafka.producer import CutProducer
from pgsluice.kafka.sink import KafkaSink
from pgsluice.kafka.transactional import TransactionalProducer
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.commands import Commands
from pgsluice.pipeline.outbox import Outbox
from pgsluice.pipeline.reading import TableReading
from pgsluice.pipeline.requests import Requests
from pgsluice.pipeline.session import Session
from pgsluice.postgres import queries
from pgsluice.postgres.chunks import ChunkReader
from pgsluice.postgres.options import StreamOptions
from pgsluice.postgres.source import PostgresSource
from pgsluice.postgres.stream import ReplicationStream
from pgsluice.progress import Progress
from pgsluice.round import Round
from pgsluice.spool.disk_spool import SpooledRows
from pgsluice.transaction import Delivered, Transaction
from pgsluice.transactions import Transactions

FLUSH_S = 10.0

COMMIT_MAX_S = 0.02
"""The time in which most commits are answered.

The process waits for a random part of this time before it dies. So it may die before the request has arrived, before
the answer has arrived, or later.
"""

REPORTS_S = 1.0
"""A time within which a status update certainly arrives."""


def _received_does_not_matter() -> None:
    Progress.confirmable = property(lambda self: min((self.delivered, *self._prepares.values())))  # type: ignore[assignment, method-assign]


def _released_at_once() -> None:
    # Forget a prepared transaction as soon as its commit is received. Ignore the held_lsn of the last checkpoint.
    Progress.confirmable = property(lambda self: min((self.delivered, self.received, *self._prepares.values())))  # type: ignore[assignment, method-assign]
    Progress.on_prepared_commit = lambda self, xid, _: self.forget(xid)  # type: ignore[assignment, method-assign]


def _delivered_does_not_matter() -> None:
    Progress.confirmable = property(lambda self: min((self.received, *self._prepares.values())))  # type: ignore[assignment, method-assign]


def _nothing_is_dropped() -> None:
    make = Transactions.__init__
    Transactions.__init__ = lambda self, _, spool: make(self, Delivered(0, 0, 0), spool)  # type: ignore[assignment, method-assign]


def _prediction_is_true() -> None:
    Ledger.mismatch = lambda *_: None  # type: ignore[method-assign]


def _messages_are_streamed() -> None:
    ask = StreamOptions._streaming
    StreamOptions._streaming = lambda self, version: ask(replace(self, messages=False), version)  # type: ignore[method-assign]


def _refusals_are_forgotten() -> None:
    async def refuse(*_: object) -> None:
        pass

    KafkaSink.refuse = refuse  # type: ignore[assignment, method-assign]


def _the_server_never_went_back() -> None:
    # A refusal that an earlier start has recorded would stop every later start.
    _refusals_are_forgotten()
    Session._judge = lambda *_: None  # type: ignore[method-assign]


def _all_go_on() -> None:
    admits = Round.admits
    Round.admits = lambda self, transaction: admits(self, transaction) or True  # type: ignore[method-assign]


def _void_rounds_count() -> None:
    Round.is_void = property(lambda _: False, lambda *_: None)  # type: ignore[assignment]


def _snapshots_end_where_the_wal_is_flushed() -> None:
    queries.SNAPSHOT = queries.SNAPSHOT.replace("insert_lsn", "flush_lsn")


def _moved_rows_are_forgotten() -> None:
    Begun._on_incomplete = lambda *_: None  # type: ignore[method-assign]


def _loads_are_not_in_the_checkpoint() -> None:
    Begun.all = lambda _: []  # type: ignore[assignment, method-assign]


def _commands_are_taken_again() -> None:
    become = Requests.become

    def without_offset(self: Requests, state: CommandState, *others: Any) -> None:  # noqa: ANN401 - whatever become takes
        become(self, replace(state, offset=max(0, state.offset - 1)), *others)
        self.state = state

    Requests.become = without_offset  # type: ignore[assignment, method-assign]


def _nobody_is_waited_for() -> None:
    async def wait(*_: object) -> None:
        pass

    TableReading._wait_for_writers = wait  # type: ignore[assignment, method-assign]


RULES: Mapping[str, Callable[[], None]] = {
    "nothing is confirmed before it is received": _received_does_not_matter,
    "a prepare is outstanding until its commit is delivered": _released_at_once,
    "nothing is confirmed before it is in Kafka": _delivered_does_not_matter,
    "delivered transactions are dropped": _nothing_is_dropped,
    "predicted offsets are compared before the commit": _prediction_is_true,
    "nothing is streamed if messages are on": _messages_are_streamed,
    "a refusal is recorded": _refusals_are_forgotten,
    "new transactions are not mistaken for repetitions": _the_server_never_went_back,
    "a transaction waits if the snapshot does not see it": _all_go_on,
    "the rows of a void round are read again": _void_rounds_count,
    "rows are placed at the insert LSN of their snapshot": _snapshots_end_where_the_wal_is_flushed,
    "rows that have moved are read again": _moved_rows_are_forgotten,
    "a checkpoint has the loads": _loads_are_not_in_the_checkpoint,
    "a checkpoint has the offset of commands": _commands_are_taken_again,
    "a load waits for the writers of its table": _nobody_is_waited_for,
}
"""The rules that can be disabled, each with the function that disables it."""


@dataclass(frozen=True)
class Step:
    """A method before or after which the process dies."""

    owner: type
    method: str
    before: bool = False
    first: Callable[..., object] = lambda *_: None
    """Brings about the state that the step's name describes. It is called with the arguments of the method."""
    wait_s: float = 0.0
    """The pause before each call, if the method is a coroutine function."""
    counts: Callable[..., bool] = lambda *_: True
    """Returns whether a call counts as a pass. It is called with the arguments of the method."""
    armed: Callable[[], threading.Event] | None = None
    """Creates an event. A call counts only if this event was set after the last call that counted."""


def _flush(producer: CutProducer) -> None:
    producer._producer.flush(FLUSH_S)


def _flush_sink(sink: KafkaSink, *_: object) -> None:
    _flush(sink._live)


def _send_commit(producer: TransactionalProducer) -> None:
    """Send the commit request, and wait for a short random time. The request and its answer may or may not arrive."""
    _flush(producer)
    with suppress(KafkaException):
        producer._producer.commit_transaction(random.uniform(0, COMMIT_MAX_S))


def _report_for_a_while(_: TransactionalProducer) -> None:
    """Delay the commit in the worker thread. The event loop continues to send status updates."""
    time.sleep(REPORTS_S)


def _release_of_the_oldest() -> threading.Event:
    """Return an event that is set when COMMIT PREPARED is received for the transaction that holds the slot back.

    The event is set only if the transaction is not delivered yet, and no other transaction holds the slot back. Before
    the event is set, a status update is sent. This update must not confirm the commit yet. If it did, a crash would
    lose the transaction.
    """
    ended, happened = Session._ended, threading.Event()

    def ended_and_reported(session: Session, transaction: Transaction, end_lsn: int) -> None:
        progress = session.progress
        others = [lsn for xid, lsn in progress._prepares.items() if xid != transaction.xid]
        prepare_lsn = progress._prepares.get(transaction.xid, end_lsn)
        ended(session, transaction, end_lsn)
        if prepare_lsn < min((progress.delivered, *others)) and progress.delivered < end_lsn:
            session._report()
            assert isinstance(session._stream, ReplicationStream), "the product uses its own stream"
            session._stream._send_report()
            happened.set()

    Session._ended = ended_and_reported  # type: ignore[assignment, method-assign]
    return happened


def _of_load(state: str) -> Callable[..., bool]:
    """Return a function that says whether a call adds a mark with this state to the open cut."""
    return lambda _outbox, _loads, _place, marks, *_: any(mark.state == state for mark in marks)


def _has_answer(_: Requests, __: CommandState, answers: Sequence[Answer] = (), *___: object) -> bool:
    return bool(answers)


SILENCE_S = 3.0
"""How long nothing is received, as if the server took this long to decode.

Sessions report every two seconds, so there is at least one report in this time.
"""

SILENCE = "nothing received and time to report"
COMMIT_PREPARED = "commit prepared received and time to report"
CUT_RECORD = "cut record produced"

STEPS: Mapping[str, Step] = {
    "slot announced": Step(KafkaSink, "announce"),
    "slot created": Step(PostgresSource, "create_slot"),
    "streaming, not fenced": Step(PostgresSource, "start"),
    "fenced, checkpoint not read": Step(KafkaSink, "fence"),
    "checkpoint read": Step(KafkaSink, "checkpoints"),
    SILENCE: Step(ReplicationStream, "read", before=True, wait_s=SILENCE_S),
    "message received": Step(Transactions, "receive"),
    "prepared": Step(Transactions, "_hold"),
    "stream committed": Step(Transactions, "_stream_commit"),
    "stream aborted": Step(Transactions, "_stream_abort"),
    "commit prepared received": Step(Transactions, "_commit_prepared"),
    "rollback prepared received": Step(Transactions, "_rollback_prepared"),
    COMMIT_PREPARED: Step(
        TransactionalProducer, "commit", before=True, first=_report_for_a_while, armed=_release_of_the_oldest
    ),
    "spilled": Step(SpooledRows, "spill"),
    "read back": Step(SpooledRows, "_read", before=True),
    "Kafka transaction begun": Step(TransactionalProducer, "begin"),
    "rows of an unfinished transaction produced": Step(KafkaSink, "produce", first=_flush_sink),
    "flushed": Step(TransactionalProducer, "flush"),
    CUT_RECORD: Step(KafkaSink, "_send_checkpoint", before=True, first=_flush_sink),
    "checkpoint produced": Step(TransactionalProducer, "commit", before=True, first=_flush),
    "commit sent": Step(TransactionalProducer, "commit", before=True, first=_send_commit),
    "committed": Step(TransactionalProducer, "commit"),
    "reported": Step(ReplicationStream, "_send"),
    "command read": Step(Commands, "_take", before=True),
    "command carried out": Step(Requests, "become", counts=_has_answer),
    "table locked": Step(ChunkReader, "begin"),
    "snapshot taken": Step(ChunkReader, "take"),
    "chunk read": Step(ChunkReader, "rows"),
    "chunk in the open cut": Step(Outbox, "join_load", counts=_of_load("rows")),
    "load about to end": Step(Outbox, "join_load", before=True, counts=_of_load("end")),
    "load ended": Step(Outbox, "join_load", counts=_of_load("end")),
}
"""All steps by name, in the order in which a session passes them."""

LOAD_STEPS = [name for name, step in STEPS.items() if step.owner in (Commands, Requests, ChunkReader, Outbox)]
"""The steps that are passed only if a command has requested a load."""


def install(step: Step, passes: int) -> None:
    """Wrap the step's method, so that the process dies when the method is called for the ``passes``-th time."""
    method = getattr(step.owner, step.method)
    passing = _Passing(step, passes)

    def called(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the method takes
        if step.before:
            passing(*arguments)
        result = method(*arguments, **named)
        if not step.before:
            passing(*arguments)
        return result

    async def awaited(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the method takes
        if step.before:
            await asyncio.sleep(step.wait_s)
            passing(*arguments)
        result = await method(*arguments, **named)
        if not step.before:
            passing(*arguments)
        return result

    setattr(step.owner, step.method, wraps(method)(awaited if asyncio.iscoroutinefunction(method) else called))


class _Passing:
    """Counts the passes of a step, and kills the process at the last pass."""

    def __init__(self, step: Step, passes: int) -> None:
        self._step = step
        self._left = passes
        self._armed = step.armed() if step.armed is not None else None

    def __call__(self, *arguments: object) -> None:
        if not self._step.counts(*arguments):
            return
        if self._armed is not None:
            if not self._armed.is_set():
                return
            self._armed.clear()
        self._left -= 1
        if self._left <= 0:
            self._step.first(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Install the failpoint, then run pgsluice."""
    step, passes, rule, *arguments = sys.argv[1:]
    if rule:
        RULES[rule]()
    if step:
        install(STEPS[step], int(passes))
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
