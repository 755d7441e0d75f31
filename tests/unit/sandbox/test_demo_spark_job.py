from pathlib import Path

from sandbox.demo.spark_job import properties


def test_properties_are_lines_of_name_and_value() -> None:
    lines = properties(Path("/demo"), [Path("/a.jar"), Path("/b.jar")]).splitlines()

    assert "spark.jars /a.jar,/b.jar" in lines
    assert "spark.local.dir /demo/spark" in lines
    assert all(line.startswith("spark.") and len(line.split()) == 2 for line in lines)
