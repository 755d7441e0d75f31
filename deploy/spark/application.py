"""The program of a Spark driver: ``pgsluice-spark`` with the arguments of the application."""

import sys

from pgsluice_spark.cli import main

sys.exit(main())
