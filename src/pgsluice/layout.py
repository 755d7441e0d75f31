"""The layout of a table: a description of its columns, which shows whether DDL has changed rows that were read.

The stream does not contain what DDL does to existing rows. So pgsluice compares the present layout of the table with
its layout at the time when the rows were read. The table's record in ``<prefix>.snapshots`` keeps the earlier layout.

https://www.postgresql.org/docs/current/catalog-pg-attribute.html
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from pgsluice.printable import quoted

FORMER_MAX: Final = 1600
"""The maximum number of former column names that are kept for a table. If a table has had more, its rows are read
again."""

_NUMERIC: Final = (1700, 1231)
"""numeric and numeric[], the types whose type modifier decides what consumers see."""

_NUMBER_MAX: Final = 2**62


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """One column of a table, as pg_attribute describes it.

    A table never reuses an ``attnum``, so a column that is dropped and added again gets a new one. ``xmin``: the
    transaction that altered the column last. ``is_filled``: whether the rows that existed when the column was added got
    a value in this column.
    """

    attnum: int
    name: str
    type_oid: int
    typmod: int
    xmin: int
    is_filled: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table at one moment, and the other properties that decide which values consumers see.

    ``attnums``: how many columns the table has ever had. Each column that is added later has an attnum above this
    number. ``storage`` changes when all rows are rewritten (by ALTER TYPE or a volatile default, but also by VACUUM
    FULL and TRUNCATE). ``filter`` changes with the row filter of the publications, and is empty if there is none.
    ``former``: names that columns have had since the rows were read but do not have any more, with their attnums.
    """

    columns: tuple[ColumnLayout, ...]
    attnums: int
    storage: str
    filter: str = ""
    former: tuple[tuple[str, int], ...] = ()

    def has(self, names: Collection[str]) -> bool:
        """Return whether each of these names is the name of a column."""
        return {one.name for one in self.columns}.issuperset(names)

    def only(self, names: Collection[str]) -> "Layout":
        """Return the layout with only the columns in ``names``, the names of the published columns."""
        return replace(self, columns=tuple(one for one in self.columns if one.name in names))

    def after(self, old: "Layout") -> "Layout":
        """Return this layout with ``former`` set to all names in ``old`` that no column has any more."""
        present = {(one.name, one.attnum) for one in self.columns}
        return replace(self, former=tuple(sorted(old.names - present)))

    @property
    def names(self) -> set[tuple[str, int]]:
        """Each name that a column has or had, with the column's attnum."""
        return {*self.former, *((one.name, one.attnum) for one in self.columns)}

    def attnum(self, name: str, type_oid: int) -> int | None:
        """Return the attnum of the column with this name and type, or None if there is none."""
        return next((one.attnum for one in self.columns if (one.name, one.type_oid) == (name, type_oid)), None)


def unsent(old: Layout, new: Layout) -> str | None:
    """Return why the stream lacks values that rows have in ``new`` but did not have in ``old``.

    Return None if the stream lacks no values, for example if a column without values was added, or if a column was
    dropped or renamed.
    """
    if old.filter != new.filter:
        return "the row filter of its publication was changed"
    holders = dict(sorted(old.names, key=lambda one: one[1]))
    for column in new.columns:
        reason = _unsent(column, holders.get(column.name, column.attnum), old, new)
        if reason is not None:
            return f"column {quoted(column.name)} {reason}"
    if len(new.after(old).former) > FORMER_MAX:
        return f"its columns have had more than {FORMER_MAX} other names"
    return None


def _unsent(column: ColumnLayout, holder: int, old: Layout, new: Layout) -> str | None:
    before = next((one for one in old.columns if one.attnum == column.attnum), None)
    is_rewritten = old.storage != new.storage
    if holder != column.attnum:
        return "has replaced another column of this name"
    if before is None:
        if column.attnum <= old.attnums:
            return "was not published before"
        return "was added with values" if column.is_filled or is_rewritten else None
    if before.type_oid != column.type_oid or (column.type_oid in _NUMERIC and before.typmod != column.typmod):
        return "has another type now"
    return "was altered, and the rows were rewritten" if is_rewritten and before.xmin != column.xmin else None


def read_layout(found: object) -> Layout:
    """Return the layout that was read from JSON. Raise ValueError with the reason if ``found`` is not a layout."""
    values = _fields(Layout, found)
    if not isinstance(values["columns"], list) or not isinstance(values["former"], list):
        raise ValueError("the columns or the former names of a layout are not an array")  # noqa: TRY004 - wrong data, not a wrong argument
    columns = tuple(_column(one) for one in values["columns"])
    former = tuple(_former(one) for one in values["former"])
    if not _is_number(values["attnums"]) or not all(type(values[name]) is str for name in ("storage", "filter")):
        raise ValueError("a layout has an invalid value")
    return Layout(columns, values["attnums"], values["storage"], values["filter"], former)


def _column(found: object) -> ColumnLayout:
    values = _fields(ColumnLayout, found)
    numbers = [values[name] for name in ("attnum", "type_oid", "typmod", "xmin")]
    if not all(map(_is_number, numbers)) or type(values["name"]) is not str or type(values["is_filled"]) is not bool:
        raise ValueError("a column of a layout has an invalid value")
    return ColumnLayout(**values)


def _former(found: object) -> tuple[str, int]:
    if isinstance(found, list) and len(found) == 2 and type(found[0]) is str and _is_number(found[1]):  # noqa: PLR2004
        return found[0], found[1]
    raise ValueError("an entry of `former` in a layout is not an array of a name and a number")


def _fields(kind: type[Layout | ColumnLayout], found: object) -> Mapping[str, Any]:
    names = {one.name for one in fields(kind)}
    if not isinstance(found, Mapping) or found.keys() != names:
        raise ValueError(f"a {kind.__name__} is not an object with the fields {', '.join(sorted(names))}")
    return found


def _is_number(found: object) -> bool:
    return type(found) is int and -1 <= found <= _NUMBER_MAX
