"""Images and containers on a machine without a Docker engine: podman from Debian's packages, unpacked into the cache.

Nothing is installed on the machine. The official images of Python are not available offline. Images with the same names
are made from Debian's packages as stand-ins. podman serves Docker's API, so the commands of the documentation run
unchanged.

https://docs.podman.io/en/latest/markdown/podman-system-service.1.html
"""

import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.artifacts import cache_root, make_entry, output_of
from sandbox.errors import ServerError

PACKAGES = ("buildah", "podman", "runc", "mmdebstrap")

NETWORK_PACKAGES = ("netavark", "aardvark-dns")
"""The packages for networks between containers, and for their name resolution."""

SUITE = "trixie"
PYTHON = "3.13"
"""The version of Python in this release of Debian."""

BASES = {
    f"python:{PYTHON}-slim": ("ca-certificates", "python3", "python3-venv"),
    f"python:{PYTHON}": ("ca-certificates", "python3", "python3-venv", "python3-dev", "gcc", "libc6-dev"),
}
"""The base images for Dockerfiles, with their Debian packages."""

STAND_INS = "stand-ins"
"""The base image of the stand-ins for server images that are not available offline."""

SYSTEMD = "systemd"
"""The root file system of a host under systemd. It is not an image. :mod:`sandbox.host` starts the host."""

_OTHERS = {
    STAND_INS: ("openjdk-21-jre-headless", "postgresql-client"),
    SYSTEMD: ("ca-certificates", "dbus", "libnss-systemd", "python3", "systemd", "systemd-sysv"),
}

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
"""The certificates that an image trusts, in one file."""

_OWN_CERTIFICATES = Path("/usr/local/share/ca-certificates")
"""The certificates that were added on this machine. The images also get them, because there may be a proxy in front of
the package index."""

START_S = 120.0

PARENT = Path("/tmp")  # noqa: S108 - see below
"""The directory of the engines. Its path must be short. If it has more than about fifty bytes, the paths of a
container's sockets do not fit into a socket address, and processes that wait for the container do not notice its
end."""


def missing() -> str | None:
    """Return the reason why containers cannot run here, or None if they can."""
    if os.geteuid() != 0:
        return "only root can make the base images"
    if platform.machine() != "x86_64":
        return f"the base images are made for x86_64, but this machine is {platform.machine()}"
    absent = [tool for tool in ("apt-get", "dpkg", "docker") if shutil.which(tool) is None]
    return f"{', '.join(absent)} not found" if absent else None


def tools() -> Path:
    """Return the directory with the programs of podman. Fetch them if necessary."""
    return make_entry(cache_root(), "containers", _unpack_tools)


def network_tools() -> Path:
    """Return the directory with the programs for networks. Fetch them if necessary."""
    return make_entry(cache_root(), "container-networks", _unpack_network_tools)


def base(image: str) -> Path:
    """Return the root file system of a stand-in. Create it if necessary."""
    make = _make_base if image in BASES else _make_other
    return make_entry(cache_root(), f"base-{image.replace(':', '-')}", lambda entry: make(image, entry))


def prepare() -> Path:
    """Create in advance what engines and hosts need, because its creation takes too long for a test.

    Return the directory with the programs of podman.
    """
    network_tools()
    for image in (*BASES, *_OTHERS):
        base(image)
    return tools()


class Engine:
    """podman with its own images and containers, which serves Docker's API on a socket."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="engine-", dir=PARENT))
        self.socket = self._directory / "docker.sock"
        self._variables = _configure(self._directory, tools(), network_tools())
        self._service: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Import the base images, and serve Docker's API. Containers share the machine's network."""
        for image in BASES:
            self.import_base(image)
        self._service = self._serve(self.socket)

    def stop(self) -> None:
        """Remove all containers and images, and stop. Unmount what an interrupted build has left mounted."""
        self.podman("rm", "--all", "--force", "--time", "0")
        if self._service is not None:
            self._service.terminate()
            self._service.wait()
        places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for place in reversed([place for place in places if Path(place).is_relative_to(self._directory)]):
            output_of(["umount", "--lazy", place])
        shutil.rmtree(self._directory)

    @contextmanager
    def isolated(self) -> Iterator["Isolated"]:
        """Serve Docker's API on a second socket.

        Containers that are created through this socket may have networks and publish ports. They are in a separate
        network namespace, so the machine's ports and firewall do not change.
        """
        socket = self._directory / "isolated.sock"
        service = self._serve(socket, "unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
        try:
            yield Isolated({**self.client_variables, "DOCKER_HOST": f"unix://{socket}"}, service.pid)
        finally:
            service.terminate()
            service.wait()

    def _serve(self, socket: Path, *prefix: str) -> subprocess.Popen[bytes]:
        command = [*prefix, "podman", "system", "service", "--time", "0", f"unix://{socket}"]
        service = subprocess.Popen(command, env=self._variables)
        deadline = time.monotonic() + START_S
        while not socket.exists():
            if time.monotonic() > deadline or service.poll() is not None:
                raise ServerError("podman does not answer")
            time.sleep(0.05)
        return service

    def why_not(self) -> str | None:
        """Return why a container cannot run to its end here, or None if it can. This runs a container for a second."""
        try:
            client = self.run(next(iter(BASES)), "sleep", "1", timeout=START_S)
        except subprocess.TimeoutExpired:
            states = self.podman("ps", "--all", "--format", "{{.Status}}").strip()
            return f"docker run has not ended after {START_S:g} s; the state of its container is: {states}"
        return f"docker run failed: {client.stderr.strip()}" if client.returncode != 0 else None

    def build(self, directory: Path, image: str, *options: str) -> None:
        """Build ``image`` from the Dockerfile in ``directory``, or from the file that the ``options`` name."""
        command = ["buildah", "build", "--pull-never", "--network", "host", "--format", "docker", "--layers"]
        self._run([*command, *options, "--tag", image, "."], cwd=directory)

    def run(self, *words: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a container on the machine's network with Docker's client. ``words`` are options, image and command."""
        command, variables = ["docker", "run", "--network", "host", *words], {**os.environ, **self.client_variables}
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout, check=False)

    def podman(self, *arguments: str) -> str:
        """Run a podman command, and return its output."""
        return self._run(["podman", *arguments])

    def copy_from(self, image: str, path: str, directory: Path) -> None:
        """Copy ``path`` from an image into ``directory``."""
        directory.mkdir(parents=True, exist_ok=True)
        container = self.podman("create", image).strip()
        self.podman("cp", f"{container}:{path}", str(directory))
        self.podman("rm", container)

    def succeeds(self, *arguments: str) -> bool:
        """Return whether a podman command ends with exit code 0."""
        command = ["podman", *arguments]
        return subprocess.run(command, env=self._variables, capture_output=True, check=False).returncode == 0

    @property
    def client_variables(self) -> dict[str, str]:
        """The environment variables with which Docker's own client reaches this engine."""
        return {"DOCKER_HOST": f"unix://{self.socket}", "DOCKER_CONFIG": str(self._directory)}

    def import_base(self, image: str) -> None:
        """Create an image from the root file system of a stand-in."""
        container = self._run(["buildah", "from", "scratch"]).strip()
        self._run(["buildah", "add", "--quiet", container, str(base(image)), "/"])
        path = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = [f"PATH={path}", "LANG=C.UTF-8", f"SSL_CERT_FILE={CERTIFICATES}"]
        self._run(["buildah", "config", "--cmd", "python3", *(f"--env={one}" for one in variables), container])
        self._run(["buildah", "commit", "--quiet", "--rm", container, f"localhost/{image}"])

    def _run(self, command: Sequence[str], cwd: Path | None = None) -> str:
        return output_of(command, directory=cwd, variables=self._variables)


@dataclass(frozen=True, slots=True)
class Isolated:
    """The environment variables for clients, and the pid of a process in the namespace that has the published ports."""

    variables: Mapping[str, str]
    pid: int


def _configure(directory: Path, programs: Path, networks: Path) -> dict[str, str]:
    """Write the configuration files of podman and buildah. Return the environment variables of their processes."""
    policy = directory / ".config" / "containers" / "policy.json"  # HOME is ``directory``
    policy.parent.mkdir(parents=True)
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    (directory / "registries.conf").touch()  # it is empty, so short names mean local images
    (directory / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\nrunroot = "{directory}/run"\ngraphroot = "{directory}/graph"\n'
        # Without this option, every program that reads the images mounts the images' directory, and leaves it mounted.
        '[storage.options.overlay]\nskip_mount_home = "true"\n'
    )
    runc = f"{programs}/usr/sbin/runc"
    variables = {
        "PATH": f"{networks}/bin:{_path(programs)}",
        "HOME": str(directory),
        "LD_LIBRARY_PATH": f"{programs}/usr/lib/x86_64-linux-gnu",
        "XTABLES_LIBDIR": f"{programs}/usr/lib/x86_64-linux-gnu/xtables",  # iptables needs it for networks
        "CONTAINERS_STORAGE_CONF": f"{directory}/storage.conf",
        "CONTAINERS_REGISTRIES_CONF": f"{directory}/registries.conf",
        "CONTAINERS_CONF": f"{directory}/containers.conf",
        "BUILDAH_ISOLATION": "oci",
        "BUILDAH_RUNTIME": runc,
        "DISABLE_HC_SYSTEMD": "true",  # health checks would need timers of systemd
    }
    # When a container has ended, conmon starts podman to clean up. podman gets only the variables in conmon_env_vars.
    inherited = ", ".join(f'"{name}={value}"' for name, value in variables.items())
    (directory / "containers.conf").write_text(
        '[containers]\nlog_driver = "k8s-file"\nnetns = "host"\n'
        'default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        # Engines that run at the same time must not share locks or the state of ended containers.
        f'tmp_dir = "{directory}/libpod"\nlock_type = "file"\n'
        f'conmon_path = ["{programs}/usr/bin/conmon"]\nconmon_env_vars = [{inherited}]\n'
        f'helper_binaries_dir = ["{networks}/usr/lib/podman"]\n'
        f'[engine.runtimes]\nrunc = ["{runc}"]\n'
        f'[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "{directory}/networks"\n'
    )
    return variables


def _path(programs: Path) -> str:
    return f"{programs}/usr/bin:{programs}/usr/sbin:{os.environ['PATH']}"


def _unpack_tools(entry: Path) -> None:
    wanted = output_of(["apt-get", "--print-uris", "install", "--yes", "--no-install-recommends", *PACKAGES])
    names = [line.split()[1].split("_")[0] for line in wanted.splitlines() if line.startswith("'")]
    _unpack(names or PACKAGES, entry)


def _unpack_network_tools(entry: Path) -> None:
    _unpack(NETWORK_PACKAGES, entry)
    (entry / "bin").mkdir()
    for name in ("iptables", "ip6tables"):
        (entry / "bin" / name).symlink_to(tools() / "usr/sbin/xtables-nft-multi")


def _unpack(packages: Sequence[str], entry: Path) -> None:
    archives = entry / "archives"
    archives.mkdir()
    output_of(["apt-get", "download", *packages], directory=archives)
    for archive in sorted(archives.glob("*.deb")):
        output_of(["dpkg", "-x", str(archive), str(entry)])
    shutil.rmtree(archives)


def _make_base(image: str, entry: Path) -> None:
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{what}/*" for what in ("doc", "man", "locale", "info")]
    trust = [
        f"--customize-hook=copy-in {_OWN_CERTIFICATES} {_OWN_CERTIFICATES.parent}",
        '--customize-hook=chroot "$1" update-ca-certificates',
    ]
    _debootstrap(BASES[image], entry, [*left_out, *trust])
    _link_python(entry)
    # As in the official images, the standard library has no compiled files.
    for compiled in [*(entry / "usr/lib").rglob("__pycache__")]:
        shutil.rmtree(compiled)
    (entry / "etc/pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\n")


def _make_other(image: str, entry: Path) -> None:
    _debootstrap(_OTHERS[image], entry)
    if "python3" in _OTHERS[image]:
        _link_python(entry)


def _link_python(entry: Path) -> None:
    """Link Python to the path that it has in the official images."""
    for name in ("python3", "python"):
        (entry / "usr/local/bin" / name).symlink_to(f"/usr/bin/python{PYTHON}")


def _debootstrap(packages: Sequence[str], entry: Path, options: Sequence[str] = ()) -> None:
    command = ["mmdebstrap", "--quiet", "--variant=minbase", *options, f"--include={','.join(packages)}"]
    output_of([*command, SUITE, str(entry)], variables={**os.environ, "PATH": _path(tools())})
