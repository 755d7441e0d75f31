"""Tests what the sandbox reports about tools, without installing them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import artifacts, tools


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide an empty cache. Restore the original one after the test."""
    root = tmp_path / "cache"
    monkeypatch.setenv(artifacts.CACHE_VARIABLE, str(root))
    artifacts.cache_root.cache_clear()
    yield root
    artifacts.cache_root.cache_clear()


def make(own_cache: Path, name: str) -> None:
    (entry,) = (tool.entry for tool in tools.all_tools() if tool.name == name)
    artifacts.make_entry(own_cache, entry, lambda directory: (directory / name).touch())


def test_the_api_server_is_built_only_on_request(own_cache: Path) -> None:
    assert (
        tools.missing("kube-apiserver") == "kube-apiserver is not in the cache: python -m sandbox tools kube-apiserver"
    )
    make(own_cache, "kube-apiserver")
    assert tools.missing("kube-apiserver") is None


def test_the_other_tools_need_go_until_they_are_built(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(own_cache))
    assert "Go is not on the PATH" in str(tools.missing("helm"))
    assert "Go is not on the PATH" in str(tools.lacking("kube-apiserver"))
    make(own_cache, "helm")
    assert tools.missing("helm") is None
    assert tools.lacking("helm") is None
    assert tools.program("helm") == tools.directory("helm") / "helm"


def test_every_version_is_pinned() -> None:
    versions = {tool.name: tool.version for tool in tools.all_tools()}
    assert versions.pop("etcd") == "debian"  # the version of the distribution, because any etcd 3 will do
    assert [version for version in versions.values() if not re.fullmatch(r"v?[0-9]+(\.[0-9]+)+", version)] == []
