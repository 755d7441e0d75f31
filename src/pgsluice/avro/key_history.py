"""The keys that were registered for a table.

``tests/unit/avro/test_schema.py`` covers this module.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from pgsluice.avro.schema import key_columns
from pgsluice.avro.wire import Schema, normalise


class KeyHistory:
    """The keys that were registered for one table, as tuples of columns, in the order of their last registration."""

    def __init__(self, registered: Iterable[Schema] = ()) -> None:
        self._keys: dict[tuple[str, ...], int] = {}
        """The hash of the last schema of each key."""
        self._names = 0
        for schema in registered:
            self.learn(schema)

    def __len__(self) -> int:
        """Return the number of columns in all keys."""
        return self._names

    def learn(self, schema: Schema) -> None:
        """Learn the next schema of the key. A schema that is not a record is ignored."""
        columns = key_columns(schema) if isinstance(schema, dict) else None
        if columns is None:
            return
        key = tuple(columns)
        if key not in self._keys:
            self._names += len(key)
        self._keys.pop(key, None)
        self._keys[key] = hash(normalise(schema))

    def has(self, schema: Schema) -> bool:
        """Return whether ``schema`` is the last one that was registered for its key."""
        return hash(normalise(schema)) in self._keys.values()

    def last_among(self, published: AbstractSet[str], *, besides: tuple[str, ...] = ()) -> tuple[str, ...] | None:
        """Return the last key whose columns are all ``published``, or None. The key ``besides`` does not count."""
        return next((key for key in reversed(self._keys) if set(key) != set(besides) and published >= set(key)), None)
