import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from sandbox import distribution

METADATA = """\
Metadata-Version: 2.4
Name: pgsluice
Version: 0.1.0
License-Expression: Apache-2.0

What it is.
"""
GOOD = {
    "pgsluice/py.typed": "",
    "pgsluice_spark/py.typed": "",
    **{f"pgsluice/native/{name}.{suffix}": "" for name in distribution.COMPILED for suffix in ("pyx", "abi3.so")},
    "pgsluice-0.1.0.dist-info/METADATA": METADATA,
    "pgsluice-0.1.0.dist-info/licenses/LICENSE": "",
}
NAME = "pgsluice-0.1.0-cp311-cp311-manylinux2014_x86_64.whl"


def wheel(directory: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(directory / NAME, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return directory / NAME


def test_a_correct_wheel_has_no_errors(tmp_path: Path) -> None:
    assert distribution.problems(wheel(tmp_path, GOOD)) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"tests/test_a.py": ""}, "tests/test_a.py does not belong in this archive"),
        ({"pgsluice/native/rows.c": ""}, "pgsluice/native/rows.c does not belong in this archive"),
        ({"pgsluice/a.py": f"{distribution.ROOT}/src"}, f"pgsluice/a.py has the path {distribution.ROOT}"),
        ({"pgsluice-0.1.0.dist-info/METADATA": METADATA.replace("0.1.0", "0.2.0")}, "that of pgsluice 0.2.0"),
        (
            {"pgsluice-0.1.0.dist-info/METADATA": METADATA.replace("What it is.\n", "")},
            "the licence or the description",
        ),
        ({"pgsluice-0.1.0.dist-info/METADATA": METADATA.replace("Apache-2.0", "Apache!")}, "metadata: "),
    ],
)
def test_errors_in_a_wheel_are_found(tmp_path: Path, change: dict[str, str], found: str) -> None:
    assert any(found in problem for problem in distribution.problems(wheel(tmp_path, GOOD | change)))


@pytest.mark.parametrize("name", [name for name in GOOD if not name.endswith("METADATA")])
def test_missing_files_of_a_wheel_are_found(tmp_path: Path, name: str) -> None:
    (problem,) = distribution.problems(wheel(tmp_path, {one: text for one, text in GOOD.items() if one != name}))
    assert problem.endswith("is missing")


def test_two_source_distributions_of_one_commit_are_equal_and_correct(tmp_path: Path) -> None:
    targets = [tmp_path / name for name in "ab"]
    built = []
    for target in targets:
        target.mkdir()
        built.append(distribution.build_sdist(Path(sys.executable), target, "1700000000"))
    assert distribution.problems(built[0]) == []
    first, second = (path.read_bytes() for path in built)
    assert first == second
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        assert {member.mtime for member in archive} == {1700000000}


def test_interpreters_are_found_for_the_versions_in_pyproject() -> None:
    found = dict(distribution.interpreters())
    assert "3.11" in found
    assert {version for version, python in found.items() if python is not None and python.version != version} == set()
