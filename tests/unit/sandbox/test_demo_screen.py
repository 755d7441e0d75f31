from pathlib import Path

import pytest

from sandbox.demo.screen import RED, WIDTH_MAX, WIDTH_MIN, Screen, fitted, shell


def test_steps_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.step("One", "A remark.")
    screen.step("Two")

    assert capsys.readouterr().out == "\n1. One\n   A remark.\n\n2. Two\n"


def test_text_is_indented(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().typed("SELECT 1;\n\nSELECT 2;")

    assert capsys.readouterr().out == "   SELECT 1;\n\n   SELECT 2;\n"


def test_without_a_terminal_there_are_no_colours() -> None:
    assert Screen().painted("text", RED) == "text"


@pytest.mark.parametrize(("no_colour", "painted"), [("", "\033[31mtext\033[0m"), ("1", "text")])
def test_colours_are_used_at_a_terminal_unless_no_color_is_set(
    no_colour: str, painted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", no_colour)

    assert Screen().painted("text", RED) == painted


@pytest.mark.parametrize(("columns", "width"), [(20, WIDTH_MIN - 3), (120, 117), (1000, WIDTH_MAX - 3)])
def test_the_width_of_the_terminal_is_limited(columns: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    assert Screen().width == width


def test_the_progress_of_an_action_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen().working("starting"):
        assert capsys.readouterr().out == "   starting ... "

    assert capsys.readouterr().out == "done\n"


def test_a_failed_action_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError), Screen().working("starting"):  # noqa: PT011 - any error
        raise OSError

    assert capsys.readouterr().out == "   starting ... \n"


@pytest.mark.parametrize(("text", "shown"), [("", "     "), ("abc", "abc  "), ("abcde", "abcde"), ("abcdef", "ab...")])
def test_long_texts_are_shortened(text: str, shown: str) -> None:
    assert fitted(text, 5) == shown


def test_commands_are_shown_as_they_are_typed() -> None:
    words = ["env", "PYTHON=/repo/.venv/bin/python", "/repo/.venv/bin/psql", "host=a port=1"]

    assert shell(words, Path("/repo"), 100) == "$ env PYTHON=.venv/bin/python .venv/bin/psql 'host=a port=1'"


def test_a_long_command_goes_on_in_the_next_line() -> None:
    assert shell(["submit", "job.py", "--option", "value"], Path("/repo"), 20) == (
        "$ submit job.py \\\n    --option value"
    )
