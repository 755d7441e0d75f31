"""Settings of Hypothesis. They have no deadline, so that no test fails because the machine is busy."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
