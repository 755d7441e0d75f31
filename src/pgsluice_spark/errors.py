"""The errors with which a mirror, a change log or a view stops because of a topic or a target.

Each error says what happened, what follows from it, and what to do. No part of the failed batch is visible in a view.

    PipelineError
    |-- TopicMissing        a topic does not exist
    |-- TopicRecreated      a topic was deleted and created again
    |-- RetentionGap        retention deleted records that were not read yet
    |-- CountMismatch       a topic does not have the changes that its cut records declare
    |-- TableRefused        a mirror cannot follow a table
    |-- ForeignWrite        another program has written to a target
    `-- NoSuchView          a target has no state for the requested moment

``tests/spark/test_query.py`` covers this module.
"""

from typing import Final

WITHOUT_PYSPARK: Final = "PySpark is not installed. Install it: pip install 'pgsluice[spark]'"


class PipelineError(Exception):
    """A mirror, a change log or a view cannot continue."""


class TopicMissing(PipelineError):
    """A topic does not exist."""


class TopicRecreated(PipelineError):
    """A topic was deleted and created again, so earlier offsets are not valid in it."""


class RetentionGap(PipelineError):
    """Retention deleted records before they were read."""


class CountMismatch(PipelineError):
    """A topic does not have the changes that its cut records declare."""


class TableRefused(PipelineError):
    """A mirror cannot follow the changes of a table."""


class ForeignWrite(PipelineError):
    """Something other than this pipeline has written to a target."""


class NoSuchView(PipelineError):
    """A target has no state for the requested moment."""
