import os
import shutil
from pathlib import Path

import pytest

from sandbox.account import can_enter, current_account, environment, run_as, server_account
from sandbox.errors import ServerError
from sandbox.process import make_directory

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as another user")


def test_servers_never_run_as_root() -> None:
    assert server_account().uid != 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root runs servers as another user")
def test_an_ordinary_user_runs_servers_itself() -> None:
    assert server_account() == current_account()


@as_root
def test_commands_run_under_the_account_without_groups_of_root() -> None:
    account = server_account()
    directory = make_directory(account)
    answer = directory / "answer"
    answer.touch()
    answer.chmod(0o666)
    run_as(account, ["/bin/sh", "-c", '{ id -u; id -g; id -G; } > "$0"', answer])
    assert answer.read_text().split() == [str(account.uid), str(account.gid), str(account.gid)]
    shutil.rmtree(directory)


def test_a_command_that_fails_is_reported_with_its_output() -> None:
    with pytest.raises(ServerError, match=r"(?s)sh -c .* failed:.*no good"):
        run_as(current_account(), ["/bin/sh", "-c", "echo no good >&2; exit 3"])


def test_accounts_with_the_right_can_enter_a_directory(tmp_path: Path) -> None:
    assert can_enter(current_account(), tmp_path)
    assert not can_enter(current_account(), tmp_path / "missing")


@as_root
def test_a_directory_below_a_closed_one_cannot_be_entered(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "open").mkdir(parents=True)
    closed.chmod(0o700)
    assert not can_enter(server_account(), closed / "open")


def test_the_environment_has_no_variables_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1m")
    assert environment().keys() == {"PATH", "LC_ALL", "TZ"}
