"""Builds the spark-submit command that runs a command of ``pgsluice-spark`` on a cluster. Used by :mod:`.commands`.

``tests/unit/pgsluice_spark/test_cli.py`` covers this module.

https://spark.apache.org/docs/latest/submitting-applications.html
"""

import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyspark
from pyspark.find_spark_home import _find_spark_home

from pgsluice_spark.config import Config
from pgsluice_spark.jars import packages

APPLICATION: Final = "pgsluice_spark_application.py"
LIBRARY: Final = "pgsluice_spark.zip"
PROPERTIES: Final = "pgsluice_spark.conf"

_SCRIPT: Final = "import sys\n\nfrom pgsluice_spark.cli import main\n\nsys.exit(main())\n"
_KAFKA_JAR: Final = "spark-sql-kafka-0-10_*.jar"


def spark_home() -> Path:
    """Return the directory of the Spark that spark-submit and sessions use: $SPARK_HOME, or PySpark's directory."""
    return Path(_find_spark_home())


def jar_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the setting that names the packages, or nothing if ``settings`` or the installation has the jars."""
    if {"spark.jars", "spark.jars.packages"} & settings.keys() or any((spark_home() / "jars").glob(_KAFKA_JAR)):
        return {}
    return {"spark.jars.packages": ",".join(packages(pyspark.__version__))}


def submitted(config: Config, settings: Mapping[str, str], words: Sequence[str]) -> int:
    """Run ``words``, which are a command and its options, with spark-submit. Return the exit code."""
    with tempfile.TemporaryDirectory(prefix="pgsluice_spark_") as directory:
        line = prepared(config, settings, words, Path(directory))
        return subprocess.run(line, check=False).returncode  # noqa: S603 - the user's own command


def prepared(config: Config, settings: Mapping[str, str], words: Sequence[str], directory: Path) -> list[str]:
    """Write the files to submit into ``directory``, and return the command line that submits them.

    ``settings`` are the settings of Spark. They are written to a file, because other users of the machine can see the
    arguments of a command. In deploy mode ``cluster``, the driver runs on another machine, and spark-submit copies the
    TOML file into the driver's working directory.
    """
    is_cluster = settings.get("spark.submit.deployMode") == "cluster"
    own = {"spark.app.name": f"pgsluice-spark {words[0]} {config.get('pipeline.prefix')}"}
    if not is_cluster:
        own["spark.pyspark.driver.python"] = sys.executable
    properties = {**own, **settings}
    _write_private(
        directory / PROPERTIES, "".join(f"{_escaped(name)}={_escaped(properties[name])}\n" for name in properties)
    )
    (directory / APPLICATION).write_text(_SCRIPT)
    _pack(directory / LIBRARY)
    file = Path(config.file).absolute()
    return [
        str(spark_home() / "bin" / "spark-submit"),
        *("--properties-file", str(directory / PROPERTIES), "--load-spark-defaults"),
        *("--py-files", str(directory / LIBRARY)),
        *("--files", str(file)),
        str(directory / APPLICATION),
        *words,
        *("-c", file.name if is_cluster else str(file)),
    ]


def shown(line: Sequence[str]) -> str:
    """Return a command line, quoted for a shell."""
    return shlex.join(line)


def _write_private(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8")


def _escaped(text: str) -> str:
    """Return a text, escaped for ``java.util.Properties``."""
    return re.sub(r"[\\=:#! \n\r\t]", lambda found: _ESCAPES.get(found[0], f"\\{found[0]}"), text)


_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _pack(file: Path) -> None:
    """Write this package as an archive that Python imports from."""
    package = Path(__file__).parent
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(package.rglob("*.py")):
            archive.write(source, Path(package.name) / source.relative_to(package))
