"""Finds a schema among the versions of a subject, even if another Avro library has written it differently.

A search takes a long time for large schemas. So :mod:`.api` does not search itself, but returns a function that does
the search. The HTTP server calls this function in a thread.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final

from pgsluice.avro.wire import Schema, normalise
from pgsluice.registry.canonical import canonical
from pgsluice.registry.schema_record import Registered

_KEPT: Final = 10_000
"""The digests of at most this many registered schemas are cached."""


def find(versions: Sequence[Registered], schema: Schema) -> Registered | None:
    """Return the version that is equal to this schema, or None. Raise ValueError if ``schema`` is not a schema."""
    wanted, text = _digest(canonical(schema)), normalise(schema)
    for version in versions:
        if version.schema == text:
            return version
    return next((version for version in versions if _digest_of(version.schema) == wanted), None)


@lru_cache(_KEPT)
def _digest_of(text: str) -> bytes | None:
    """Return the digest of a registered schema, or None if the text is not a valid schema.

    The text can be anything, because other programs may write to the topic.
    """
    try:
        return _digest(canonical(json.loads(text)))
    except (ValueError, RecursionError):
        return None


def _digest(canonical_text: str) -> bytes:
    return sha256(canonical_text.encode()).digest()
