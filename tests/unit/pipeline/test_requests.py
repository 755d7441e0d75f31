"""The effects of commands, and the answers to them. Both join the open cut."""

import pytest

from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import Answer, CommandState, Request
from pgsluice.loads import Load, Loaded
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.encoders import Encoders
from pgsluice.pipeline.outbox import Limits, Outbox
from pgsluice.pipeline.requests import Requests
from pgsluice.pipeline.vitals import Vitals
from pgsluice.progress import Progress
from tests.support.ends import FakeSink, World

NOTES, OTHERS = ("public", "notes"), ("public", "others")
REQUEST = Request("command", *NOTES, "n > 1")
STATE = CommandState("topic", 5, requests=(REQUEST, Request("another", *OTHERS)))
LOAD = Load("x", *NOTES, 7, "shape")
CHECKPOINT = Checkpoint("shop", "s", "7001", 1, 3, 4, 100, commands=STATE)


class Watched(Encoders):
    """Encoders that never report rows with missing values."""

    def __init__(self) -> None:
        pass

    def watch(self, oid: int, tell: object) -> None:
        pass


class Stage:
    """The requests of a session, without the rest of the session."""

    def __init__(self) -> None:
        self.woken = 0
        limits = Limits(1.0, 1 << 20, 1 << 20, 60.0)
        self.outbox = Outbox(FakeSink(World()), CHECKPOINT, Progress(100), limits, lambda *_: None, Vitals())
        self.requests = Requests(self.outbox, Begun(Watched(), 3, [LOAD], {}), STATE, self.wake)

    def wake(self) -> None:
        self.woken += 1

    @property
    def answers(self) -> list[Answer]:
        return list(self.outbox._open.answers)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_request_of_a_table_is_found(stage: Stage) -> None:
    assert stage.requests.of(NOTES) == REQUEST
    assert stage.requests.of(("public", "n")) is None
    assert stage.requests.where(NOTES) == "n > 1"
    assert stage.requests.where(OTHERS) == ""
    assert stage.requests.where(("public", "n")) == ""


def test_a_state_joins_the_open_cut_with_its_answers_and_the_loads(stage: Stage) -> None:
    state, answer, loaded = CommandState("topic", 6), Answer("7", "done"), Loaded("x", *NOTES, 7, 0, 3)
    stage.requests.become(state, [answer], [loaded])
    cut = stage.outbox._open
    assert stage.requests.state == cut.commands == state
    assert (stage.answers, cut.loads, cut.loaded) == ([answer], [LOAD], [loaded])
    assert not cut.opens_commands
    assert stage.woken == 1


def test_the_command_is_answered_with_the_reason_why_its_table_waits(stage: Stage) -> None:
    stage.requests.note(NOTES, "It is locked.")
    assert stage.answers == [Answer("command", "waiting", "It is locked.", ("public.notes",))]
    assert stage.requests.state == STATE


def test_the_command_is_answered_when_its_table_is_loaded(stage: Stage) -> None:
    stage.requests.end(NOTES, "loaded", rows=7)
    assert stage.answers == [Answer("command", "loaded", "", ("public.notes",), 7)]
    assert stage.requests.state.requests == STATE.requests[1:]


def test_without_a_request_there_is_no_answer(stage: Stage) -> None:
    stage.requests.note(("public", "n"), "It is locked.")
    stage.requests.end(("public", "n"), "ended")
    assert stage.answers == []
    assert stage.requests.state == STATE
    assert stage.woken == 0
