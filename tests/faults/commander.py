"""Gives commands to the pipeline of a storm (see ``storm``), and checks that each was carried out once.

Commands are sent in the same way as by ``pgsluice snapshot``, but not through the pipeline's proxies.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from pgsluice.app.snapshot_cli import new_command
from pgsluice.commands import Verb
from pgsluice.errors import PgsluiceError
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.commands import CommandClient, CommandTopics
from tests.faults.checker import Tally
from tests.support.reader import CONSUMER

FIRST = ("refused", "done", "accepted")
"""The possible outcomes in the first answer to a command.

For each table of an accepted command, there is a later answer with an outcome from ``LAST``.
"""
LAST = ("loaded", "ended")

POLL_S = 0.1


class Commander:
    """Gives commands to one pipeline."""

    def __init__(self, bootstrap_servers: str, name: str, note: Callable[[str], None], *, is_atomic: bool) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._note = note
        self._topic = f"{name}.commands"
        self._topics = CommandTopics(name, self._topic, f"{name}.checkpoint", f"{name}.snapshots", is_atomic=is_atomic)
        self._is_atomic = is_atomic
        self._sent: set[str] = set()
        """The ids of commands that Kafka has certainly stored."""

    def give(self, verb: Verb, tables: Sequence[str] = (), where: str = "") -> bool:
        """Send a command. Return False if Kafka may not have stored it, for example because brokers are down."""
        command = new_command(verb, tuple(f"public.{table}" for table in tables), where)
        try:
            with self._client() as client:
                client.send(command)
        except PgsluiceError as error:
            self._note(f"command {verb} not sent: {error}")
            return False
        self._note(f"command {verb} {' '.join(tables)} {where}")
        self._sent.add(command.id)
        return True

    def is_done(self) -> bool:
        """Return whether every command was answered, and no load is in progress according to the last checkpoint."""
        answered = self._answers().keys()  # read answers first, so that the checkpoint contains their effects
        with self._client() as client:
            checkpoint = client.checkpoint()
        return checkpoint is not None and not (
            checkpoint.loads or checkpoint.commands.requests or self._sent - answered
        )

    def unfinished(self) -> str:
        """Describe the loads and commands that are not done, for the message of an error."""
        unanswered = self._sent - self._answers().keys()
        with self._client() as client:
            checkpoint = client.checkpoint()
        if checkpoint is None:
            return "there is no checkpoint"
        loads, requests = checkpoint.loads, checkpoint.commands.requests
        return f"unanswered commands: {unanswered}, loads: {loads}, requests: {requests}"

    def loaded(self) -> dict[str, str]:
        """Return for each loaded table the state in its record, which says how the load ended."""
        with self._client() as client:
            return {one.table: one.state for one in client.loaded()}

    def check(self, tally: Tally) -> None:
        """Report problems in the answers to the commands that Kafka has certainly stored."""
        check_answers(self._sent, self._answers(), tally, is_atomic=self._is_atomic)

    def _client(self) -> CommandClient:
        options = ClientOptions({"bootstrap.servers": self._bootstrap_servers}, "storm-commander")
        return CommandClient(options, self._topics)

    def _answers(self) -> dict[str, list[dict[str, Any]]]:
        """Return the answers by the command's id, in the order of the topic."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        consumer = Consumer({**CONSUMER, "bootstrap.servers": self._bootstrap_servers})
        try:
            consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
            while True:
                for message in consumer.consume(1000, POLL_S):
                    if message.error() is None:
                        answer = json.loads(message.value()).get("answer")
                        if answer is not None:
                            found[answer["id"]].append(answer)
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        return found
        finally:
            consumer.close()


def check_answers(
    sent: Iterable[str], answers: Mapping[str, Sequence[Mapping[str, Any]]], tally: Tally, *, is_atomic: bool
) -> None:
    """Report commands without an answer, and commands that were carried out twice according to their answers."""
    for identifier in sent:
        tally.commands += 1
        found = answers.get(identifier, ())
        first = [one for one in found if one["outcome"] in FIRST]
        ends = Counter(table for one in found if one["outcome"] in LAST for table in one["tables"])
        expected = Counter(table for one in first for table in one["tables"])
        if not first:
            tally.complain("lost", f"command {identifier} has no answer")
        elif is_atomic and (len(first) > 1 or ends != expected):
            tally.complain("doubled", f"command {identifier} has the answers {found}")
