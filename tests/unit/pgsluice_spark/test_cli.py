"""pgsluice_spark.cli: what ends before Spark starts. Commands on real servers are in tests/spark/test_audit.py."""

from pathlib import Path

import pyspark
import pytest

from pgsluice_spark.cli import main
from pgsluice_spark.jars import packages

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
        ("[target]\npth = 'x'", "target.pth is unknown. [target] has path, tables"),
        ("[target]\ntables = [1]", "target.tables must be an array of strings"),
        ("[query]\nmax_events = true", "query.max_events must be a number"),
        ("[pipeline]\nkafka_options = {a = 1}", "pipeline.kafka_options must be a table"),
        ("[pipeline]\nprefix = 'x'", "pipeline.bootstrap_servers is missing"),
        (FILE.replace("url =", "username ="), "registry needs one of url and topic"),
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


def test_the_packages_of_this_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jars"]) == 0
    assert capsys.readouterr().out == f"{','.join(packages(pyspark.__version__))}\n"
