"""Checks that PostgreSQL accepts the statements of docs/postgresql.md."""

import re
from pathlib import Path

import psycopg

from sandbox.postgres import Postgres

MANUAL = Path(__file__).parents[2] / "docs" / "postgresql.md"


def test_postgresql_accepts_the_statements_of_the_manual() -> None:
    blocks = re.findall(r"```sql\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    assert blocks
    with Postgres(18) as server, server.connect() as connection:
        _prepare(connection)
        for block in blocks:
            for statement in re.sub(r"--.*", "", block).split(";"):
                if statement.strip():
                    connection.execute(statement.encode())


def _prepare(connection: psycopg.Connection) -> None:
    connection.execute("CREATE SCHEMA sales")
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, state text)")
    connection.execute("CREATE TABLE customers (id int PRIMARY KEY)")
    connection.execute("CREATE TABLE audit (message text)")
    connection.execute("CREATE TABLE measurements (at timestamptz) PARTITION BY RANGE (at)")
    connection.execute("CREATE TABLE legacy (number int NOT NULL UNIQUE)")
    connection.execute("SELECT pg_create_logical_replication_slot('pgsluice_shop', 'pgoutput')")
