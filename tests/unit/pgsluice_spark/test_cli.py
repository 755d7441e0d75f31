"""Unit tests of pgsluice_spark.cli: errors before Spark starts. tests/spark/test_cli.py runs real commands."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from pgsluice_spark import Iceberg, Maintenance
from pgsluice_spark.cli import main
from pgsluice_spark.command_line import HELP, parser
from pgsluice_spark.commands import _maintenance, _target
from pgsluice_spark.config import read
from pgsluice_spark.errors import WITHOUT_PYSPARK
from pgsluice_spark.jars import packages
from pgsluice_spark.submit import PROPERTIES

SOURCE = Path(__file__).parents[3] / "src"
PATH = 'path = "/lake/shop"'
FILE = """
[pipeline]
prefix = "shop"
bootstrap_servers = "kafka:9092"
[pipeline.kafka_options]
"kafka.security.protocol" = "SSL"
[registry]
url = "http://pgsluice:8080"
[target]
path = "/lake/shop"
[spark]
"spark.ui.enabled" = false
"spark.sql.shuffle.partitions" = 4
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[pipeline", "is not TOML"),
        ("[pipe]", "pipe is unknown. The file has the tables pipeline, registry"),
        ("target = 1", "target must be a table"),
        ("[target]\npth = 'x'", "target.pth is unknown. [target] has path, format, catalog, namespace, tables"),
        ("[target]\ntables = [1]", "target.tables must be an array of strings"),
        ("[query]\nmax_events = true", "query.max_events must be a number"),
        ("[pipeline]\nkafka_options = {a = 1}", "pipeline.kafka_options must be a table"),
        ("[pipeline]\nprefix = 'x'", "pipeline.bootstrap_servers is missing"),
        (FILE.replace("url =", "username ="), "registry needs one of url and topic"),
        (FILE.replace("path =", "catalog ="), "target needs either path, for Delta tables, or both catalog and names"),
        (FILE.replace("[target]", '[target]\ncatalog = "lake"\nnamespace = "shop"'), "target needs either path, for"),
        (FILE.replace(PATH, f'{PATH}\nformat = "csv"'), "target.format must be delta or parquet, and needs target.pa"),
        (f'{FILE}[maintenance]\nkeep = "7 moons"', "maintenance: '7 moons' is not a duration such as '6 hours'"),
        (f"{FILE}[maintenance]\ncompact = 1", "maintenance.compact must be true or false"),
    ],
)
def test_wrong_files_are_refused(text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mirror.toml"
    file.write_text(text)
    assert main(["mirror", "-c", str(file)]) == 78
    assert f"pgsluice-spark: {file}" in (error := capsys.readouterr().err)
    assert sentence in error


def test_a_wrong_command_line_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lag", "-c", str(tmp_path / "none.toml")]) == 78
    assert "none.toml cannot be read: No such file" in capsys.readouterr().err
    for words in (["mirror"], ["view", "-c", "x", "--at", "2026-01-01"], ["view", "-c", "x", "--at", "x/y"]):
        with pytest.raises(SystemExit, match="2"):
            main(words)
    assert "argument --at: 'x/y' is neither a cut, such as 214, nor an LSN" in capsys.readouterr().err
    moments = [parser().parse_args(["view", "-c", "x", "--at", text]).at for text in ("214", "0/16B3748")]
    assert moments == [214, "0/16B3748"]


def test_an_iceberg_target_is_submitted_with_its_catalog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Submit a mirror into Iceberg. The catalog has the settings in the file, and Delta is not configured."""
    file = tmp_path / "mirror.toml"
    target = 'catalog = "lake"\nnamespace = "shop.mirror"\n[maintenance]\nkeep = "30 days"'
    file.write_text(f'{FILE.replace(PATH, target)}"spark.sql.catalog.lake.type" = "rest"\n')
    assert main(["submit", "-c", str(file), "--write", str(tmp_path), "mirror"]) == 0
    assert "spark-submit" in capsys.readouterr().out
    settings = (tmp_path / PROPERTIES).read_text().splitlines()
    assert "spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog" in settings
    assert "spark.sql.catalog.lake.type=rest" in settings
    assert not any("delta.sql" in line for line in settings)
    assert _target(read(str(file))) == Iceberg("lake.shop.mirror")
    assert _maintenance(read(str(file))) == Maintenance(every="6 hours", keep="30 days", compact=True)


def test_the_packages_fit_this_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jars"]) == 0
    assert capsys.readouterr().out == f"{','.join(packages(pyspark.__version__))}\n"


def without_packages(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with pgsluice_spark, but without installed packages such as PySpark."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    line = [sys.executable, "-S", *words]  # -S leaves out site-packages
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [[], *([name] for name in HELP)])
def test_help_is_printed_without_pyspark(words: list[str]) -> None:
    done = without_packages("-m", "pgsluice_spark", *words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {' '.join(['pgsluice-spark', *words])} [-h]")


@pytest.mark.parametrize("words", [["jars"], ["mirror", "-c", "mirror.toml"]])
def test_commands_report_that_pyspark_is_missing(words: list[str]) -> None:
    done = without_packages("-m", "pgsluice_spark", *words)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == f"pgsluice-spark: {words[0]} needs PySpark. {WITHOUT_PYSPARK}\n"


def test_imports_report_that_pyspark_is_missing() -> None:
    done = without_packages("-c", "from pgsluice_spark import Delta")
    assert done.stderr.endswith(f"ImportError: pgsluice_spark.Delta cannot be imported. {WITHOUT_PYSPARK}\n")
    assert without_packages("-c", "import pgsluice_spark; assert not hasattr(pgsluice_spark, 'x')").returncode == 0
