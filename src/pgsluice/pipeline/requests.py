"""What commands have left behind in this session: the tables that they ask for, and whether loads are paused."""

from collections.abc import Callable, Sequence

from pgsluice.commands import Answer, CommandState, Outcome, Request
from pgsluice.loads import Loaded
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.outbox import Outbox


class Requests:
    """The requests of one session. Whatever changes them takes place in a pause of the session's work."""

    def __init__(self, outbox: Outbox, begun: Begun, state: CommandState, wake: Callable[[], None]) -> None:
        """``wake``: have the session look whether its cut is due."""
        self.state = state
        self._outbox = outbox
        self._begun = begun
        self._wake = wake

    def of(self, name: tuple[str, str]) -> Request | None:
        """Return the request to load a table, if there is one."""
        return self.state.of(name)

    def where(self, name: tuple[str, str]) -> str:
        """Return which of the table's rows are asked for; empty: all."""
        request = self.state.of(name)
        return "" if request is None else request.where

    def become(self, state: CommandState, answers: Sequence[Answer] = (), loaded: Sequence[Loaded] = ()) -> None:
        """Let commands have left this behind, from the open cut on."""
        self.state = state
        self._outbox.note_commands(state, answers, self._begun.all(), loaded)
        self._wake()

    def note(self, name: tuple[str, str], detail: str) -> None:
        """Tell whoever has asked for the table why it waits."""
        request = self.state.of(name)
        if request is not None:
            self.become(self.state, [request.answer("waiting", detail)])

    def end(self, name: tuple[str, str], outcome: Outcome, detail: str = "", rows: int = 0) -> None:
        """Tell whoever has asked for the table what has become of it: the request ends."""
        request = self.state.of(name)
        if request is not None:
            self.become(self.state.without(name), [request.answer(outcome, detail, rows)])
