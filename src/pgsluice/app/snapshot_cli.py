"""``pgsluice snapshot``, ``pgsluice pause`` and ``pgsluice resume``, which send a command to a running pipeline.

``cli`` sends the command. This module creates the command, and shows its results. The progress of loads is in the
checkpoint. The pipeline's answers to the command report the end of each load.
"""

import time
from collections.abc import Callable
from typing import Final
from uuid import uuid4

from pgsluice.commands import Answer, Command, Verb
from pgsluice.errors import CommandRefused, RetryableError, UnavailableError
from pgsluice.kafka.commands import CommandClient
from pgsluice.printable import quoted

EXPIRES_S: Final = 600.0
"""The age at which a command expires. A pipeline refuses an expired command, because the user may have given up."""

LATE_S: Final = 30.0
"""How long to wait for an answer after the command has expired. An answer is sent only with the next cut, so the answer
to a command that has just been carried out may still come."""

PROGRESS_S: Final = 5.0
"""How often the progress of loads is shown."""

POLL_S: Final = 0.5

Say = Callable[[str], object]


def new_command(verb: Verb, tables: tuple[str, ...], where: str) -> Command:
    """Return a command that expires in ten minutes."""
    return Command(uuid4().hex, verb, int((time.time() + EXPIRES_S) * 1000), tables, where)


def follow(client: CommandClient, command: Command, say: Say) -> int:
    """Show the results of a command until it has ended. Return the exit code of success.

    Raise CommandRefused if the command was not carried out completely, and UnavailableError if no pipeline answers.
    """
    answer = _first_answer(client, command)
    if answer.outcome == "refused":
        raise CommandRefused(answer.detail)
    if answer.outcome == "done":
        say(answer.detail or "done")
        return 0
    say(" ".join([f"{len(answer.tables)} tables will be loaded.", answer.detail]).rstrip())
    try:
        return _follow_loads(client, command, answer, say)
    except (KeyboardInterrupt, RetryableError):
        say("The load continues. `pgsluice snapshot status` shows its progress, `pgsluice snapshot cancel` ends it.")
        raise


def status(client: CommandClient) -> list[str]:
    """Return lines about all loads, according to the last checkpoint."""
    checkpoint = client.checkpoint()
    if checkpoint is None:
        raise UnavailableError("There is no checkpoint of this pipeline yet: `pgsluice run` writes the first one.")
    lines = {quoted(one.schema, one.table): (one.state, one.rows) for one in client.loaded()}
    stale = {name for name, (state, _) in lines.items() if state == "stale"}
    lines |= {quoted(one.schema, one.table): ("waiting", 0) for one in checkpoint.commands.requests}
    lines |= {str(one): ("stale, loading" if str(one) in stale else "loading", one.rows) for one in checkpoint.loads}
    width = max((len(name) for name in lines), default=0)
    states = {"end": "loaded"}
    paused = ["the pipeline is paused, until `pgsluice resume`"] if checkpoint.commands.is_pipeline_paused else []
    return [
        *paused,
        f"loads are {'paused' if checkpoint.commands.is_paused else 'not paused'}",
        *(f"{name:<{width}}  {states.get(state, state):<14}  {rows} rows" for name, (state, rows) in lines.items()),
    ]


def _first_answer(client: CommandClient, command: Command) -> Answer:
    while time.time() < command.expires_ms / 1000 + LATE_S:
        answer = client.answer(command.id, POLL_S)
        if answer is not None:
            return answer
    raise UnavailableError(
        "No pipeline has answered. The command has expired, so it will not be carried out. Start `pgsluice run`, or "
        "see in its log why it accepts no commands. Then give the command again."
    )


def _follow_loads(client: CommandClient, command: Command, accepted: Answer, say: Say) -> int:
    """Show the progress of the loads until each has ended."""
    left, progress = set(accepted.tables), _Progress(client, say)
    failed: list[str] = []
    while left:
        answer = client.answer(command.id, POLL_S)
        if answer is None:
            progress.show(left)
        elif answer.outcome != "accepted":  # in at-least-once mode, the answer "accepted" may come twice after a crash
            say(_sentence(answer))
            if answer.outcome == "ended":
                failed += answer.tables
            if answer.outcome != "waiting":
                left -= set(answer.tables)
    if failed:
        raise CommandRefused(f"{len(failed)} of {len(accepted.tables)} tables were not loaded completely.")
    return 0


def _sentence(answer: Answer) -> str:
    name = ", ".join(answer.tables)
    if answer.outcome == "loaded":
        return f"{name}: loaded, {answer.rows} rows"
    state = "it will be tried again" if answer.outcome == "waiting" else "its load has ended"
    return f"{name}: {answer.detail} ({state})"


class _Progress:
    """Shows every few seconds how many rows have been read, and how fast."""

    def __init__(self, client: CommandClient, say: Say) -> None:
        self._client = client
        self._say = say
        self._rows: dict[str, int] = {}
        self._at = time.monotonic()

    def show(self, tables: set[str]) -> None:
        """Show the progress of these tables, unless it was shown less than ``PROGRESS_S`` seconds ago."""
        now = time.monotonic()
        if now - self._at < PROGRESS_S:
            return
        self._at, since = now, self._at
        try:
            checkpoint = self._client.checkpoint()
        except RetryableError as error:
            self._say(f"The progress is not known at present: {error}")
            return
        for load in () if checkpoint is None else checkpoint.loads:
            name = str(load)
            if name in tables:
                rate = (load.rows - self._rows.get(name, 0)) / (now - since)
                self._say(f"{name}: {load.rows} rows, {rate:.0f} rows/s")
                self._rows[name] = load.rows
