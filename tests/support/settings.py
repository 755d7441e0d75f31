"""The minimal settings of a pipeline with a test's additions, and the problems that validation finds in them."""

from typing import Any

import pytest
from pydantic import ValidationError

from pgsluice.config import Settings
from pgsluice.config.problems import KeyProblems

KAFKA: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:9092", "topic_prefix": "shop"}


def settings(**tables: Any) -> Settings:  # noqa: ANN401 - any setting
    """Return the minimal settings, with ``tables`` added."""
    kafka = KAFKA | tables.pop("kafka", {})
    return Settings.model_validate({"version": 1, "name": "shop", "kafka": kafka, **tables})


def problems(**tables: Any) -> list[tuple[tuple[str | int, ...], str]]:  # noqa: ANN401 - any setting
    """Return the path and the message of each problem of the settings with ``tables``."""
    with pytest.raises(ValidationError) as caught:
        settings(**tables)
    found: list[tuple[tuple[str | int, ...], str]] = []
    for error in caught.value.errors():
        reason = error.get("ctx", {}).get("error")
        if isinstance(reason, KeyProblems):
            found += [((*error["loc"], *path), sentence) for path, sentence in reason.found]
        else:
            found.append((error["loc"], str(reason or error["type"])))
    return found
