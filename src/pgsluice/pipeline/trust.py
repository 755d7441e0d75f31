"""Decides which tables pgsluice may read.

If pgsluice reads a table, functions of the table's owner can run with pgsluice's rights.
"""

from pgsluice.errors import TableUnreadable
from pgsluice.printable import quoted
from pgsluice.relation import TableId


def check_trusted(table: TableId, *, is_trusted: bool) -> None:
    """Raise TableUnreadable unless the table is trusted."""
    if not is_trusted:
        raise TableUnreadable(distrust(table))


def distrust(table: TableId) -> str:
    """Return why pgsluice does not read this table."""
    return (
        f"Table {quoted(table.namespace, table.name)} is left out until tables.include or a publication names it, or "
        "until superusers or the database's owner own the table, its partitions and its schema. Any other owner could "
        "run functions with the rights of the role that reads the table."
    )
