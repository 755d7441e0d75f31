"""Finds our last commit in the log of a Delta table, and the commits that other programs made after it.

Used by :mod:`.delta`. The log has a JSON file for each commit. ``DESCRIBE HISTORY`` returns the same information, but
runs a Spark job, which takes much longer than reading the one or two files that are needed here.

``tests/spark/test_mirror.py`` covers this module.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md#commit-provenance-information
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pgsluice_spark.errors import ForeignWrite
from pgsluice_spark.files import Files
from pgsluice_spark.targets import Commit, Committed, vanished

OURS: Final = "pgsluice"
"""The name in a commit's metadata that marks our own commits."""

_MAINTENANCE: Final = frozenset(
    (
        "ADD COLUMNS",
        "CHANGE COLUMN",
        "CHANGE COLUMNS",
        "CLUSTER BY",
        "COMPUTE STATS",
        "DOMAIN METADATA CLEANUP",
        "OPTIMIZE",
        "OPTIMIZE CHECKPOINT",
        "REORG",
        "ROW TRACKING BACKFILL",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "VACUUM END",
        "VACUUM START",
    )
)
"""The operations of Delta that do not change rows."""

HISTORY: Final = 50
"""The number of the newest commits among which we search for our last commit."""

_UNSEEN: Final = -1
"""Stands for the newest version of a table if the files of its log cannot be found."""

_INFO: Final = "commitInfo"
"""The entry in a commit's file that says who made the commit. Delta itself writes this entry first."""

Info = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """The log of the table in the directory ``path``."""

    files: Files
    path: str

    def last(self, since: int | None, history: Callable[[], Mapping[int, Info]]) -> Committed | None:
        """Return our last commit, or None if there is none. ``since`` is the number of one of our commits, or None.

        ``history`` returns the table's last commits. This function is slow, so it is called only if the log's files do
        not show the commit ``since``. Raise ForeignWrite if another program has changed rows after our last commit, or
        after the commit ``since``, or if it has undone the commit ``since``.
        """
        newest = self._newest(since)
        if newest == _UNSEEN or (since is not None and newest < since):
            return last_in(self.path, history(), since)
        return last_of(self.path, range(newest, max(-1, newest - HISTORY), -1), self._info, since)

    def committed_at(self, version: int) -> float:
        """Return the time of a commit, in seconds since 1970."""
        return self.files.modified_at(self._file(version))

    def _newest(self, since: int | None) -> int:
        """Return the newest version of the table.

        The directory is not listed, because it may have hundreds of thousands of files.
        """
        version = since if since is not None and self._has(since) else self._checkpoint()
        while self._has(version + 1):
            version += 1
        return version

    def _checkpoint(self) -> int:
        """Return the version of the last checkpoint. Delta may have deleted older commits.

        Return _UNSEEN if there is no checkpoint, or if the file that names the last one cannot be read. Some file
        systems replace this file in two steps, so it can be missing or incomplete for a moment.
        """
        try:
            found = self.files.json(f"{self.path}/_delta_log/_last_checkpoint")
            return _UNSEEN if found is None else int(found["version"])
        except (ValueError, KeyError):
            return _UNSEEN

    def _has(self, version: int) -> bool:
        return self.files.exists(self._file(version))

    def _info(self, version: int) -> Info | None:
        """Return the ``commitInfo`` of a commit, or an empty mapping if the commit has none.

        Return None if the commit's file was deleted.
        """
        lines = self.files.lines(self._file(version))
        if lines is None:
            return None
        for line in lines:
            if _INFO in line and (found := json.loads(line).get(_INFO)) is not None:
                info: Info = found
                return info
        return {}

    def _file(self, version: int) -> str:
        return f"{self.path}/_delta_log/{version:020}.json"


def last_in(path: str, history: Mapping[int, Info], since: int | None) -> Committed | None:
    """Return our last commit. ``history`` has the ``commitInfo`` of the table's last commits, by version.

    Raise ForeignWrite as :meth:`DeltaLog.last` does, and also if the table has lost the commit ``since``.
    """
    if since is not None and max(history, default=_UNSEEN) < since:
        raise ForeignWrite(vanished(path))
    return last_of(path, sorted(history, reverse=True), history.get, since)


def last_of(
    path: str, versions: Iterable[int], info_of: Callable[[int], Info | None], since: int | None
) -> Committed | None:
    """Return our last commit among ``versions``, which are sorted from the newest to the oldest."""
    found = restored = None
    for version in versions:
        if restored is not None and version > restored:
            continue
        if found is not None and (since is None or version <= since):
            break
        info = info_of(version)
        if info is None:
            break
        ours, operation = metadata(info), info.get("operation")
        target = (info.get("operationParameters") or {}).get("version")
        if operation == "RESTORE" and target is not None:
            restored = int(target)
            if since is not None and restored < since:
                raise ForeignWrite(_rolled_back(path, version, restored, since))
        elif ours is None and operation not in _MAINTENANCE:
            raise ForeignWrite(_foreign(path, version, operation))
        elif found is None and ours is not None and ours.app:
            found = Committed(version, ours)
    return found


def metadata(info: Info) -> Commit | None:
    """Return our metadata of a commit, or None if the commit is not ours."""
    try:
        own = json.loads(info.get("userMetadata") or "")[OURS]
        return Commit(own["app"], own["version"], own["state"])
    except (ValueError, TypeError, KeyError):
        return None


def _foreign(path: str, version: int, operation: str | None) -> str:
    return (
        f"{path}: something other than this pipeline has written to the table: version {version} is a "
        f"{operation or 'commit without an operation'}. Since then, the table may differ from PostgreSQL. The query "
        f"has stopped. Restore the previous version (RESTORE TABLE delta.`{path}` TO VERSION AS OF {version - 1}), or "
        "load the table into a new target. Only the pipeline may write to its tables"
    )


def _rolled_back(path: str, version: int, restored: int, since: int) -> str:
    return (
        f"{path}: the table has lost version {since}, which this pipeline made, because version {version} has restored "
        f"version {restored}. The changes in between would be missing, so the query has stopped. Go back to version "
        f"{since} (RESTORE TABLE delta.`{path}` TO VERSION AS OF {since}), or load the table into a new target"
    )
