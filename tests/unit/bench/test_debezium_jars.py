import re
from xml.etree import ElementTree as ET

from bench.debezium import jars


def test_every_version_is_pinned() -> None:
    versions = [one.text or "" for one in ET.parse(jars.POM).iterfind(".//{*}dependency/{*}version")]  # noqa: S314 - our own file
    assert versions
    assert [version for version in versions if not re.fullmatch(r"[0-9][0-9.]*Final", version)] == []
    pins = [line for line in jars.CONVERTER.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"\w+==[0-9.]+ --hash=sha256:[0-9a-f]{64}", pin) for pin in pins)
    assert pins
