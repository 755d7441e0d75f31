"""The database of the demo and its transactions. ``story`` uses this module.

https://www.postgresql.org/docs/current/logical-replication-publication.html
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

DATABASE = "shop"
ROLE = "pgsluice"
PUBLICATION = "shop"

KEYS = {
    "customers": ("id",),
    "products": ("sku",),
    "orders": ("id",),
    "order_items": ("order_id", "line"),
    "carts": ("id",),
}
"""All tables with the columns of their primary keys."""

SCHEMA = """\
CREATE TYPE order_status AS ENUM ('placed', 'paid', 'shipped');
CREATE TABLE customers (
    id bigint PRIMARY KEY, name text NOT NULL, email text, interests text[], since date NOT NULL DEFAULT current_date
);
CREATE TABLE products (
    sku text PRIMARY KEY, name text NOT NULL, price numeric(10,2) NOT NULL, details jsonb, manual text
);
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id bigint NOT NULL REFERENCES customers,
    status order_status NOT NULL DEFAULT 'placed', placed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE order_items (
    order_id bigint REFERENCES orders, line smallint, sku text NOT NULL REFERENCES products ON UPDATE CASCADE,
    quantity int NOT NULL, price numeric(10,2) NOT NULL, PRIMARY KEY (order_id, line)
);
CREATE TABLE carts (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id bigint, seen timestamp NOT NULL DEFAULT now()
);"""

STOCK = """\
INSERT INTO customers SELECT 1000 + n, 'Customer ' || n, NULL, '{}' FROM generate_series(1, 2000) AS n;
INSERT INTO products SELECT 'CARD-' || n, 'Postcard ' || n, 1.50 FROM generate_series(1, 300) AS n;
INSERT INTO carts (customer_id) SELECT 1000 + n FROM generate_series(1, 40) AS n;"""

STOCK_ROWS = 2340

ACCESS = f"""\
CREATE PUBLICATION {PUBLICATION} FOR TABLE {", ".join(KEYS)};
CREATE ROLE {ROLE} LOGIN REPLICATION;
GRANT SELECT ON {", ".join(KEYS)} TO {ROLE};"""

POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements that are committed or rolled back together."""

    statements: Sequence[str]
    rolled_back: bool = False

    def __str__(self) -> str:
        whole = len(self.statements) == 1 and not self.rolled_back
        end = "ROLLBACK" if self.rolled_back else "COMMIT"
        return "\n".join(f"{line};" for line in (self.statements if whole else ["BEGIN", *self.statements, end]))


@dataclass(frozen=True, slots=True)
class Act:
    """A scene of the demo with its transactions. The last transaction must change rows and be committed."""

    title: str
    remark: str
    transactions: Sequence[Transaction]


def _committed(*statements: str) -> Transaction:
    return Transaction(statements)


ACTS = (
    Act(
        "One transaction, four tables",
        "A line for each event: topic, operation, key, what changed, commit LSN and number in the transaction.\n"
        "Events come in cuts: whole transactions, in the order of their commits, across all topics.",
        [
            _committed(
                "INSERT INTO customers VALUES (1, 'Ada', 'ada@example.org', '{engines,poetry}')",
                "INSERT INTO customers VALUES (2, 'Grace', NULL, '{}')",
                "INSERT INTO products VALUES ('PEN', 'Fountain pen', 12.00)",
                "INSERT INTO products SELECT 'LAMP', 'Desk lamp', 39.90, '{\"watts\": 7}',\n"
                "    string_agg(md5(n::text), '') FROM generate_series(1, 2000) AS n",
                "INSERT INTO orders (customer_id) VALUES (1)",
                "INSERT INTO order_items VALUES (1, 1, 'LAMP', 1, 39.90), (1, 2, 'PEN', 3, 12.00)",
            )
        ],
    ),
    Act(
        "Updates, a delete, and a rollback",
        "Nothing of a rolled-back transaction reaches Kafka.",
        [
            _committed(
                "UPDATE orders SET status = 'paid' WHERE id = 1",
                "UPDATE order_items SET quantity = 2 WHERE order_id = 1 AND line = 2",
            ),
            Transaction(["UPDATE products SET price = 0", "DELETE FROM customers WHERE id = 2"], rolled_back=True),
            _committed("DELETE FROM order_items WHERE order_id = 1 AND line = 2"),
        ],
    ),
    Act(
        "A large value that an update does not change",
        "PostgreSQL does not send the manual again (unchanged TOAST). The event lists the manual as unchanged, and "
        "does not claim that it is null.",
        [_committed("UPDATE products SET price = 42.50 WHERE sku = 'LAMP'")],
    ),
    Act(
        "A key changes",
        "A delete under the old key, an insert under the new one, and the cascade to another table.",
        [_committed("UPDATE products SET sku = 'LAMP-2' WHERE sku = 'LAMP'")],
    ),
    Act(
        "Truncate",
        "One event for all rows, in order with the other events.",
        [
            _committed("INSERT INTO carts (customer_id) VALUES (1), (2), (NULL)"),
            _committed("TRUNCATE carts"),
            _committed("INSERT INTO carts (customer_id) VALUES (2)"),
        ],
    ),
    Act(
        "A transaction of many rows",
        "It also arrives as one transaction. A reader of committed records sees all of it or nothing.",
        [
            _committed(
                "INSERT INTO products SELECT 'BOOK-' || n, 'Volume ' || n, 5 + n % 40\n"
                "    FROM generate_series(1, 5000) AS n"
            )
        ],
    ),
)

ORDER = "INSERT INTO orders (customer_id) VALUES (2)"
ORDER_WITH_CHANNEL = "INSERT INTO orders (customer_id, channel) VALUES (2, 'web')"
ADD_COLUMN = _committed("ALTER TABLE orders ADD COLUMN channel text")
USE_COLUMN = _committed("UPDATE orders SET channel = 'phone' WHERE id = 1")
SHIP = _committed("UPDATE orders SET status = 'shipped' WHERE id = 1")


class Shop:
    """The owner of the shop, who uses one connection."""

    def __init__(self, connection: psycopg.Connection) -> None:
        """Use ``connection``, which must be in autocommit mode."""
        self._connection = connection

    def set_up(self) -> None:
        """Create the tables with their first rows, the publication, and the role that pgsluice logs in as."""
        for script in (SCHEMA, STOCK, ACCESS):
            self._connection.execute(script.encode())

    def run(self, transactions: Sequence[Transaction]) -> int:
        """Run the transactions. Return the id of the last one, which arrives in Kafka after all others."""
        xid = 0
        for transaction in transactions:
            with self._connection.transaction(force_rollback=transaction.rolled_back):
                for statement in transaction.statements:
                    self._connection.execute(statement.encode())
                for row in self._connection.execute("SELECT pg_current_xact_id()::text::bigint"):
                    (xid,) = row
        return xid

    def rows(self, table: str) -> list[dict[str, object]]:
        """Return a table's rows in descending order of their keys, with jsonb as text."""
        statement = sql.SQL("SELECT * FROM {} ORDER BY ({}) DESC")
        key = sql.SQL(", ").join(map(sql.Identifier, KEYS[table]))
        with self._connection.cursor(row_factory=dict_row) as cursor:
            cursor.adapters.register_loader("jsonb", TextLoader)
            return cursor.execute(statement.format(sql.Identifier(table), key)).fetchall()


class Visitors:
    """Customers who continuously place orders through one connection. Each order is a transaction.

    with Visitors(connect, ORDER) as visitors: visitors.wait_for(20)
    """

    def __init__(self, connect: Callable[[], psycopg.Connection], statement: str) -> None:
        """Prepare the work. ``connect`` opens the connection, and ``statement`` is the SQL that places an order."""
        self._connect = connect
        self._executor = ThreadPoolExecutor(1)
        self._leaving = False
        self.statement = statement
        """The SQL that places an order. A change takes effect with the next order."""
        self.orders = 0
        """The number of orders committed so far."""

    def __enter__(self) -> Self:
        self._work: Future[None] = self._executor.submit(self._place_orders)
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving = True
        self._executor.shutdown()

    def wait_for(self, orders: int) -> None:
        """Wait until ``orders`` more orders are committed. If placing orders has failed, raise the error."""
        target = self.orders + orders
        while self.orders < target:
            if self._work.done():
                self._work.result()
            time.sleep(POLL_S)

    def _place_orders(self) -> None:
        with self._connect() as connection:
            while not self._leaving:
                connection.execute(self.statement.encode())
                self.orders += 1
                time.sleep(POLL_S)
