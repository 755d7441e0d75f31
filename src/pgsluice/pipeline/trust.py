"""Decides which tables pgsluice may read, because reading a table can run its owner's functions with our rights."""

from pgsluice.errors import TableUnreadable
from pgsluice.printable import quoted
from pgsluice.relation import TableId


def check_trusted(table: TableId, *, is_trusted: bool) -> None:
    """Raise TableUnreadable unless the table is trusted, because reading it could run functions of its owner."""
    if not is_trusted:
        raise TableUnreadable(distrust(table))


def distrust(table: TableId) -> str:
    """Return why pgsluice does not read this table."""
    return (
        f"Table {quoted(table.namespace, table.name)} is left out until tables.include or a publication names it, or "
        "superusers and the database's owner own it, its partitions and its schema: whoever owns one of these can "
        "have functions run with the rights of the role that reads the table."
    )
