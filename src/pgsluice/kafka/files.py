"""Detects changed files of certificates and keys, because librdkafka reads them only when a client is created.

https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pgsluice.errors import SinkUnavailable

FILES: Final = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
)
"""The properties of librdkafka that name files of certificates and keys."""

_State = tuple[int, int, int]
"""The attributes that identify a version of a file: inode, size, and time of the last change in nanoseconds."""


class ClientFiles:
    """The present versions of the files that ``properties`` name.

    Create this object before the client, so that it notices every change after the client has read the files.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._names = [properties[name] for name in FILES if name in properties]
        self._read = self._states()

    @property
    def changed(self) -> bool:
        """Whether a file has changed. This is False while a file is missing, because it may be about to be replaced."""
        states = self._states()
        return None not in states and states != self._read

    def check(self) -> None:
        """Raise SinkUnavailable if a file has changed, because only new clients read it."""
        if self.changed:
            raise SinkUnavailable(
                "Files of certificates or keys under kafka.client have changed. A new session begins, which reads them."
            )

    def _states(self) -> list[_State | None]:
        return [_state(name) for name in self._names]


def _state(name: str) -> _State | None:
    try:
        found = Path(name).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
