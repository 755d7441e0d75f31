"""pgsluice_spark.cli: errors before Spark starts. tests/spark/test_audit.py runs commands on real servers."""

from pathlib import Path

import pyspark
import pytest

from pgsluice_spark import Iceberg, Maintenance
from pgsluice_spark.cli import _maintenance, _target, main
from pgsluice_spark.config import read
from pgsluice_spark.jars import packages
from pgsluice_spark.submit import PROPERTIES

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
        (FILE.replace(PATH, f'{PATH}\nformat = "csv"'), "target.format is delta or parquet, and belongs to a path"),
        (f'{FILE}[maintenance]\nkeep = "7 moons"', "maintenance: '7 moons' is not a duration such as '6 hours'"),
        (f"{FILE}[maintenance]\ncompact = 1", "maintenance.compact must be true or false"),
    ],
)
def test_files_that_are_wrong(text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mirror.toml"
    file.write_text(text)
    assert main(["mirror", "-c", str(file)]) == 78
    assert f"pgsluice-spark: {file}" in (error := capsys.readouterr().err)
    assert sentence in error


def test_a_command_line_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lag", "-c", str(tmp_path / "none.toml")]) == 78
    assert "none.toml cannot be read: No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["mirror"])


def test_an_iceberg_target_that_is_submitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its catalog is an Iceberg catalog, at the place that the file gives. Delta is not needed."""
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


def test_the_packages_of_this_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jars"]) == 0
    assert capsys.readouterr().out == f"{','.join(packages(pyspark.__version__))}\n"
