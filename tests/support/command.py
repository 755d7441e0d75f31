"""Runs a command of pgsluice that serves HTTP until it is stopped."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pgsluice.app import cli

STOP_S = 180


@contextmanager
def running(settings: str, *arguments: str) -> Iterator[None]:
    """Start a command, and wait until it is ready. When the block ends, stop the command, which must succeed."""
    command = [sys.executable, "-m", "pgsluice", *arguments, "-c", settings]
    with subprocess.Popen(command) as process:
        try:
            while cli.main(["health", "-c", settings]) != 0:
                assert process.poll() is None
                time.sleep(0.1)
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_S) == 0
        finally:
            process.kill()
