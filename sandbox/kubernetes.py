"""A Kubernetes API server with etcd, but without a scheduler or nodes. It validates and stores objects. No pod runs.

    with ApiServer() as server: server.request("GET", "/version")

https://kubernetes.io/docs/reference/command-line-tools-reference/kube-apiserver/
"""

import json
import shutil
import signal
import ssl
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final, Self

from sandbox import tools
from sandbox.account import current_account
from sandbox.errors import ServerError
from sandbox.ports import ReservedPort
from sandbox.process import Server, make_directory

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 120
HTTP_TIMEOUT_S: Final = 30
HTTP_OK: Final = 200

TOKEN: Final = "sandbox"  # noqa: S105 - for a server that only this machine can reach
"""The bearer token of the server's administrator."""

RESTRICTED: Final = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/warn": "restricted",
}
"""Labels of a namespace. With them, Pod Security enforces its ``restricted`` standard on all pods."""


def missing() -> str | None:
    """Return the reason why an API server cannot run here, or None if it can."""
    if shutil.which("openssl") is None:
        return "openssl not found"
    return tools.missing("kube-apiserver") or tools.missing("etcd")


class ApiServer:
    """One server. Its data is removed when the context ends."""

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._context = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as context:
            self._ports = [ReservedPort.any() for _ in range(3)]
            for port in self._ports:
                context.callback(port.release)
            self._directory = make_directory(current_account())
            context.callback(shutil.rmtree, self._directory)
            context.callback(self._end)
            self._prepare()
            self._launch("etcd", self._etcd())
            self._launch("kube-apiserver", self._apiserver()).wait_until(self._ready, START_TIMEOUT_S)
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    @property
    def kubeconfig(self) -> Path:
        """The configuration file with which Helm and kubectl reach the server."""
        return self._directory / "kubeconfig"

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Send a request. Return the status code and the object in the answer."""
        code, text = self._request(method, path, None if body is None else json.dumps(body))
        found: dict[str, Any] = json.loads(text)
        return code, found

    def serves(self, path: str) -> bool:
        """Return whether the server serves ``path``. A custom resource is served shortly after it has been defined."""
        return self._request("GET", path)[0] == HTTP_OK

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object. Raise ServerError with the reason if the server refuses the object."""
        code, found = self.request("POST", path, body)
        if code not in {200, 201, 202}:
            raise ServerError(f"the API server refuses: {found.get('message')}")
        return found

    def create_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a namespace."""
        metadata = {"name": name, "labels": dict(labels)}
        self.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def _request(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        # The server makes its own certificate, which no client can verify.
        context = ssl._create_unverified_context()  # noqa: S323, SLF001
        connection = HTTPSConnection(HOST, self._ports[0].number, timeout=HTTP_TIMEOUT_S, context=context)
        try:
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def _ready(self) -> bool:
        try:
            return self.serves("/readyz")
        except (OSError, HTTPException):
            return False

    def _prepare(self) -> None:
        key = self._directory / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        (self._directory / "tokens.csv").write_text(f'{TOKEN},admin,1,"system:masters"\n')
        cluster = {"server": f"https://{HOST}:{self._ports[0].number}", "insecure-skip-tls-verify": True}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "sandbox",
            "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": "admin"}}],
            "clusters": [{"name": "sandbox", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
        }
        self.kubeconfig.write_text(json.dumps(document))
        self.kubeconfig.chmod(0o600)

    def _launch(self, name: str, options: Mapping[str, str]) -> Server:
        command = [str(tools.program(name)), *(f"--{option}={value}" for option, value in options.items())]
        log = self._directory / f"{name}.log"
        server = Server(
            command, self._directory, log, current_account(), signal.SIGKILL, {"HOME": str(self._directory)}
        )
        self._servers.append(server)
        return server

    def _etcd(self) -> dict[str, str]:
        clients, peers = (f"http://{HOST}:{port.number}" for port in self._ports[1:])
        return {
            "data-dir": f"{self._directory}/etcd",
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            "unsafe-no-fsync": "true",
        }

    def _apiserver(self) -> dict[str, str]:
        key = f"{self._directory}/accounts.key"
        return {
            "etcd-servers": f"http://{HOST}:{self._ports[1].number}",
            "cert-dir": f"{self._directory}/certificates",
            "bind-address": HOST,
            "secure-port": str(self._ports[0].number),
            "service-cluster-ip-range": "10.0.0.0/24",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-account-issuer": "https://kubernetes.default.svc",
            "token-auth-file": f"{self._directory}/tokens.csv",
            "authorization-mode": "RBAC",
            "disable-admission-plugins": "ServiceAccount",  # the plugin requires accounts, and no controller makes them
        }

    def _end(self) -> None:
        for server in reversed(self._servers):
            server.kill()
            server.dismiss()
        self._servers.clear()
