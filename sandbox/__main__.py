"""``python -m sandbox``: checks the prerequisites on this machine, and then runs the command."""

import sys

from sandbox.errors import SandboxError
from sandbox.prerequisites import require


def main() -> int:
    """Run the command line. If an error occurs, print its message and return exit code 1."""
    try:
        require(fetching=False)
        from sandbox.cli import run  # noqa: PLC0415 - imports modules that require() checks first

        run(sys.argv[1:])
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
