"""Finds what is exposed to other users: secrets that they can read, files that they can change, an open HTTP port.

``pgsluice run`` logs the findings and ``pgsluice check`` prints them. The rule for files with secrets is libpq's rule
for private keys. If root owns the file, its group may read it, because Kubernetes mounts secrets this way with
``fsGroup``. Any other file may be readable only by its owner.

https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-CLIENTCERT
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path as FilePath

from pgsluice.config import libpq
from pgsluice.config.keys import Kind, all_keys
from pgsluice.config.loading import Sources
from pgsluice.config.model import Settings
from pgsluice.config.problems import Path, is_secret
from pgsluice.config.sources import Layer, variable
from pgsluice.config.transport import is_loopback
from pgsluice.finding import Finding, Verdict

_DSNS = (("postgres", "dsn"), ("snapshot", "primary"))

_KEY_FILES = ("ssl.key.location", "ssl.keystore.location", "sasl.kerberos.keytab")
"""Properties of librdkafka that name files with keys."""


def findings(settings: Settings, sources: Sources) -> list[Finding]:
    """Return a warning for each kind of exposure. ``settings`` were read from ``sources``."""
    return [*_readable(settings, sources), *_writable(sources), *_in_arguments(sources), *_port(settings, sources)]


def _readable(settings: Settings, sources: Sources) -> list[Finding]:
    exposed = [name for name in dict.fromkeys(_files(settings, sources)) if _is_exposed(name)]
    if not exposed:
        return []
    detail = f"other users can read or change {', '.join(exposed)}, which contain passwords or keys"
    remedy = "chmod 600, or 640 if root owns the file; for a secret in Kubernetes, set defaultMode: 0440 and fsGroup."
    return [Finding("secret files", Verdict.WARN, detail, remedy)]


def _writable(sources: Sources) -> Iterator[Finding]:
    """Return a warning if other users can change the settings, and so make pgsluice connect to another server."""
    read = [*sources.file.origins.values(), *sources.secrets.origins.values()]
    files = dict.fromkeys(FilePath(re.sub(r":[0-9]+$", "", origin)) for origin in read)
    around = dict.fromkeys(file.absolute().parent for file in files)
    if found := [str(path) for path in (*files, *around) if _is_writable_for_all(path)]:
        detail = f"every user can write to {', '.join(found)}, and can therefore change the settings"
        yield Finding("settings files", Verdict.WARN, detail, "chmod o-w")


def _in_arguments(sources: Sources) -> Iterator[Finding]:
    if secrets := [".".join(map(str, path)) for path in _secrets(sources.flags)]:
        detail = (
            f"{', '.join(secrets)} was given by --set: every user of the machine can see it in the list of processes"
        )
        remedy = "Use a secret file (PGSLUICE_SECRETS_DIR), password_file, or an environment variable."
        yield Finding("secrets in arguments", Verdict.WARN, detail, remedy)


def _port(settings: Settings, sources: Sources) -> Iterator[Finding]:
    """Return a warning if the settings open the port to other machines.

    An address that comes from an environment variable causes no warning, because our image sets this variable: a
    container has to listen on all addresses, and its network decides who can reach them. But if the configuration file
    sets a different address, return a warning, because the address in the file has no effect.
    """
    http, path = settings.http, ("http", "listen")
    if is_loopback(http.listen.host):
        return
    file, origin = sources.file, sources.origin(path)
    if origin == variable(path):
        written = file.get(path)
        if written is None:
            return
        if written != str(http.listen):
            detail = f"{origin} takes precedence over {file.origin(path)}, so http.listen is {http.listen}"
            remedy = (
                f"If this address is right, as in most containers, remove the line from the file. If not, set {origin} "
                "to another address. The image sets it to 0.0.0.0:8080."
            )
            yield Finding("http port", Verdict.WARN, detail, remedy)
            return
    if http.token_file is not None:
        if http.tls_cert_file is None:
            detail = f"http.listen is {http.listen}, without TLS: everybody who reads the traffic can use the token"
            yield Finding("http port", Verdict.WARN, detail, "Set http.tls_cert_file and http.tls_key_file.")
    elif not http.allowed_hosts:
        detail = (
            f"http.listen is {http.listen}, and http.allowed_hosts is empty: everybody who reaches the port can read "
            "names of tables and columns, and the settings without secrets. A web page in a browser that reaches the "
            "port can read them as well"
        )
        remedy = (
            "Set http.token_file, or listen on 127.0.0.1. If you only want to keep web pages out, set "
            "http.allowed_hosts to the host names that clients use; IP addresses are always allowed."
        )
        yield Finding("http port", Verdict.WARN, detail, remedy)


def _files(settings: Settings, sources: Sources) -> Iterator[str]:
    """Return the files from which secrets were read or will be read."""
    if any(_secrets(sources.file)):
        yield sources.file.name
    yield from (sources.secrets.origin(path) for path in _secrets(sources.secrets))
    registry, client = settings.schema_registry, settings.kafka.client
    named = (
        settings.postgres.password_file,
        settings.kafka.password_file,
        registry.password_file,
        registry.token_file,
        registry.key_file,
        settings.http.token_file,
        settings.http.tls_key_file,
    )
    yield from (name for name in named if name is not None)
    yield from (str(client[name]) for name in _KEY_FILES if name in client)


def _secrets(layer: Layer) -> Iterator[Path]:
    """Return the paths of the secrets in ``layer``."""
    for path, key in all_keys().items():
        value = layer.get(path)
        if key.kind is Kind.TABLE and isinstance(value, dict):
            yield from ((*path, name) for name in value if is_secret(name))
        elif key.kind is Kind.SECRET and value is not None and (path not in _DSNS or _has_password(str(value))):
            yield path


def _has_password(dsn: str) -> bool:
    try:
        return any(map(is_secret, libpq.parse_dsn(dsn)))
    except ValueError:  # this DSN was not validated, because a source with higher precedence sets another DSN
        return True


def _is_writable_for_all(path: FilePath) -> bool:
    """Return whether every user can change the file, or rename files in the directory."""
    try:
        mode, is_read_only = path.stat().st_mode, os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return False
    is_sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    return bool(mode & stat.S_IWOTH) and not is_sticky and not is_read_only


def _is_exposed(name: str) -> bool:
    try:
        status = FilePath(name).stat()
    except OSError:  # the code that reads the file reports the error
        return False
    others = stat.S_IRWXO if status.st_uid == 0 else stat.S_IRWXO | stat.S_IRWXG
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & others)
