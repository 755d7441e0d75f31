"""``python -m pgsluice``: the same as the command ``pgsluice``."""

import sys

from pgsluice.app.cli import main

sys.exit(main())
