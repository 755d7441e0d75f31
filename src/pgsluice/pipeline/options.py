"""What a pipeline is told to do."""

from dataclasses import dataclass

from pgsluice.avro.types import TypeOptions
from pgsluice.pipeline.session import SessionOptions
from pgsluice.tables import Tables


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What a pipeline needs to know; times in seconds, sizes in bytes.

    ``selection``: a digest of the settings that decide which changes are delivered.
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
