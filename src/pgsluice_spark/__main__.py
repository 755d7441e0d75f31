"""``python -m pgsluice_spark``: the same as ``pgsluice-spark``."""

import sys

from pgsluice_spark.cli import main

sys.exit(main())
