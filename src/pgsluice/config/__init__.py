"""Reads the settings from file, secret files, environment and flags, and checks all of them before anything starts.

``app.wiring`` maps the settings to the options of all other packages.
"""

from pgsluice.config import reference
from pgsluice.config.loading import Sources, load
from pgsluice.config.model import Settings
from pgsluice.config.postgres import Postgres
from pgsluice.config.problems import Problem, SettingsError
from pgsluice.config.tables import Rule
from pgsluice.config.units import Duration, ListenAddress, NumericAs, Size

__all__ = [
    "Duration",
    "ListenAddress",
    "NumericAs",
    "Postgres",
    "Problem",
    "Rule",
    "Settings",
    "SettingsError",
    "Size",
    "Sources",
    "load",
    "reference",
]
