"""Unit tests of pgsluice_spark.jars. The packages that it names have to be those with which tests/spark runs."""

from xml.etree import ElementTree as ET

import pytest

from pgsluice_spark.config import ConfigError
from pgsluice_spark.jars import check_iceberg, packages
from sandbox.artifacts import POM
from sandbox.spark import FLOOR, NEWEST


@pytest.mark.parametrize("version", [FLOOR, NEWEST])
def test_the_packages_are_those_that_are_tested(version: str) -> None:
    profiles = ET.parse(POM).iterfind(".//{*}profile")  # noqa: S314 - our own file
    profile = next(one for one in profiles if one.findtext("{*}id") == f"spark-{version}")
    pinned = profile.iterfind("{*}dependencies/{*}dependency")
    names = ("groupId", "artifactId", "version")
    assert packages(version) == [":".join(one.findtext(f"{{*}}{name}") or "" for name in names) for one in pinned]


def test_an_unsupported_spark_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"PySpark 3\.5\.0 is not supported, only 4\.0 and 4\.1"):
        packages("3.5.0")


def test_iceberg_needs_a_newer_spark() -> None:
    check_iceberg(NEWEST)
    with pytest.raises(ConfigError, match=r"No package of Iceberg was tested with PySpark 4\.0\.0"):
        check_iceberg(FLOOR)
