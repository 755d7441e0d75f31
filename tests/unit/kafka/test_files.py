from pathlib import Path

import pytest

from pgsluice.errors import SinkUnavailable
from pgsluice.kafka.files import ClientFiles


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    file = tmp_path / "ca.crt"
    file.write_text("first")
    return file


def test_files_that_have_changed_end_the_session(authority: Path) -> None:
    files = ClientFiles({"ssl.ca.location": str(authority), "client.id": "x"})
    files.check()
    assert not files.changed
    authority.write_text("second one")
    assert files.changed
    with pytest.raises(SinkUnavailable, match="A new session begins, which reads them"):
        files.check()
    ClientFiles({"ssl.ca.location": str(authority)}).check()


def test_a_changed_link_is_noticed(authority: Path) -> None:
    """Kubernetes replaces the files of a Secret by changing a link."""
    link, other = authority.with_name("link"), authority.with_name("other")
    other.write_text("other")
    link.symlink_to(authority)
    files = ClientFiles({"ssl.ca.location": str(link)})
    link.unlink()
    assert not files.changed, "a missing file is not a change"
    link.symlink_to(other)
    assert files.changed


def test_without_files_nothing_changes() -> None:
    assert not ClientFiles({"ssl.ca.pem": "text"}).changed
