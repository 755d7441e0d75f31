"""The options of a pipeline.

``tests/unit/pipeline/test_pipeline.py`` covers this module.
"""

from dataclasses import dataclass

from pgsluice.avro.types import TypeOptions
from pgsluice.pipeline.session import SessionOptions
from pgsluice.tables import Tables


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The options of a pipeline, with times in seconds and sizes in bytes.

    ``selection`` is a text with all settings that decide which changes are delivered. Each start compares this text
    with the one in the last checkpoint.
    """

    name: str
    slot: str
    tables: Tables
    types: TypeOptions
    session: SessionOptions
    create_slot: bool
    adopt_slot: bool
    drain_timeout_s: float
    selection: str = ""
    dead_letters: bool = False
    quarantine: bool = False
