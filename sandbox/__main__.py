"""``python -m sandbox``: looks at the machine first, for the commands need what may be missing."""

import sys

from sandbox.errors import SandboxError
from sandbox.prerequisites import require


def main() -> int:
    """Run the command line; an error is its message and exit code 1."""
    try:
        require(fetching=False)
        from sandbox.cli import run  # noqa: PLC0415 - needs what require() looks for

        run(sys.argv[1:])
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
