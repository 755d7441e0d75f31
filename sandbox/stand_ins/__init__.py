"""Images with the names, paths and variables of official images that are not available offline.

These images are built from the sandbox's PostgreSQL and Kafka. They have only those features of the official images
that ``deploy/compose.yaml`` uses.

https://hub.docker.com/_/postgres
https://hub.docker.com/r/apache/kafka
"""

import shutil
from pathlib import Path

from sandbox.account import current_account
from sandbox.artifacts import fetch
from sandbox.containers import STAND_INS, Engine
from sandbox.installation import installation

_POSTGRES_VERSION = 18


def build(engine: Engine, directory: Path, postgres: str, kafka: str) -> None:
    """Build two images in ``directory``. The arguments ``postgres`` and ``kafka`` are the names of the images."""
    engine.import_base(STAND_INS)
    servers = {"postgres": installation(_POSTGRES_VERSION, current_account()), "kafka": fetch("kafka")}
    for kind, image in (("postgres", postgres), ("kafka", kafka)):
        context = directory / kind
        shutil.copytree(Path(__file__).with_name(kind), context)
        shutil.copytree(servers[kind], context / "server", symlinks=True)
        engine.build(context, image)
