"""The errors of a pipeline's topics and of targets, because of which a mirror or a change log cannot go on.

Each error says what happened, what follows from it, and what to do. No part of the batch is visible in a view.

    PipelineError
    |-- TopicMissing        a topic does not exist
    |-- TopicRecreated      a topic was deleted and created again
    |-- RetentionGap        retention deleted records that were not read yet
    |-- CountMismatch       a topic does not hold what its cut records declare
    |-- TableRefused        a table has something that a mirror cannot follow
    |-- ForeignWrite        something else has written to a target
    `-- NoSuchView          a target has no state as of the moment that was asked for

``tests/spark/test_query.py`` covers it.
"""


class PipelineError(Exception):
    """A mirror, a change log or a view cannot go on."""


class TopicMissing(PipelineError):
    """A topic does not exist."""


class TopicRecreated(PipelineError):
    """A topic was deleted and created again, so offsets from before mean nothing in it."""


class RetentionGap(PipelineError):
    """Retention deleted records before they were read."""


class CountMismatch(PipelineError):
    """A topic does not hold what its cut records declare."""


class TableRefused(PipelineError):
    """A table has something that a mirror cannot follow."""


class ForeignWrite(PipelineError):
    """Something else than this pipeline has written to a target."""


class NoSuchView(PipelineError):
    """A target has no state as of the moment that was asked for."""
