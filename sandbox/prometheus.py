"""Prometheus and promtool from Debian's package, which is unpacked into the cache. Nothing is installed.

    with Prometheus("shop", [daemon.url], rules=ALERTS) as prometheus: print(prometheus.query("pgsluice_lag_seconds"))

The tests of the alerts and of the dashboard use this module.

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

import json
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

from sandbox.account import current_account
from sandbox.artifacts import cache_root, make_entry, output_of
from sandbox.errors import FetchError, ServerError
from sandbox.ports import ReservedPort
from sandbox.process import Server, make_directory

PACKAGE = "prometheus"

HOST = "127.0.0.1"
START_TIMEOUT_S = 120
HTTP_TIMEOUT_S = 10
HTTP_OK = 200
INTERVAL_S = 1
"""The interval of scrapes and rule evaluations. It is short, so that tests need not wait for a minute."""


def missing() -> str | None:
    """Return the reason why Prometheus cannot run here, or None if it can. Fetch it if necessary."""
    absent = [tool for tool in ("apt-get", "dpkg") if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} not found"
    try:
        tools()
    except FetchError as error:
        return str(error)
    return None


def tools() -> Path:
    """Return the directory with the programs. Fetch them if necessary."""
    return make_entry(cache_root(), "prometheus", _unpack)


def promtool(*arguments: str) -> str:
    """Return the output of promtool. Raise ServerError with this output if promtool reports a problem."""
    command = [str(tools() / "usr/bin/promtool"), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise ServerError(f"promtool {' '.join(arguments)} reports a problem:\n{found.stdout}{found.stderr}")
    return found.stdout


class Prometheus:
    """A server that scrapes ``urls`` under the job name ``job``. Its data is removed when the context ends."""

    def __init__(
        self,
        job: str,
        urls: Sequence[str],
        rules: Path | None = None,
        labels: Sequence[Mapping[str, str]] = ({},),
    ) -> None:
        """Prepare a server that scrapes ``urls``, and evaluates the rules in the file ``rules``.

        Each element of ``labels`` is a set of labels. For each set, the server scrapes all URLs once per interval, and
        adds the set's labels to the time series.
        """
        self._job = job
        self._urls = urls
        self._rules = rules
        self._labels = labels
        self._context = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as context:
            port = ReservedPort.any()
            context.callback(port.release)
            self._address = f"{HOST}:{port.number}"
            directory = make_directory(current_account())
            context.callback(shutil.rmtree, directory)
            context.callback(self._start(directory).dismiss)
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an instant query: a list of time series with labels and last values."""
        found: list[dict[str, Any]] = self._get("query", {"query": expression})["result"]
        return found

    def alerts(self) -> dict[str, str]:
        """Return the state (pending or firing) of each active alert by name."""
        return {one["labels"]["alertname"]: one["state"] for one in self._get("alerts")["alerts"]}

    def firing(self, name: str) -> list[dict[str, Any]]:
        """Return the alerts of this name that are firing, with labels and annotations."""
        found = self._get("alerts")["alerts"]
        return [one for one in found if one["labels"]["alertname"] == name and one["state"] == "firing"]

    def _start(self, directory: Path) -> Server:
        configuration = directory / "prometheus.yml"
        configuration.write_text(json.dumps(self._configuration()))  # JSON is also YAML
        command = [
            str(tools() / "usr/bin/prometheus"),
            f"--config.file={configuration}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={self._address}",
            "--log.level=warn",
        ]
        log = directory / "prometheus.log"
        server = Server(command, directory, log, current_account(), signal.SIGKILL, {"GOMAXPROCS": "1"})
        server.wait_until(self._is_ready, START_TIMEOUT_S)
        return server

    def _configuration(self) -> dict[str, Any]:
        interval = f"{INTERVAL_S}s"
        targets = [urlsplit(url).netloc for url in self._urls]
        groups = [{"targets": targets, "labels": labels} for labels in self._labels]
        return {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [] if self._rules is None else [str(self._rules)],
            "scrape_configs": [{"job_name": self._job, "static_configs": groups}],
        }

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"http://{self._address}/-/ready", timeout=HTTP_TIMEOUT_S) as answer:
                return bool(answer.status == HTTP_OK)
        except OSError:
            return False

    def _get(self, what: str, parameters: Mapping[str, str] | None = None) -> dict[str, Any]:
        url = f"http://{self._address}/api/v1/{what}?{urlencode(parameters or {})}"
        try:
            with urlopen(url, timeout=HTTP_TIMEOUT_S) as answer:
                body = json.load(answer)
        except HTTPError as error:
            raise ServerError(f"Prometheus refuses {url}: {error.read().decode(errors='replace')}") from error
        data: dict[str, Any] = body["data"]
        return data


def _unpack(entry: Path) -> None:
    output_of(["apt-get", "download", PACKAGE], directory=entry)
    (archive,) = entry.glob("*.deb")
    output_of(["dpkg", "-x", str(archive), str(entry)], directory=entry)
    archive.unlink()
