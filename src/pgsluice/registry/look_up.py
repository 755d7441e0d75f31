"""Finds a schema among the versions of a subject, however it is written: Avro libraries each print it their own way.

Pure. It takes long for large schemas, so :mod:`.api` leaves it to whoever serves the request to do it in a thread.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final

from pgsluice.avro.wire import Schema, normalise
from pgsluice.registry.canonical import canonical
from pgsluice.registry.record import Registered

_KEPT: Final = 10_000
"""So many registered schemas have their digest kept."""


def find(versions: Sequence[Registered], schema: Schema) -> Registered | None:
    """Return the version that is this schema; ValueError when ``schema`` is not a schema."""
    wanted, text = _digest(canonical(schema)), normalise(schema)
    for version in versions:
        if version.schema == text:
            return version
    return next((version for version in versions if _digest_of(version.schema) == wanted), None)


@lru_cache(_KEPT)
def _digest_of(text: str) -> bytes | None:
    """Return the digest of a registered schema; None for what is none, as others can write to the topic."""
    try:
        return _digest(canonical(json.loads(text)))
    except (ValueError, RecursionError):
        return None


def _digest(canonical_text: str) -> bytes:
    return sha256(canonical_text.encode()).digest()
