"""Tests that generated files are current, and that the code follows rules that no linter checks."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsluice.avro import type_table
from pgsluice.config import reference

ROOT = Path(__file__).parents[2]
DIRECTORIES = ("src", "tests", "sandbox", "bench", "docs", "contract", "deploy", "helm")
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 450
TYPES_MARK = "<!-- printed by `pgsluice schema types`; a test compares it. -->\n\n"
REFERENCE_MARK = "printed by `pgsluice config reference`; a test compares it. -->\n\n"

UNWANTED = {
    "a path of one machine": r"(?<![\w.~/:-])/(?:root|work|home)/",
    "an address of a package registry": r"pypi[.]org|python[h]osted|repo[\d.]*maven|art[i]factory",
    "an unfinished place": r"\b(?:TO[D]O|FIX[M]E|XX[X])\b",
    "a number that only a tracker explains": r"(?i)\b(?:issue|ticket|pull request|pr) ?#\d",
}


def files(*patterns: str) -> list[Path]:
    inside = (path for name in DIRECTORIES for pattern in patterns for path in (ROOT / name).rglob(pattern))
    # In a worktree, .git is a file that contains the path of the actual directory.
    top = (path for pattern in patterns for path in ROOT.glob(pattern) if path.name != ".git")
    return sorted(path for path in {*inside, *top} if path.is_file() and "__pycache__" not in path.parts)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{relative(path)}:{function.lineno} {function.name}: {lines_of(function)} lines"
        for path in files("*.py")
        for function in functions(path)
        if lines_of(function) > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_every_command_of_make_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    rules = set(re.findall(r"^([a-z][a-z-]*):(?! ?=)", makefile, re.MULTILINE))
    assert set(phony.split()) == rules
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    code = [found for page in pages for found in re.findall(r"```.*?```|`[^`\n]+`", page.read_text(), re.DOTALL)]
    named = {found for one in code for found in re.findall(r"(?:`|^|&& )make ([a-z][a-z-]*)", one, re.MULTILINE)}
    assert named - rules == set()


def test_every_module_says_what_it_holds() -> None:
    modules = [path for path in files("*.py") if path.is_relative_to(ROOT / "src")]
    assert modules
    assert [relative(path) for path in modules if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_modules_are_short() -> None:
    modules = [path for path in files("*.py", "*.pyx") if path.is_relative_to(ROOT / "src")]
    assert [relative(path) for path in modules if len(path.read_text().splitlines()) > MODULE_LINES_MAX] == []


def is_covered(module: Path) -> bool:
    """Return whether a test file has the module's name, or the module's docstring names a test file."""
    tests, name = ROOT / "tests", module.stem
    _, *packages = module.parent.relative_to(ROOT / "src").parts
    if module.is_relative_to(ROOT / "src/pgsluice_spark"):
        own = [tests / "unit/pgsluice_spark" / f"test_{name}.py", tests / "spark" / f"test_{name}.py"]
    else:
        own = [
            tests.joinpath("unit", *packages, f"test_{name}.py"),
            tests / "integration" / f"test_{'_'.join([*packages, name])}.py",
        ]
    named = re.findall(r"``(tests/[\w/]+\.py)``", ast.get_docstring(ast.parse(module.read_text())) or "")
    return any(path.exists() for path in (*own, *(ROOT / path for path in named)))


def test_every_module_has_a_test_file() -> None:
    """Look for a test file of each module.

    If a module has no test file, write one, or add this sentence to the module's docstring: ``tests/.../test_x.py``
    covers this module.
    """
    modules = [path for path in files("*.py") if path.is_relative_to(ROOT / "src") and "__" not in path.name]
    assert [relative(path) for path in modules if not is_covered(path)] == []


def test_the_example_configuration_is_current() -> None:
    """Compare the file with the settings. If they differ, run ``pgsluice config example > config.example.toml``."""
    assert (ROOT / "config.example.toml").read_text() == reference.example()


def test_the_reference_of_settings_is_current() -> None:
    """Compare the tables. If they differ, put the output of ``pgsluice config reference`` after the mark."""
    prose, mark, tables = (ROOT / "docs/configuration.md").read_text().partition(REFERENCE_MARK)
    assert prose
    assert mark
    assert tables == reference.markdown()


def test_the_table_of_types_is_current() -> None:
    """Compare the tables. If they differ, put the output of ``pgsluice schema types`` after the mark."""
    prose, mark, tables = (ROOT / "docs/types.md").read_text().partition(TYPES_MARK)
    assert prose
    assert mark
    assert tables == type_table.markdown()


def texts() -> Iterator[tuple[Path, str]]:
    for path in files("*"):
        try:
            yield path, path.read_text()
        except UnicodeDecodeError:
            continue


@pytest.mark.parametrize("what", UNWANTED)
def test_files_contain_nothing_that_only_one_machine_or_tracker_knows(what: str) -> None:
    pattern = re.compile(UNWANTED[what])
    found = [f"{relative(path)}: {match[0]}" for path, text in texts() for match in pattern.finditer(text)]
    assert found == []


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub creates for the headings of a page."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        shown = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.append(anchor if anchor not in found else f"{anchor}-{found.count(anchor)}")
    return set(found)


@pytest.mark.parametrize("path", files("*.md"), ids=relative)
def test_links_lead_somewhere(path: Path) -> None:
    lost = []
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", path.read_text()):
        page = path.parent / target if target else path
        if not page.exists() or (anchor and anchor not in anchors(page)):
            lost.append(f"{target}#{anchor}")
    assert lost == []
