"""What all tables of the file have in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the file. Unknown keys are errors, and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)
