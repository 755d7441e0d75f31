"""The loads that contenders read, as SQL: the tables, rows and transactions of each load.

``rounds`` runs ``setup`` and creates the slot. Then it runs ``opening``, ``write`` and ``mark``, which write into the
WAL that the contenders read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

PUBLICATION = "bench"

VALUES = (
    ("customer", "int", "g % 1000"),
    ("amount", "numeric(10,2)", "g % 10000 / 100.0"),
    ("status", "text", "'status ' || g % 5"),
    ("note", "text", "repeat('note ', 8)"),
    ("quantity", "int", "g % 50"),
    ("placed", "timestamptz", "now()"),
    ("day", "date", "current_date"),
    ("paid", "boolean", "g % 2 = 0"),
    ("tag", "uuid", "md5(g::text)::uuid"),
)
"""The columns besides ``id``: name, type, and value in row ``g``. Wider tables repeat these columns."""

ORDERS_COLUMNS = 1 + len(VALUES)

DIGITS = "(SELECT string_agg(encode(sha512((g || '.' || k)::text::bytea), 'hex'), '') FROM generate_series(1, {}) k)"
"""SQL expression for a text that hardly compresses: strings of 128 bytes. The parameter is the number of strings."""

DIGITS_BYTES = 128

OPENING_ID, MARK_ID = -1, -2
"""The ids of rows that are not measured: the first row of each table (the opening), and the end marker."""


@dataclass(frozen=True, slots=True)
class Load:
    """``rows`` row changes in transactions of ``per_transaction`` rows, spread over the ``tables`` in turn.

    ``columns`` are names, types and values as in VALUES. If ``updates`` is true, each row exists beforehand and is
    updated. If ``opened`` is true, the measurement begins when the first row of each table has been delivered. If
    ``loaded`` is true, one more contender loads the same rows from the tables.
    """

    key: str
    title: str
    rows: int
    per_transaction: int
    columns: Sequence[tuple[str, str, str]]
    tables: int = 1
    updates: bool = False
    opened: bool = False
    loaded: bool = False
    partitions: int | None = None
    """The number of partitions of each table's topic, or None for pgsluice's default."""
    series: str = ""
    """The name of the series to which the load belongs, or an empty text. The loads of the series ``tables`` differ in
    the number of tables, those of ``partitions`` in the number of partitions of each topic, and those of ``columns`` in
    the number of columns."""

    def scaled(self, factor: float) -> "Load":
        """Return the load with ``factor`` times as many rows, rounded to whole transactions. At least one remains."""
        per = min(self.per_transaction, max(1, round(self.rows * factor)))
        return replace(self, per_transaction=per, rows=max(1, round(self.rows * factor / per)) * per)

    def setup(self) -> list[str]:
        """Return the statements that run before the slot exists.

        They create the tables, the rows to update, and the publication.
        """
        columns = ", ".join(f"{name} {kind}" for name, kind, _ in self.columns)
        made = [f"CREATE TABLE {table} (id bigint PRIMARY KEY, {columns})" for table in self.table_names]
        # Without compression, the text has its full length in the row and in the WAL.
        plain = [name for name, kind, value in self.columns if kind == "text" and "sha512" in value]
        made += [f"ALTER TABLE orders ALTER {name} SET STORAGE EXTERNAL" for name in plain]
        if self.updates:
            made += ["ALTER TABLE orders REPLICA IDENTITY FULL", self._insert("orders", 1, self.rows)]
        return [*made, f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {', '.join(self.table_names)}"]

    def opening(self) -> list[str]:
        """Return the statements of the opening: one transaction with one row of each table."""
        return [self._insert(table, OPENING_ID, OPENING_ID) for table in self.table_names]

    def write(self) -> str:
        """Return the statement that writes all measured rows, and commits each transaction."""
        if self.tables > 1:
            return self._round_robin()
        change = self._update if self.updates else self._insert
        per, last = self.per_transaction, self.rows // self.per_transaction - 1
        return f"DO $$ BEGIN FOR i IN 0..{last} LOOP {change('orders', f'i * {per} + 1', f'(i + 1) * {per}')}; COMMIT; END LOOP; END $$"  # noqa: E501 - one statement

    def mark(self) -> str:
        """Return the statement that writes the end marker, whose commit comes after all others."""
        return self.row(MARK_ID)

    def row(self, number: int) -> str:
        """Return the statement that writes a single row."""
        return self._insert("orders", number, number)

    @property
    def table_names(self) -> list[str]:
        """The names of the tables, beginning with ``orders``."""
        return ["orders", *(f"orders_{number}" for number in range(1, self.tables))]

    def fill(self, table: str, rows: int) -> str:
        """Return the statement that writes ``rows`` rows into a table in one transaction."""
        return self._insert(table, 1, rows)

    def _insert(self, table: str, first: int | str, last: int | str) -> str:
        values = ", ".join(value for _, _, value in self.columns)
        return f"INSERT INTO {table} SELECT g, {values} FROM generate_series({first}, {last}) g"

    def _update(self, table: str, first: int | str, last: int | str) -> str:
        return f"UPDATE {table} SET quantity = quantity + 1 WHERE id BETWEEN {first} AND {last}"

    def _round_robin(self) -> str:
        """Return the statement that writes into all tables in turn, so consecutive rows are in different tables."""
        values = ", ".join(value for _, _, value in self.columns)
        step = f"g := g + 1; IF g % {self.per_transaction} = 0 THEN COMMIT; END IF; EXIT WHEN g > {self.rows};"
        turns = "\n".join(f"INSERT INTO {table} SELECT g, {values}; {step}" for table in self.table_names)
        return f"DO $$ DECLARE g int := 1; BEGIN LOOP\n{turns}\nEND LOOP; END $$"


def columns(count: int) -> list[tuple[str, str, str]]:
    """Return all columns except the id, for a table that has ``count`` columns including the id."""
    turns = ((number // len(VALUES), *VALUES[number % len(VALUES)]) for number in range(count - 1))
    return [(f"{name}_{turn}" if turn else name, kind, value) for turn, name, kind, value in turns]


def _text(size: int) -> list[tuple[str, str, str]]:
    return [("body", "text", DIGITS.format(size // DIGITS_BYTES))]


def _loads() -> list[Load]:
    orders = columns(ORDERS_COLUMNS)
    named = [
        Load("orders-20", "Orders, 10 columns, transactions of 20 rows", 300_000, 20, orders),
        Load("orders-1", "Orders, 10 columns, transactions of one row", 100_000, 1, orders),
        Load("million", "Orders, one transaction of a million rows, streamed", 1_000_000, 1_000_000, orders),
        Load("text-1k", "Rows with a text of 1 KB, transactions of 20 rows", 200_000, 20, _text(1_024)),
        Load("text-100k", "Rows with a text of 100 KB, transactions of 20 rows", 6_000, 20, _text(102_400)),
        Load(
            "update-full",
            "Orders, updates with replica identity full, transactions of 20 rows",
            150_000,
            20,
            orders,
            updates=True,
        ),
    ]
    tables = [
        Load(
            f"tables-{count}",
            f"Orders in {count:,} table{'s' if count > 1 else ''}, in turn, transactions of 20 rows",
            200_000,
            20,
            orders,
            tables=count,
            opened=True,
            series="tables",
        )
        for count in (1, 10, 100, 1_000)
    ]
    partitions = [
        Load(
            f"partitions-{count}",
            f"Orders in 1,000 tables, in turn, topics with {count} partition{'s' if count > 1 else ''}",
            200_000,
            20,
            orders,
            tables=1_000,
            opened=True,
            partitions=count,
            series="partitions",
        )
        for count in (1, 3)
    ]
    widths = [
        Load(
            f"columns-{count}",
            f"Rows of {count} columns, transactions of 20 rows",
            rows,
            20,
            columns(count),
            series="columns",
        )
        for count, rows in ((5, 300_000), (20, 200_000), (50, 120_000), (100, 80_000), (200, 50_000))
    ]
    loaded = [
        Load("snapshot", "Orders, 10 columns, loaded and streamed", 1_000_000, 20, orders, loaded=True),
        Load(
            "snapshot-tables",
            "Orders in 1,000 tables, 100 rows each, loaded and streamed",
            100_000,
            20,
            orders,
            tables=1_000,
            loaded=True,
        ),
    ]
    return [*named, *tables, *partitions, *widths, *loaded]


LOADS = {load.key: load for load in _loads()}
"""All loads by key."""
