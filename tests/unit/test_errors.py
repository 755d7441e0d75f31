"""Unit tests of pgsluice.errors."""

import re
from collections.abc import Iterator

import pytest

from pgsluice import errors
from pgsluice.errors import PgsluiceError, ProtocolError, RetryableError, StopError


def _tree(root: type[PgsluiceError]) -> Iterator[type[PgsluiceError]]:
    for one in root.__subclasses__():
        if one.__module__ == errors.__name__:  # a subclass in another module has the meaning of its base class
            yield one
            yield from _tree(one)


@pytest.mark.parametrize("error", list(_tree(PgsluiceError)), ids=lambda error: error.__name__)
def test_the_docstring_draws_every_error(error: type[PgsluiceError]) -> None:
    assert error.__name__ in str(errors.__doc__)


def test_the_docstring_draws_no_other_error() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", str(errors.__doc__)))
    assert drawn == {error.__name__ for error in _tree(PgsluiceError)}


def test_a_message_is_one_line_whatever_it_quotes() -> None:
    assert PgsluiceError("no\nway").lines == ("no\nway",)


@pytest.mark.parametrize("error", list(_tree(StopError)), ids=lambda error: error.__name__)
def test_the_docstring_draws_the_exit_code(error: type[StopError]) -> None:
    assert re.search(rf"{error.__name__} +{error.exit_code} ", str(errors.__doc__))


@pytest.mark.parametrize(
    "error", [error for error in _tree(PgsluiceError) if not error.__subclasses__()], ids=lambda e: e.__name__
)
def test_an_error_says_either_retry_or_stop(error: type[PgsluiceError]) -> None:
    assert issubclass(error, RetryableError) != issubclass(error, StopError)


def test_an_error_without_a_code_of_its_own_is_a_bug() -> None:
    assert PgsluiceError.exit_code == errors.EXIT_BUG == 70


def test_a_session_that_cannot_be_retried_any_more_ends_as_unavailable() -> None:
    assert errors.SourceUnavailable.exit_code == errors.SlotInUse.exit_code == 69
    assert errors.SinkUnavailable.exit_code == 69


def test_the_message_is_the_sentence_itself() -> None:
    assert str(ProtocolError("Begin ('B') at offset 1: expected ...")) == "Begin ('B') at offset 1: expected ..."
