"""Commands to the pipeline of a simulated world. Each of them must be carried out exactly once, whatever happens."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pgsluice.commands import VERBS, Command
from tests.simulation.broker import Broker, Entry

OFTEN = 10, 4, 2, 4, 1, 6
"""The relative frequency of each of the ``VERBS``. Commands to resume are more frequent than pauses, to save time."""

NEVER_MS = 2**60
"""The time at which commands expire. No world lasts that long."""

FIRST = ("refused", "done", "accepted")
"""The possible outcomes in the first answer to a command."""

SOME = "even"
"""The condition of loads that read only some rows."""


class Orders:
    """The commands that were given, and the state that must follow from the commands that the pipeline has read."""

    def __init__(self, broker: Broker, topic: str, dice: random.Random, violate: Callable[[str], None]) -> None:
        self.topic = topic
        self.may_go_back = False
        """Whether Kafka may lose checkpoints in this world. The state of commands is lost with them."""
        self._broker = broker
        self._dice = dice
        self._violate = violate
        self._commands: dict[int, Command] = {}
        """The commands by offset."""
        self._offset: int | None = None
        """The offset after the last command that was read. It is None until a checkpoint contains an offset."""
        self._is_paused = False
        self._is_pipeline_paused = False
        self._wanted: dict[str, str] = {}
        """The tables whose load a command has requested, with the command's id."""
        self._answered: set[str] = set()
        self._accepted: Counter[tuple[str, str]] = Counter()
        """The accepted commands that have no final answer yet, each with one of its tables."""

    def give(self, tables: Sequence[str]) -> None:
        """Give a random command. If it concerns a table, choose one of ``tables``."""
        verb = self._dice.choices(VERBS, OFTEN)[0]
        concerned = [self._dice.choice([*tables, "*", "unknown"])] if verb in ("start", "cancel") else []
        where = SOME if verb == "start" and self._dice.random() < 0.2 else ""
        self._send(verb, [f"public.{name}" for name in concerned], where)

    def resume(self) -> None:
        """Resume the pipeline and its loads."""
        self._send("resume_pipeline", [], "")
        self._send("resume", [], "")

    def _send(self, verb: str, tables: Sequence[str], where: str) -> None:
        if self._offset is None:
            return  # the command line also waits until a daemon reads commands
        log = self._broker.partition((self.topic, 0)).log
        command = Command(f"c{len(log)}", verb, NEVER_MS, tuple(tables), where)
        self._commands[len(log)] = command
        log.append(Entry(None, command.id.encode(), command.to_json()))

    def on_cut(
        self,
        checkpoint: Mapping[str, Any],
        values: Iterable[bytes],
        marks: Sequence[Mapping[str, Any]],
        *,
        has_events: bool,
    ) -> None:
        """Check that the answers and the state in a cut follow from the commands that were read."""
        state, answers = checkpoint["commands"], [json.loads(value)["answer"] for value in values]
        self._take_answers(answers)
        if self._offset is None or self.may_go_back:
            self._offset = state["offset"] if state["topic_id"] else None
            return
        taken = [one for at, one in sorted(self._commands.items()) if self._offset <= at < state["offset"]]
        first = [one for one in answers if one["outcome"] in FIRST]
        if [one.id for one in taken] != [one["id"] for one in first]:
            self._violate(f"commands {taken} were taken, and {first} was answered")
            return
        if self._is_pipeline_paused and (has_events or marks) and not any(map(_goes_on, taken)):
            self._violate(f"cut {checkpoint['cut']} delivers something although the pipeline is paused")
        self._offset = max(self._offset, state["offset"])
        given = iter(taken)
        for answer in answers:
            if answer["outcome"] in FIRST:
                self._follow(next(given), answer)
            else:
                self._follow_end(answer, marks)
        self._check_state(state)

    def _follow(self, command: Command, answer: Mapping[str, Any]) -> None:
        if answer["outcome"] == "done" and command.verb in ("pause", "resume"):
            self._is_paused = command.verb == "pause"
        if answer["outcome"] == "done" and command.verb in ("pause_pipeline", "resume_pipeline"):
            self._is_pipeline_paused = command.verb == "pause_pipeline"
        if answer["outcome"] == "accepted":
            self._wanted |= dict.fromkeys(answer["tables"], command.id)

    def _follow_end(self, answer: Mapping[str, Any], marks: Sequence[Mapping[str, Any]]) -> None:
        if answer["outcome"] == "waiting":
            return
        for table in answer["tables"]:
            if self._wanted.pop(table, None) != answer["id"]:
                self._violate(f"{answer} is about a table that no command has requested")
            ends = [one for one in marks if f"{one['schema']}.{one['table']}" == table and one["state"] == "end"]
            if answer["outcome"] == "loaded" and answer["rows"] not in [one["rows"] for one in ends]:
                self._violate(f"{answer} is not in the same cut as the end of its load. Ends in this cut: {ends}")

    def _check_state(self, state: Mapping[str, Any]) -> None:
        wanted = {f"{one['schema']}.{one['table']}": one["command"] for one in state["requests"]}
        paused = state["is_paused"], state.get("is_pipeline_paused", False)
        expected = self._is_paused, self._is_pipeline_paused
        if (paused, wanted) != (expected, self._wanted):
            self._violate(f"the checkpoint has {state}, but {self._wanted} are wanted, paused: {expected}")

    # In at-least-once mode

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Store the offset up to which commands were read, and whether the pipeline is paused."""
        state = checkpoint["commands"]
        self._offset = state["offset"] if state["topic_id"] else None
        self._is_pipeline_paused = state.get("is_pipeline_paused", False)

    def on_change(self) -> None:
        """Check that the pipeline may deliver something now.

        If the last checkpoint says that the pipeline is paused, it may deliver only if a command to resume follows.
        """
        if self._is_pipeline_paused and self._offset is not None:
            later = [one for at, one in self._commands.items() if at >= self._offset]
            if not any(map(_goes_on, later)):
                self._violate("something is delivered although the pipeline is paused")

    def on_answer(self, value: bytes) -> None:
        """Store an answer. The same answer may come again."""
        self._take_answers([json.loads(value)["answer"]])

    def _take_answers(self, answers: Iterable[Mapping[str, Any]]) -> None:
        for one in answers:
            places = [(one["id"], table) for table in one["tables"]]
            if one["outcome"] in FIRST:
                self._answered.add(one["id"])
                self._accepted.update(places)
            elif one["outcome"] != "waiting":
                for place in places:
                    del self._accepted[place]

    def missing(self) -> str | None:
        """Return the description of a command without a final answer, or None."""
        if self.may_go_back:
            return None
        unanswered = [one for one in self._commands.values() if one.id not in self._answered]
        if unanswered:
            return f"command {unanswered[0]} was never answered"
        return f"there was no final answer to {list(self._accepted)}" if self._accepted else None


def _goes_on(command: Command) -> bool:
    return command.verb == "resume_pipeline"


def loaded_by(values: Iterable[bytes]) -> set[str]:
    """Return the tables whose loads were requested by commands, and have ended according to these answers."""
    answers = [json.loads(value)["answer"] for value in values]
    return {table for one in answers if one["outcome"] == "loaded" for table in one["tables"]}
