"""Commands and answers as records, and the state that commands leave in a checkpoint."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from pgsluice.commands import (
    COMMAND_BYTES_MAX,
    ID_MAX,
    REQUESTS_BYTES_MAX,
    Answer,
    Command,
    CommandState,
    Request,
    read_answer,
    read_command,
    read_command_state,
)

COMMAND = Command("5f3a", "start", 1_700_000_000_000, ("public.orders", 'public."a.b"'), "id > 7")
ANSWER = Answer("5f3a", "loaded", "", ("public.orders",), 1000)
REQUEST = Request("5f3a", "public", "orders", "id > 7")
STATE = CommandState("topic", 12, is_paused=True, requests=(REQUEST, Request("5f3b", "public", "customers")))


def as_json(value: object) -> Any:  # noqa: ANN401 - any JSON
    """Return ``value`` after it was written to a Kafka record and read back."""
    return json.loads(json.dumps(value))


def record(**changes: object) -> bytes:
    return json.dumps({"version": 1, "command": {**asdict(COMMAND), **changes}}).encode()


class TestARecord:
    def test_a_record_holds_a_command(self) -> None:
        assert read_command(COMMAND.to_json()) == COMMAND
        assert read_answer(COMMAND.to_json()) is None

    def test_a_record_holds_an_answer(self) -> None:
        assert read_answer(ANSWER.to_json()) == ANSWER
        assert read_command(ANSWER.to_json()) is None
        assert ANSWER.key == b"5f3a"

    def test_a_command_without_tables_and_condition_is_read(self) -> None:
        found = json.dumps({"version": 1, "command": {"id": "x", "verb": "pause", "expires_ms": 1}}).encode()
        assert read_command(found) == Command("x", "pause", 1)

    @pytest.mark.parametrize(
        ("value", "complaint"),
        [
            (None, "it has no value"),
            (bytes(COMMAND_BYTES_MAX + 1), f"it is larger than {COMMAND_BYTES_MAX} bytes"),
            (b"", "Expecting value"),
            (b"\xff", "can't decode"),
            (b"[]", "it is not a JSON object of version 1"),
            (b'{"version": 1}', "it is not a JSON object of version 1"),
            (b'{"version": 2, "command": {}}', "it is not a JSON object of version 1"),
            (b'{"version": 1, "command": []}', "it is neither a command nor an answer"),
            (b'{"version": 1, "order": {}}', "it is neither a command nor an answer"),
            (b'{"version": 1, "command": {}}', "'id' of a Command is missing"),
            (record(later=1), "a Command has fields that are not known"),
            (
                record(verb="drop"),
                "its verb is not one of start, cancel, pause, resume, pause_pipeline, resume_pipeline",
            ),
            (record(verb=["start"]), "'verb' has an invalid value"),
            (record(tables="public.orders"), "'tables' has an invalid value"),
            (record(expires_ms=-1), "'expires_ms' has an invalid value"),
            (record(id=""), f"its id does not consist of 1 to {ID_MAX} letters and digits"),
            (record(id="é"), f"its id does not consist of 1 to {ID_MAX} letters and digits"),
            (record(id="a\n"), f"its id does not consist of 1 to {ID_MAX} letters and digits"),
            (record(id="a" * (ID_MAX + 1)), f"its id does not consist of 1 to {ID_MAX} letters and digits"),
        ],
    )
    def test_records_of_other_programs_are_refused(self, value: bytes | None, complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            read_command(value)
        assert read_answer(value) is None

    @pytest.mark.parametrize("changes", [{"outcome": "forgotten"}, {"outcome": []}, {"rows": "1"}, {"later": 1}])
    def test_an_unknown_answer_is_ignored(self, changes: dict[str, object]) -> None:
        found = json.dumps({"version": 1, "answer": {**asdict(ANSWER), **changes}}).encode()
        assert read_answer(found) is None


class TestARequest:
    def test_a_request_is_named_by_its_table(self) -> None:
        assert REQUEST.name == ("public", "orders")

    def test_a_request_is_answered_under_the_id_of_its_command(self) -> None:
        assert replace(REQUEST, table="a.b").answer("ended", "gone") == Answer(
            "5f3a", "ended", "gone", ('public."a.b"',)
        )
        assert REQUEST.answer("loaded", rows=1000) == ANSWER


class TestWhatCommandsLeaveBehind:
    def test_the_state_is_read_from_a_checkpoint_as_it_was_written(self) -> None:
        assert read_command_state(as_json(asdict(STATE))) == STATE
        assert read_command_state(as_json(asdict(CommandState()))) == CommandState()

    def test_the_state_names_the_pause_of_the_pipeline_only_while_it_is_paused(self) -> None:
        assert STATE.to_fields().keys() == {"topic_id", "offset", "is_paused", "requests"}
        paused = replace(STATE, is_pipeline_paused=True)
        assert paused.to_fields()["is_pipeline_paused"] is True
        assert [read_command_state(as_json(one.to_fields())) for one in (STATE, paused)] == [STATE, paused]

    def test_the_state_is_empty_in_a_checkpoint_of_an_earlier_version(self) -> None:
        assert read_command_state({}) == CommandState()

    @pytest.mark.parametrize(
        ("found", "complaint"),
        [
            ([], "'commands' is not an object"),
            ({"requests": {}}, "'requests' is not an array"),
            ({"requests": [1]}, "a Request is not an object"),
            ({"requests": [{"command": "a", "schema": "b"}]}, "'table' of a Request is missing"),
            ({"is_paused": 1}, "'is_paused' has an invalid value"),
            ({"later": 1}, "a CommandState has fields that are not known"),
        ],
    )
    def test_a_damaged_state_is_refused(self, found: object, complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            read_command_state(found)

    def test_the_state_finds_requests_by_table(self) -> None:
        assert STATE.of(("public", "orders")) == REQUEST
        assert STATE.of(("public", "gone")) is None
        assert STATE.without(("public", "orders")).requests == STATE.requests[1:]

    def test_the_state_takes_further_requests(self) -> None:
        more = Request("5f3c", "public", "more")
        assert STATE.requesting((more,)) == replace(STATE, requests=(*STATE.requests, more))

    def test_requests_beyond_the_limit_of_a_checkpoint_are_refused(self) -> None:
        many = tuple(Request("5f3c", "public", f"t{number}") for number in range(REQUESTS_BYTES_MAX // 50))
        with pytest.raises(ValueError, match="too many tables are waiting to be loaded: 2 already"):
            STATE.requesting(many)
