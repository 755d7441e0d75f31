"""``pgsluice`` with a failpoint: the process kills itself when it passes a step for the n-th time.

    python daemon.py STEP N run -c config.toml

The product has no failpoints. This wraps the methods at whose borders a crash could do harm; each step leaves
the world in the state that its name says before SIGKILL. ``storm`` starts it.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

from confluent_kafka import KafkaException

from pgsluice import cli
from pgsluice.kafka.producer import TransactionalProducer
from pgsluice.kafka.sink import KafkaSink
from pgsluice.postgres.source import PostgresSource
from pgsluice.postgres.stream import ReplicationStream
from pgsluice.transaction import Transactions

FLUSH_S = 10.0

COMMIT_MAX_S = 0.02
"""A commit is answered within that time, mostly: a crash falls before, between or behind request and answer."""


@dataclass(frozen=True)
class Step:
    """The method at whose border the process dies: before it runs, or when it has returned."""

    owner: type
    method: str
    before: bool = False
    first: Callable[..., object] = lambda *_: None
    """Brings about the state that the step is named after; gets what the method gets."""
    when: Callable[..., bool] = lambda *_: True
    """Whether this call counts; gets what the method gets."""


def die(*_: object) -> None:
    """``kill -9``."""
    os.kill(os.getpid(), signal.SIGKILL)


def _flush(producer: TransactionalProducer) -> None:
    producer._producer.flush(FLUSH_S)


def _flush_sink(sink: KafkaSink, *_: object) -> None:
    _flush(sink._live)


def _send_commit(producer: TransactionalProducer) -> None:
    """Have the commit on its way, and perhaps there, but do not wait for the answer."""
    _flush(producer)
    with suppress(KafkaException):
        producer._producer.commit_transaction(random.uniform(0, COMMIT_MAX_S))


STEPS: Mapping[str, Step] = {
    "slot announced": Step(KafkaSink, "announce"),
    "slot created": Step(PostgresSource, "create_slot"),
    "streaming, not fenced": Step(PostgresSource, "start"),
    "fenced, checkpoint not read": Step(KafkaSink, "fence"),
    "checkpoint read": Step(KafkaSink, "last_checkpoint"),
    "message received": Step(Transactions, "receive"),
    "Kafka transaction begun": Step(TransactionalProducer, "begin"),
    "rows of an unfinished transaction produced": Step(KafkaSink, "produce", first=_flush_sink),
    "flushed": Step(TransactionalProducer, "flush"),
    "checkpoint produced": Step(TransactionalProducer, "commit", before=True, first=_flush),
    "commit sent": Step(TransactionalProducer, "commit", before=True, first=_send_commit),
    "committed": Step(TransactionalProducer, "commit"),
    "reported": Step(ReplicationStream, "_send"),
}
"""All steps by name, in the order of a session."""


def install(step: Step, passes: int) -> None:
    """Wrap the step's method so that its ``passes``-th call is the last thing that the process does."""
    method = getattr(step.owner, step.method)
    left = passes

    def passing(*arguments: Any) -> None:  # noqa: ANN401 - whatever the method takes
        nonlocal left
        left -= step.when(*arguments)
        if left <= 0:
            step.first(*arguments)
            die()

    def called(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as above
        if step.before:
            passing(*arguments)
        result = method(*arguments, **named)
        if not step.before:
            passing(*arguments)
        return result

    async def awaited(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as above
        if step.before:
            passing(*arguments)
        result = await method(*arguments, **named)
        if not step.before:
            passing(*arguments)
        return result

    setattr(step.owner, step.method, wraps(method)(awaited if asyncio.iscoroutinefunction(method) else called))


def main() -> int:
    """Install the failpoint, then be pgsluice."""
    name, passes, *arguments = sys.argv[1:]
    install(STEPS[name], int(passes))
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
