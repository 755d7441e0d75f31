import pytest

from pgsluice.errors import TableUnreadable
from pgsluice.pipeline.trust import check_trusted
from pgsluice.relation import PublishedName

ORDERS = PublishedName(16384, "public", "orders", columns=2, is_trusted=False)


def test_a_table_is_read_if_its_owner_is_trusted() -> None:
    check_trusted(ORDERS, is_trusted=True)


def test_a_table_of_another_owner_is_not_read() -> None:
    with pytest.raises(TableUnreadable, match=r"public\.orders.* is left out until tables\.include"):
        check_trusted(ORDERS, is_trusted=False)
