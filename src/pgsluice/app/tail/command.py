"""``pgsluice tail``: prints the changes that pass a filter, until the limit is reached or Ctrl-C ends it.

``tests/integration/test_tail.py`` covers this module.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial

from pgsluice.app.tail import kafka, postgres
from pgsluice.app.tail.shown import OPS, Filter, Render, Shown, to_json, to_text
from pgsluice.app.wiring import source_options
from pgsluice.config import Settings
from pgsluice.errors import UsageError
from pgsluice.printable import printable, quoted
from pgsluice.tables import TablePattern

Write = Callable[[str], object]


def tail(settings: Settings, options: argparse.Namespace, write: Write) -> int:
    """Print changes with ``write``, which gets whole lines. Return the exit code of success."""
    wanted = Filter(
        [_pattern(text) for text in options.table],
        frozenset(OPS[op] for op in options.op),
        frozenset(options.column),
        frozenset(options.xid),
    )
    render: Render = to_json if options.json else partial(to_text, colors=sys.stdout.isatty())
    asyncio.run(_print(_source(settings, from_kafka=options.kafka), wanted, render, options.limit, write))
    return 0


def _pattern(text: str) -> TablePattern:
    try:
        return TablePattern.parse(text)
    except ValueError as error:
        raise UsageError(f"--table {error}") from None


def _source(settings: Settings, *, from_kafka: bool) -> AsyncIterator[list[Shown]]:
    if from_kafka:
        return kafka.changes(settings, partial(_say_ready, f"topics with prefix {settings.kafka.topic_prefix}"))
    names = ", ".join(map(quoted, settings.postgres.publications))
    return postgres.changes(
        postgres.options_of_tail(source_options(settings)), partial(_say_ready, f"changes of publication {names}")
    )


def _say_ready(what: str) -> None:
    sys.stderr.write(printable(f"pgsluice: waiting for {what}; Ctrl-C ends this") + "\n")
    sys.stderr.flush()


async def _print(
    source: AsyncIterator[list[Shown]], wanted: Filter, render: Render, limit: int | None, write: Write
) -> None:
    left = limit
    async with aclosing(source) as portions:  # type: ignore[type-var]  # every source is a generator
        async for portion in portions:
            shown = [change for change in map(wanted.apply, portion) if change is not None][:left]
            if shown:
                # Write in a thread, because a slow reader of the output must not keep us from answering the server.
                await asyncio.to_thread(write, "".join(f"{render(change)}\n" for change in shown))
            if left is not None:
                left -= len(shown)
                if left <= 0:
                    return
