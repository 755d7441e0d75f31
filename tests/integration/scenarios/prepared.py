"""Scenarios with prepared transactions. Their rows must arrive once, and only after the commit.

The setting ``two_phase`` is on for some versions of the server, and off for the others. Consumers see no difference.
"""

from collections.abc import Callable
from functools import partial

from tests.support.scenario import Found, Place, Scenario, Work

LARGE_ROWS = 4000
"""The number of rows of a large transaction. Its rows have 100 characters, so it exceeds delivery.cut_bytes, and the
server streams it."""


def _gid(place: Place, name: str) -> str:
    """Return a gid that is unique in the whole server."""
    return f"{place.database.name} {place.schema} {name}"


def _prepare(*statements: str, gid: str = "") -> Callable[[Place], None]:
    """Return a function that runs the statements in one transaction, and prepares the transaction."""

    def work(place: Place) -> None:
        with place.connect() as connection:
            connection.execute("BEGIN")
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PREPARE TRANSACTION '{_gid(place, gid)}'")

    return work


def _end(how: str, gid: str, place: Place) -> None:
    with place.connect() as connection:
        connection.execute(f"{how} PREPARED '{_gid(place, gid)}'")


def _commit(gid: str = "") -> Callable[[Place], None]:
    return partial(_end, "COMMIT", gid)


def _roll_back(gid: str = "") -> Callable[[Place], None]:
    return partial(_end, "ROLLBACK", gid)


def _all(*works: Work) -> Callable[[Place], None]:
    def work(place: Place) -> None:
        for one in works:
            if callable(one):
                one(place)
            else:
                place.run(one)

    return work


def _ids(*expected: int) -> Callable[[Found], None]:
    def check(found: Found) -> None:
        assert found.values("id") == list(expected)

    return check


def _large_and_whole(found: Found) -> None:
    rows = [event for event in found.events() if event["after"]["id"] <= LARGE_ROWS]
    assert [event["seq"] for event in rows] == list(range(LARGE_ROWS))
    assert len({event["lsn"] for event in rows}) == 1


TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
FILL = f"INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, {LARGE_ROWS}) n"

SCENARIOS = [
    Scenario(
        "prepared and committed while down",
        "If a prepared transaction is committed while the daemon is down, the next session delivers it.",
        setup=TABLE,
        work=_all(_prepare("INSERT INTO t VALUES (1)"), "INSERT INTO t VALUES (2)"),
        while_down=_all(_commit(), "INSERT INTO t VALUES (3)"),
        check=_ids(2, 1, 3),
    ),
    Scenario(
        "prepared while down",
        "If a transaction is prepared while the daemon is down, the next session delivers it at its commit.",
        setup=TABLE,
        while_down=_prepare("INSERT INTO t VALUES (1)"),
        after_restart=_all("INSERT INTO t VALUES (2)", _commit()),
        check=_ids(2, 1),
    ),
    Scenario(
        "prepared and rolled back",
        "A prepared transaction that is rolled back causes no events, no matter when it is rolled back.",
        setup=TABLE,
        work=_all(
            *(_prepare(f"INSERT INTO t VALUES ({n})", gid=str(n)) for n in (1, 2, 3)),
            _roll_back("1"),
            "INSERT INTO t VALUES (4)",
        ),
        while_down=_roll_back("2"),
        after_restart=_roll_back("3"),
        check=_ids(4),
    ),
    Scenario(
        "prepared and large",
        "A large prepared transaction with a rolled-back savepoint arrives as one transaction, streamed or not.",
        setup=TABLE,
        work=_prepare(
            FILL,
            "SAVEPOINT s",
            "UPDATE t SET v = repeat('y', 100)",
            "ROLLBACK TO s",
            "SAVEPOINT s",
            f"INSERT INTO t VALUES ({LARGE_ROWS + 1})",
            "ROLLBACK TO s",
        ),
        after_restart=_commit(),
        check=_large_and_whole,
    ),
    Scenario(
        "a gid used again",
        "A gid can be used again immediately for another transaction.",
        setup=TABLE,
        work=_all(
            _prepare("INSERT INTO t VALUES (1)"),
            _roll_back(),
            _prepare("INSERT INTO t VALUES (2)"),
            _commit(),
            _prepare("INSERT INTO t VALUES (3)"),
        ),
        after_restart=_commit(),
        check=_ids(2, 3),
    ),
    Scenario(
        "prepared without changes",
        "Prepared transactions that only lock rows, or only change unpublished tables, cause no events.",
        setup=f"{TABLE}; CREATE TABLE silent (id int PRIMARY KEY); INSERT INTO t VALUES (1);",
        work=_all(
            _prepare("SELECT FROM t FOR UPDATE", gid="locks"),
            _commit("locks"),
            _prepare("INSERT INTO silent VALUES (1)", gid="silent"),
            _commit("silent"),
            _prepare("SELECT FROM t FOR UPDATE", gid="later"),
        ),
        after_restart=_all(_commit("later"), "INSERT INTO t VALUES (2)"),
        contents={"t": 'SELECT * FROM "prepared without changes".t WHERE id = 2'},
        check=_ids(2),
    ),
    Scenario(
        "prepared with another shape",
        "A prepared transaction alters, fills and truncates a table.",
        since=11,
        lacking="TRUNCATE is replicated from PostgreSQL 11 on",
        setup=f"{TABLE}; INSERT INTO t VALUES (1, 'a')",
        contents={"t": 'SELECT * FROM "prepared with another shape".t WHERE id > 2'},
        work=_prepare(
            "INSERT INTO t VALUES (2, 'b')",
            "ALTER TABLE t ADD more int DEFAULT 7",
            "TRUNCATE t",
            "INSERT INTO t VALUES (3, 'c', 8)",
        ),
        after_restart=_all(_commit(), "INSERT INTO t VALUES (4, 'd', 9)"),
    ),
    Scenario(
        "many prepared at once",
        "The order in which several prepared transactions end differs from that in which they began.",
        setup=TABLE,
        work=_all(
            *(_prepare(f"INSERT INTO t VALUES ({n})", gid=str(n)) for n in (1, 2, 3, 4)),
            _commit("3"),
            "INSERT INTO t VALUES (5)",
        ),
        while_down=_commit("1"),
        after_restart=_all(_commit("4"), _commit("2")),
        check=_ids(3, 5, 1, 4, 2),
    ),
    Scenario(
        "prepared with odd names",
        "A gid can be any text.",
        setup=TABLE,
        work=_all(_prepare("INSERT INTO t VALUES (1)", gid='"% \\ é'), _commit('"% \\ é')),
        check=_ids(1),
    ),
]
