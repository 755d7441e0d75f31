"""The program of a driver: runs ``pgsluice-spark`` with the arguments of the application."""

import sys

from pgsluice_spark.cli import main

sys.exit(main())
