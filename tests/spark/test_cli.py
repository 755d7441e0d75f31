"""``pgsluice-spark``: its file and its exit codes. The commands on real servers are in test_audit."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pyspark
import pytest

from pgsluice_spark.cli import main
from pgsluice_spark.config import ConfigError, read
from pgsluice_spark.jars import packages
from sandbox.artifacts import POM
from sandbox.spark import FLOOR, NEWEST

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


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mirror.toml"
    secret = tmp_path / "secret"
    secret.write_text("a b\n")
    file.write_text(f'{FILE}[postgres]\npassword_file = "{secret}"\n')
    config = read(str(file))
    assert config.get("pipeline.kafka_options") == {"kafka.security.protocol": "SSL"}
    assert config.spark == {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    assert (list(config.tables), config.find("query.trigger", "x")) == (["*"], "x")
    assert (config.secret("postgres.password_file"), config.secret("registry.password_file")) == ("a b", None)
    with pytest.raises(ConfigError, match=r"mirror\.toml: query\.checkpoint is missing"):
        config.get("query.checkpoint")
    secret.unlink()
    with pytest.raises(ConfigError, match=r"postgres\.password_file: .*secret cannot be read: No such file"):
        config.secret("postgres.password_file")


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


@pytest.mark.parametrize("version", [FLOOR, NEWEST])
def test_the_packages_are_those_that_are_tested(version: str) -> None:
    profiles = ET.parse(POM).iterfind(".//{*}profile")  # noqa: S314 - our own file
    profile = next(one for one in profiles if one.findtext("{*}id") == f"spark-{version}")
    pinned = profile.iterfind("{*}dependencies/{*}dependency")
    names = ("groupId", "artifactId", "version")
    assert packages(version) == [":".join(one.findtext(f"{{*}}{name}") or "" for name in names) for one in pinned]


def test_the_packages_of_this_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jars"]) == 0
    assert capsys.readouterr().out == f"{','.join(packages(pyspark.__version__))}\n"
    with pytest.raises(ConfigError, match=r"PySpark 3\.5\.0 is not supported, only 4\.0 and 4\.1"):
        packages("3.5.0")
