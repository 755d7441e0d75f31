"""Simulates a disk that hangs, for tests of the code that waits for the disk."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pgsluice.spool.disk import Disk


@contextmanager
def hanging(disk: Disk) -> Iterator[None]:
    """Keep the disk busy until the block ends."""
    thaw = threading.Event()
    disk.later(thaw.wait)
    try:
        yield
    finally:
        thaw.set()
