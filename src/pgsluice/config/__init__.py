"""Settings: read from file, secret files, environment and flags; checked as a whole before anything starts.

Used by the daemon, which maps settings to the options of the shell packages, and by the commands.
"""

from pgsluice.config.model import Settings
from pgsluice.config.units import Duration, ListenAddress, NumericAs, Size

__all__ = ["Duration", "ListenAddress", "NumericAs", "Settings", "Size"]
