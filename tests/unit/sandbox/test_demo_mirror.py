import tomllib
from pathlib import Path

from sandbox.demo.mirror import configuration, spark_settings


def test_the_file_is_toml() -> None:
    text = configuration(Path("/demo"), "shop", "kafka:1", "http://registry", "host=db user=reader")
    found = tomllib.loads(text + spark_settings(Path("/demo"), [Path("/a.jar"), Path("/b.jar")]))

    assert found["target"]["path"] == "/demo/lake"
    assert found["postgres"]["dsn"] == "host=db user=reader"
    assert found["spark"]["spark.jars"] == "/a.jar,/b.jar"
    assert all(isinstance(value, str) for value in found["spark"].values())
