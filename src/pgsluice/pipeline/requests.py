"""The effects of commands on one session: the tables to load, and whether loads are paused."""

from collections.abc import Callable, Sequence

from pgsluice.commands import Answer, CommandState, Outcome, Request
from pgsluice.loads import Loaded
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.outbox import Outbox


class Requests:
    """The requests of one session. Change them only while the session's work is paused."""

    def __init__(self, outbox: Outbox, begun: Begun, state: CommandState, wake: Callable[[], None]) -> None:
        """``wake`` makes the session check whether its cut is due."""
        self.state = state
        self._outbox = outbox
        self._begun = begun
        self._wake = wake

    def of(self, name: tuple[str, str]) -> Request | None:
        """Return the request to load a table, if there is one."""
        return self.state.of(name)

    def where(self, name: tuple[str, str]) -> str:
        """Return the condition that selects the requested rows. It is empty if all rows are requested."""
        request = self.state.of(name)
        return "" if request is None else request.where

    def become(self, state: CommandState, answers: Sequence[Answer] = (), loaded: Sequence[Loaded] = ()) -> None:
        """Record the effects of commands in the open cut: the new ``state``, and the ``answers`` to the commands."""
        self.state = state
        self._outbox.note_commands(state, answers, self._begun.all(), loaded)
        self._wake()

    def note(self, name: tuple[str, str], detail: str) -> None:
        """Answer the command that requested the table: report why the table waits."""
        request = self.state.of(name)
        if request is not None:
            self.become(self.state, [request.answer("waiting", detail)])

    def end(self, name: tuple[str, str], outcome: Outcome, detail: str = "", rows: int = 0) -> None:
        """Answer the command that requested the table: report the ``outcome``. End the request."""
        request = self.state.of(name)
        if request is not None:
            self.become(self.state.without(name), [request.answer(outcome, detail, rows)])
