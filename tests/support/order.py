"""Sorts test files so that those that take longest run first.

Otherwise, a file that takes long could begin when all others are done.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest


def begin_with(items: list[pytest.Item], directory: Path, longest: Sequence[str]) -> None:
    """Sort the files of ``directory``: first ``test_<name>.py`` for each name in ``longest``, then all others.

    Files of other directories come before all files of ``directory``.
    """
    first = {f"test_{name}": number for number, name in enumerate(longest)}
    items.sort(key=lambda item: first.get(item.path.stem, len(first)) if item.path.parent == directory else -1)
