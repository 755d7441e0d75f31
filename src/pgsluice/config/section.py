"""The base class of all tables of the configuration file."""

from pydantic import BaseModel, ConfigDict, ValidationInfo


class Section(BaseModel):
    """A table of the configuration file. Unknown keys are errors, and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)


def keep_one(info: ValidationInfo, section: str, *others: str) -> None:
    """Raise ValueError if one of the keys ``others`` of this section is set, because they exclude the validated key."""
    for other in others:
        if info.data.get(other) is not None:
            raise ValueError(f"is set together with {section}.{other}: keep one of the two")
