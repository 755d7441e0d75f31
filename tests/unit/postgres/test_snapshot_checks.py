import pytest

from pgsluice.finding import Finding, Verdict
from pgsluice.postgres.catalog import LoadableTable
from pgsluice.postgres.snapshot_checks import _keyless, _problems, _summary
from pgsluice.snapshot import TableSize

ROLE = "pg sluice"


def table(name: str, oid: int = 1, **kinds: object) -> LoadableTable:
    usual: dict[str, object] = {"is_readable": True, "is_hidden": False, "is_trusted": True}
    usual |= {"has_event_key": True, "key": ("id",)}
    return LoadableTable(oid, "public", name, **(usual | kinds))  # type: ignore[arg-type]


def test_each_problem_has_one_finding_for_all_its_tables() -> None:
    tables = [
        *(table(f"forbidden{number}", is_readable=False) for number in range(1000)),
        table("hidden", is_hidden=True),
        table("good"),
    ]
    rights, row_security = _problems(tables, ROLE)
    assert rights.detail.endswith("public.forbidden19 and 980 more")
    assert rights.remedy.startswith('GRANT USAGE ON SCHEMA "public" TO "pg sluice"; GRANT SELECT ON "public".')
    assert 'from role "pg sluice"' in row_security.detail
    assert "BYPASSRLS" in row_security.remedy
    assert {rights.verdict, row_security.verdict} == {Verdict.WARN}
    assert _problems([table("good")], ROLE) == []


def test_the_cost_of_tables_without_a_key_is_reported() -> None:
    small, large = [table("small", 1, key=()), table("empty", 2, key=())], [table("large", 3, key=())]
    sizes = {1: TableSize(10_000_000, 2**28), 2: TableSize(), 3: TableSize(10**9, 2**32)}
    keys, too_large = _keyless(small, large, sizes)
    assert "(256.0 MiB at most, about 4 minutes): public.small, public.empty" in keys.detail
    assert too_large.detail.endswith("no key and are larger than snapshot.without_key_max: public.large")
    assert (keys.verdict, too_large.verdict) == (Verdict.WARN, Verdict.WARN)
    assert _keyless([], [], {}) == []


def summary(sizes: dict[int, TableSize], skipped: int = 0, rows_per_s: int | None = None) -> Finding:
    tables = [table(f"t{oid}", oid) for oid in sizes]
    return _summary(tables, skipped, sizes, rows_per_s)


def test_the_summary_names_the_largest_table() -> None:
    found = summary({1: TableSize(10, 8192), 2: TableSize(1_000_000, 3 * 2**30)}, skipped=3)
    assert found.verdict is Verdict.OK
    assert found.detail == (
        "2 tables can be loaded: about 1000010 rows and 3.0 GiB as of the last ANALYZE, the largest is public.t2 "
        "(1000000 rows); loading takes about 4 minutes; tables left out by the settings: 3"
    )
    assert summary({}).detail == "there is no table to load"


@pytest.mark.parametrize(
    ("size", "rows_per_s", "words"),
    [
        (TableSize(10, 8192), None, "8 KiB as of the last ANALYZE, the largest is public.t1 (10 rows); loading takes"),
        (TableSize(4_000_000, 2**20), None, "1.0 MiB as of"),
        (TableSize(4_000_000, 2**20), None, "loading takes a minute or two"),
        (TableSize(360_000, 2**20), 50, "loading takes about 2 hours"),
        (TableSize(10**11, 2**40), None, "loading takes about 29 days"),
    ],
)
def test_the_duration_of_the_loads_is_estimated(size: TableSize, rows_per_s: int | None, words: str) -> None:
    assert words in summary({1: size}, rows_per_s=rows_per_s).detail
