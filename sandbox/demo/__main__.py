"""``python -m sandbox.demo [--keep]`` runs the demo. The exit code is 0 if Spark's copy equals PostgreSQL's tables."""

import argparse
import signal
import sys
from typing import NoReturn

from sandbox.errors import SandboxError
from sandbox.prerequisites import require

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def main() -> int:
    """Run the demo. If an error occurs, print its message and return exit code 1."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        require(fetching=False)
        from sandbox.demo.story import tell  # noqa: PLC0415 - imports modules that require() checks first

        return 0 if tell(keep=options.keep) else 1
    except SandboxError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sandbox.demo", description="PostgreSQL to Kafka to Spark, shown.")
    parser.add_argument("--keep", action="store_true", help="leave everything running at the end, until Ctrl-C")
    return parser


def _terminate(*_: object) -> NoReturn:
    sys.exit(EXIT_TERMINATED)  # the context managers stop all processes


if __name__ == "__main__":
    sys.exit(main())
