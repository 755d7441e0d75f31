"""Reads and writes small files in the file systems that Hadoop supports, such as HDFS, S3 or a local disk.

Used by :mod:`.delta`, :mod:`.delta_log` and :mod:`.parquet`.

``tests/spark/test_parquet.py`` covers this module.

https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-common/filesystem/filesystem.html
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from pgsluice_spark.errors import PipelineError

PART: Final = ".part"
"""The end of a file's name while it is being written."""


@dataclass(frozen=True, slots=True)
class Files:
    """Operations on files, in the file systems for which a Spark session is configured."""

    spark: SparkSession

    def absolute(self, path: str) -> str:
        """Return ``path``, or if it is relative, the absolute path to which Spark resolves it."""
        place, system = self._at(path)
        is_relative = place.toUri().getScheme() is None and not place.isAbsolute()
        return str(system.makeQualified(place).toString()) if is_relative else path

    def names(self, path: str) -> list[str]:
        """Return the names of a directory's entries, or an empty list if the directory does not exist."""
        place, system = self._at(path)
        return [one.getPath().getName() for one in system.listStatus(place)] if system.exists(place) else []

    def exists(self, path: str) -> bool:
        """Return whether there is a file."""
        place, system = self._at(path)
        return bool(system.exists(place))

    def modified_at(self, path: str) -> float:
        """Return the time at which a file was written, in seconds since 1970."""
        place, system = self._at(path)
        return float(system.getFileStatus(place).getModificationTime()) / 1000

    def lines(self, path: str) -> Iterator[str] | None:
        """Return the lines of a file, or None if the file does not exist. Each line is read only when it is needed."""
        place, system = self._at(path)
        return self._lines(system.open(place)) if system.exists(place) else None

    def _lines(self, stream: Any) -> Iterator[str]:  # noqa: ANN401 - an object of Java's
        try:
            lines = self._jvm.org.apache.commons.io.IOUtils.lineIterator(stream, "UTF-8")
            while lines.hasNext():
                yield lines.next()
        finally:
            stream.close()

    def json(self, path: str) -> dict[str, Any] | None:
        """Return the JSON object in a file, or None if the file does not exist."""
        lines = self.lines(path)
        found: dict[str, Any] | None = None if lines is None else json.loads("\n".join(lines))
        return found

    def write(self, path: str, text: str) -> None:
        """Write a new file. It gets its name only when it is complete."""
        place, system = self._at(path)
        part, _ = self._at(f"{path}{PART}")
        stream = system.create(part, True)  # noqa: FBT003 - a parameter of a Java method
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if not system.rename(part, place):
            system.delete(part, False)  # noqa: FBT003 - a parameter of a Java method
            raise PipelineError(
                f"{path} cannot be written, because the file system refuses to rename {part}. Without this file, the "
                "batch is not committed. Find out who else writes there, then start the query again"
            )

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content."""
        place, system = self._at(path)
        system.delete(place, True)  # noqa: FBT003 - a parameter of a Java method

    def _at(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place, place.getFileSystem(self.spark._jsc.hadoopConfiguration())  # noqa: SLF001 - PySpark has no other way

    @property
    def _jvm(self) -> Any:  # noqa: ANN401 - py4j has no types
        return self.spark._jvm  # noqa: SLF001 - PySpark has no other way to Java
