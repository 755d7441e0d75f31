"""Files with passwords and keys that other users of the machine can read.

``pgsluice run`` logs the finding and ``pgsluice check`` prints it. The rule is the one of libpq for private keys: a
file of root's may be readable for its group, as Kubernetes mounts secrets with ``fsGroup``. Any other file may be
readable for its owner only.

https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-CLIENTCERT
"""

import stat
from collections.abc import Iterator
from pathlib import Path as FilePath

from pgsluice.config import libpq
from pgsluice.config.keys import Kind, all_keys
from pgsluice.config.loading import Sources
from pgsluice.config.model import Settings
from pgsluice.config.problems import Path, is_secret
from pgsluice.config.sources import Layer
from pgsluice.finding import Finding, Verdict

_DSN = ("postgres", "dsn")

_KEY_FILES = ("ssl.key.location", "ssl.keystore.location", "sasl.kerberos.keytab")
"""Properties of librdkafka that name files with keys."""


def findings(settings: Settings, sources: Sources) -> list[Finding]:
    """Return a warning that names every file with a secret that others can read, nothing when there is none.

    ``settings`` are those that ``sources`` hold.
    """
    exposed = [name for name in dict.fromkeys(_files(settings, sources)) if _is_exposed(name)]
    if not exposed:
        return []
    detail = f"other users can read or change {', '.join(exposed)}, with a password or key in it"
    remedy = "chmod 600, or for a file of root's 640; for a secret in Kubernetes, set defaultMode: 0440 and fsGroup."
    return [Finding("secret files", Verdict.WARN, detail, remedy)]


def _files(settings: Settings, sources: Sources) -> Iterator[str]:
    """Return the files that secrets were read from, or will be."""
    if any(_secrets(sources.file)):
        yield sources.file.name
    yield from (sources.secrets.place(path) for path in _secrets(sources.secrets))
    registry, client = settings.schema_registry, settings.kafka.client
    named = (settings.postgres.password_file, registry.password_file, registry.token_file, registry.key_file)
    yield from (name for name in named if name is not None)
    yield from (str(client[name]) for name in _KEY_FILES if name in client)


def _secrets(layer: Layer) -> Iterator[Path]:
    """Return where in ``layer`` a secret stands."""
    for path, key in all_keys().items():
        value = layer.get(path)
        if key.kind is Kind.TABLE and isinstance(value, dict):
            yield from ((*path, name) for name in value if is_secret(name))
        elif key.kind is Kind.SECRET and value is not None and (path != _DSN or _has_password(str(value))):
            yield path


def _has_password(dsn: str) -> bool:
    try:
        return any(map(is_secret, libpq.parse_dsn(dsn)))
    except ValueError:  # another source takes precedence, so nobody has found out
        return True


def _is_exposed(name: str) -> bool:
    try:
        status = FilePath(name).stat()
    except OSError:  # whoever reads it will say so
        return False
    others = stat.S_IRWXO if status.st_uid == 0 else stat.S_IRWXO | stat.S_IRWXG
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & others)
