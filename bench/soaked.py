"""``python bench/soaked.py run ...``: pgsluice's command line, which here also reports the number of asyncio tasks.

:mod:`.soak` starts this program. Each second, the program writes the number into the file that ``$SOAK_TASKS`` names.
"""

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from pgsluice.app.cli import main

SAMPLE_S = 1.0

_run = asyncio.run


async def _tell(file: Path) -> None:
    while True:
        file.write_text(str(len(asyncio.all_tasks())))  # noqa: ASYNC240 - writes only a few bytes
        await asyncio.sleep(SAMPLE_S)


async def _watched(program: Coroutine[Any, Any, Any]) -> object:
    telling = asyncio.create_task(_tell(Path(os.environ["SOAK_TASKS"])))
    try:
        return await program
    finally:
        telling.cancel()


if __name__ == "__main__":
    asyncio.run = lambda program: _run(_watched(program))  # type: ignore[assignment,misc]
    sys.exit(main())
