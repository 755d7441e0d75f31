import re
from pathlib import Path

import pytest

from sandbox.errors import ServerError
from sandbox.java import build_id, class_path, run_program

ECHO = """
public class Echo {
    public static void main(String[] arguments) throws Exception {
        System.out.print(arguments[0] + new String(System.in.readAllBytes()));
    }
}
"""


def test_a_class_path_names_all_jars_of_a_directory() -> None:
    assert class_path(Path("/libraries")) == "/libraries/*"


def test_each_build_of_java_has_its_own_identifier() -> None:
    assert re.fullmatch("[0-9a-f]{16}", build_id())
    assert build_id() == build_id()


def test_a_program_gets_arguments_and_input(tmp_path: Path) -> None:
    source = tmp_path / "Echo.java"
    source.write_text(ECHO)
    assert run_program(source, tmp_path, ["an argument, "], stdin="and input") == "an argument, and input"


def test_a_program_that_does_not_compile_is_reported(tmp_path: Path) -> None:
    source = tmp_path / "Wrong.java"
    source.write_text("public class Wrong { int missing() { } }")
    with pytest.raises(ServerError, match=r"(?s)Wrong.java failed:.*missing return statement"):
        run_program(source, tmp_path)
