"""The output of ``pgsluice snapshot`` about commands and loads. The topics are scripted."""

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pgsluice.app import snapshot_cli as module
from pgsluice.app.snapshot_cli import follow, new_command, status
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import Answer, Command, CommandState, Request
from pgsluice.errors import CommandRefused, SinkUnavailable, UnavailableError
from pgsluice.kafka.commands import CommandClient
from pgsluice.loads import Load, Loaded

CHECKPOINT = Checkpoint("shop", "s", "7001", 1, 3, 4, 100)
COMMAND = Command("7", "start", int((time.time() + 86_400) * 1000), ("public.*",))
ACCEPTED = Answer("7", "accepted", tables=("public.a", "public.b"))
LOADED = Answer("7", "loaded", tables=("public.a",), rows=3), Answer("7", "loaded", tables=("public.b",), rows=4)


class Client(CommandClient):
    """A client that receives ``answers``, one after the other. None means that no answer came in time."""

    def __init__(self, *answers: Answer | None, rows: Sequence[int] = ()) -> None:
        self._scripted = list(answers)
        self._rows = list(rows)
        self.finished: list[Loaded] = []
        self.last: Checkpoint | None = CHECKPOINT
        self.unavailable = False

    def answer(self, identifier: str, timeout_s: float) -> Answer | None:
        assert (identifier, timeout_s) == ("7", module.POLL_S)
        if not self._scripted:
            raise KeyboardInterrupt
        return self._scripted.pop(0)

    def checkpoint(self) -> Checkpoint | None:
        if self.unavailable:
            raise SinkUnavailable("Kafka does not answer.")
        if not self._rows or self.last is None:
            return self.last
        load = Load("x", "public", "a", 7, "shape", rows=self._rows.pop(0))
        return replace(self.last, loads=(load, Load("y", "public", "other", 8, "shape")))

    def loaded(self) -> list[Loaded]:
        return self.finished


def test_a_pause_of_the_whole_pipeline_is_shown_first() -> None:
    client = Client()
    client.last = replace(CHECKPOINT, commands=CommandState(is_pipeline_paused=True))
    assert status(client) == ["the pipeline is paused, until `pgsluice resume`", "loads are not paused"]


class TestFollowing:
    def test_a_command_that_was_done_is_reported(self) -> None:
        said: list[str] = []
        assert follow(Client(None, Answer("7", "done", "1 cancelled")), COMMAND, said.append) == 0
        assert follow(Client(Answer("7", "done")), COMMAND, said.append) == 0
        assert said == ["1 cancelled", "done"]

    def test_a_refusal_is_reported_with_its_reason(self) -> None:
        with pytest.raises(CommandRefused, match="No published table"):
            follow(Client(Answer("7", "refused", "No published table.")), COMMAND, str)

    def test_loads_are_followed_to_their_end(self) -> None:
        said: list[str] = []
        waiting = Answer("7", "waiting", "It is locked.", ("public.a",))
        client = Client(ACCEPTED, waiting, None, ACCEPTED, *LOADED)
        assert follow(client, COMMAND, said.append) == 0
        assert said == [
            "2 tables will be loaded.",
            "public.a: It is locked. (it will be tried again)",
            "public.a: loaded, 3 rows",
            "public.b: loaded, 4 rows",
        ]

    def test_a_table_whose_load_was_cancelled_is_reported(self) -> None:
        said: list[str] = []
        ended = Answer("7", "ended", "It was cancelled.", ("public.a",))
        with pytest.raises(CommandRefused, match="1 of 2 tables"):
            follow(Client(replace(ACCEPTED, detail="Loads are paused."), ended, LOADED[1]), COMMAND, said.append)
        assert said[0] == "2 tables will be loaded. Loads are paused."
        assert said[1] == "public.a: It was cancelled. (its load has ended)"

    def test_progress_is_shown_now_and_then(self, monkeypatch: pytest.MonkeyPatch) -> None:
        moments = iter((0.0, 1.0, 6.0, 12.0, 13.0))
        monkeypatch.setattr(time, "monotonic", lambda: next(moments))
        said: list[str] = []
        follow(Client(ACCEPTED, None, None, None, *LOADED, rows=[60, 120]), COMMAND, said.append)
        assert said[1:3] == ["public.a: 60 rows, 10 rows/s", "public.a: 120 rows, 10 rows/s"]

    def test_before_the_first_checkpoint_nothing_is_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "PROGRESS_S", 0.0)
        client, said = Client(ACCEPTED, None, *LOADED), list[str]()
        client.last = None
        assert follow(client, COMMAND, said.append) == 0
        assert len(said) == 3

    def test_the_load_is_followed_even_if_its_progress_is_not_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "PROGRESS_S", 0.0)
        client, said = Client(ACCEPTED, None, *LOADED), list[str]()
        client.unavailable = True
        assert follow(client, COMMAND, said.append) == 0
        assert said[1] == "The progress is not known at present: Kafka does not answer."

    def test_an_interruption_says_that_the_load_goes_on(self) -> None:
        said: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            follow(Client(ACCEPTED), COMMAND, said.append)
        assert said[-1].startswith("The load continues.")

    def test_a_missing_answer_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "LATE_S", -2 * 86_400.0)
        with pytest.raises(UnavailableError, match="No pipeline has answered"):
            follow(Client(), COMMAND, str)


class TestStatus:
    def test_every_table_has_a_line(self) -> None:
        client = Client(rows=[5])
        client.last = replace(CHECKPOINT, commands=CommandState(requests=(Request("7", "public", "wanted"),)))
        client.finished = [
            Loaded("x", "public", "done", 1, 9, 3),
            Loaded("y", "public", "c", 2, 1, 3, state="cancelled"),
        ]
        assert status(client) == [
            "loads are not paused",
            "public.done    loaded          9 rows",
            "public.c       cancelled       1 rows",
            "public.wanted  waiting         0 rows",
            "public.a       loading         5 rows",
            "public.other   loading         0 rows",
        ]

    def test_stale_tables_are_shown_as_stale_even_while_they_are_loaded_again(self) -> None:
        client = Client(rows=[5])
        client.finished = [
            Loaded("x", "public", "a", 1, 9, 3, state="stale"),
            Loaded("y", "public", "b", 2, 1, 3, state="stale"),
        ]
        assert status(client)[1:] == [
            "public.a      stale, loading  5 rows",
            "public.b      stale           1 rows",
            "public.other  loading         0 rows",
        ]

    def test_paused_loads_are_shown(self) -> None:
        client = Client()
        client.last = replace(CHECKPOINT, commands=CommandState(is_paused=True))
        assert status(client) == ["loads are paused"]

    def test_before_the_first_start_there_is_no_checkpoint(self) -> None:
        client = Client()
        client.last = None
        with pytest.raises(UnavailableError, match="no checkpoint"):
            status(client)


def test_a_command_expires() -> None:
    command = new_command("start", ("public.a",), "n > 1")
    assert (command.verb, command.tables, command.where) == ("start", ("public.a",), "n > 1")
    assert command.expires_ms > time.time() * 1000
    assert command.id != new_command("pause", (), "").id
