"""Unit tests of pgsluice.pgoutput.messages."""

import dataclasses
from typing import get_args

import pytest

from pgsluice.pgoutput import messages
from pgsluice.pgoutput.messages import UNCHANGED, BinaryValue, Unchanged


def test_unchanged_is_a_single_object_and_not_null() -> None:
    assert list(Unchanged) == [UNCHANGED]
    assert UNCHANGED is not None


def test_a_binary_value_equals_its_bytes_and_has_its_own_type() -> None:
    value = BinaryValue(b"\x00\x01")
    assert value == b"\x00\x01"
    assert type(value) is BinaryValue
    assert not isinstance(b"\x00\x01", BinaryValue)


@pytest.mark.parametrize("message", get_args(messages.Message), ids=lambda message: message.__name__)
def test_a_message_has_only_slots(message: type) -> None:
    assert dataclasses.is_dataclass(message)
    assert "__dict__" not in dir(message)
