"""An object store with the API of Amazon S3, and the jars with which Spark writes to it.

    with ObjectStore("lake") as store: print(store.endpoint)

The server is Moto, which keeps all objects in memory. pgsluice does not need it, so it is not in the lock file.

``tests/spark/test_cli.py`` covers this module.

https://docs.getmoto.org/en/latest/docs/server_mode.html
https://hadoop.apache.org/docs/stable/hadoop-aws/tools/hadoop-aws/index.html
"""

import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Final, Self

from sandbox.account import current_account
from sandbox.artifacts import cache_root, copy_dependencies, make_entry, output_of
from sandbox.ports import ReservedPort
from sandbox.process import Server, make_directory

MOTO = "5.2.5"
POM = Path(__file__).with_name("hadoop_aws.xml")

REGION = "us-east-1"
CREDENTIALS: Final[Mapping[str, str]] = {"AWS_ACCESS_KEY_ID": "sandbox", "AWS_SECRET_ACCESS_KEY": "sandbox"}
"""The variables from which clients read their credentials. The server accepts any credentials."""

HOST = "127.0.0.1"
HTTP_OK = 200
START_TIMEOUT_S = 60


def jars(hadoop: str) -> list[Path]:
    """Return the jars of the S3 client for a version of Hadoop. Fetch them if necessary, which takes minutes."""
    options = [f"-Dhadoop.version={hadoop}"]
    entry = make_entry(
        cache_root(), f"hadoop-aws-{hadoop}", lambda directory: copy_dependencies(POM, directory, options)
    )
    return sorted(entry.glob("*.jar"))


class ObjectStore:
    """A server with one empty bucket. Its objects are gone when the context ends."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self._context = ExitStack()

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return f"http://{HOST}:{self._port}"

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of a Spark session that uses the server for URLs that begin with ``s3a://``."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }

    def __enter__(self) -> Self:
        with ExitStack() as context:
            port = ReservedPort.any()
            context.callback(port.release)
            self._port = port.number
            directory = make_directory(current_account())
            context.callback(shutil.rmtree, directory)
            server = _start(self._port, directory)
            context.callback(server.dismiss)
            server.wait_until(lambda: _put(port.number, f"/{self.bucket}") == HTTP_OK, START_TIMEOUT_S)
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()


def _start(port: int, directory: Path) -> Server:
    packages = make_entry(cache_root(), f"moto-{MOTO}", _install)
    program = "import sys; from moto.server import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "-H", HOST, "-p", str(port)]
    variables = {"PYTHONPATH": str(packages)}
    return Server(command, directory, directory / "moto.log", current_account(), signal.SIGKILL, variables)


def _install(entry: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"--target={entry}"]
    output_of([*pip, f"moto[s3,server]=={MOTO}"])


def _put(port: int, path: str) -> int:
    """Return the status code of an empty PUT request, or 0 if the server does not answer yet."""
    connection = HTTPConnection(HOST, port, timeout=START_TIMEOUT_S)
    try:
        connection.request("PUT", path, headers={"Authorization": f"AWS4-HMAC-SHA256 Credential=sandbox/{REGION}/s3"})
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()
