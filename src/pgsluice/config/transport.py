"""Finds connections that, according to the settings, an attacker between pgsluice and a server could read or change.

``pgsluice run`` logs the findings and ``pgsluice check`` prints them. Connections within the machine (loopback
addresses, Unix sockets) are left out. No connection is made.

https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-PROTECTION
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from itertools import zip_longest
from urllib.parse import urlsplit

from pgsluice.config import libpq
from pgsluice.config.model import Settings
from pgsluice.config.schema_registry import SchemaRegistry
from pgsluice.finding import Finding, Verdict
from pgsluice.printable import without_url_secrets

# verify-ca does not compare the host name. This is safe if the authority is the user's own. For the public authorities,
# libpq refuses verify-ca.
_VERIFYING = ("verify-ca", "verify-full")

_SSLMODES = {
    "disable": "the connection to {hosts} is not encrypted",
    "allow": "the connection to {hosts} is encrypted only if the server insists, and the server is not verified",
    "prefer": "the connection to {hosts} is encrypted only if the server offers it, and the server is not verified",
    "require": "the connection to {hosts} is encrypted, but the server is verified only if there is a file of trusted "
    "authorities",
}

_SENT_AS_THEY_ARE = ("PLAIN", "OAUTHBEARER")
"""Mechanisms of SASL that send the password or token itself, so that everybody who reads the traffic can use it."""

_FALSE = ("false", "f", "0")
"""The values that librdkafka takes as false, in upper or lower case."""


def findings(settings: Settings) -> list[Finding]:
    """Return a warning for each kind of connection that is not encrypted, or whose server is not verified."""
    return [
        *_postgres("postgres transport", settings.postgres.libpq_parameters()),
        *_postgres("primary transport", settings.primary_parameters()),
        *_kafka(settings.kafka.librdkafka_properties()),
        *_registry(settings.schema_registry),
    ]


def _postgres(name: str, configured: Mapping[str, str] | None) -> Iterator[Finding]:
    if configured is None:
        return
    parameters = libpq.in_effect(configured)
    mode = parameters.get("sslmode", "prefer")
    # Kerberos encrypts without TLS. With channel binding, only a server that knows the password's hash can answer, and
    # nobody in between can forward its answer.
    proven = "require" in (parameters.get("gssencmode"), parameters.get("channel_binding"))
    hosts = _elsewhere(_postgres_hosts(parameters))
    if hosts and not proven and mode not in _VERIFYING:
        detail = _SSLMODES.get(mode, _SSLMODES["prefer"]).format(hosts=hosts)
        remedy = 'Set postgres.sslmode = "verify-full", and postgres.sslrootcert to the file of the authority.'
        yield Finding(name, Verdict.WARN, f"sslmode is {mode}: {detail}", remedy)


def _postgres_hosts(parameters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return the address and the name of each host to which libpq may connect by TCP."""
    names, addresses = (parameters.get(name, "").split(",") for name in ("host", "hostaddr"))
    for name, hostaddr in zip_longest(names, addresses, fillvalue=""):
        address = hostaddr.strip() or name.strip()
        if address and not address.startswith(("/", "@")):  # these begin the path or name of a Unix socket
            yield address, name.strip() or address


def _kafka(properties: Mapping[str, str]) -> Iterator[Finding]:
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    brokers = [_host(server.strip()) for server in properties["bootstrap.servers"].split(",") if server.strip()]
    hosts = _elsewhere((host, host) for host in brokers)
    if hosts and protocol.endswith("PLAINTEXT"):
        detail = f"security.protocol is {protocol}: {_what_travels(protocol, properties)} unencrypted to {hosts}"
        tls = "SASL_SSL" if protocol.startswith("SASL") else "SSL"
        yield _kafka_finding(detail, f'Set "security.protocol" = "{tls}", and "ssl.ca.location" for your own authority')
    elif hosts:
        yield from _kafka_tls(properties, hosts)
    yield from _token_endpoint(properties.get("sasl.oauthbearer.token.endpoint.url", ""))


def _what_travels(protocol: str, properties: Mapping[str, str]) -> str:
    mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "GSSAPI")).upper()
    exposed = protocol.startswith("SASL") and mechanism in _SENT_AS_THEY_ARE
    return "the credentials and changes travel" if exposed else "changes travel"


def _kafka_tls(properties: Mapping[str, str], hosts: str) -> Iterator[Finding]:
    verification, identification = "enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm"
    if properties.get(verification, "true").lower() in _FALSE:
        detail = f"{verification} is false: {hosts} are not verified, so somebody in between can impersonate them"
        yield _kafka_finding(detail, f'Remove "{verification}", and set "ssl.ca.location" for your own authority')
    elif properties.get(identification, "https").lower() == "none":
        detail = (
            f"{identification} is none: the names in the certificates of {hosts} are not compared, so every "
            "certificate of the authority is accepted"
        )
        yield _kafka_finding(detail, f'Remove "{identification}", and put the brokers\' names into their certificates')


def _token_endpoint(url: str) -> Iterator[Finding]:
    host = _host(url)
    if url.lower().startswith("http://") and not is_loopback(host):
        detail = f"sasl.oauthbearer.token.endpoint.url is not https: credentials travel unencrypted to {host}"
        yield _kafka_finding(detail, "Use an https:// address")


def _kafka_finding(detail: str, remedy: str) -> Finding:
    return Finding("kafka transport", Verdict.WARN, detail, f"{remedy} (under kafka.client).")


def _registry(registry: SchemaRegistry) -> Iterator[Finding]:
    addresses = [address.strip() for address in (registry.url or "").split(",")]
    open_hosts = [_host(address) for address in addresses if address.lower().startswith("http://")]
    if hosts := _elsewhere((host, host) for host in open_hosts):
        ways = (registry.username, registry.token, registry.token_file, registry.token_command)
        authenticated = any(way is not None for way in ways)
        sent = "the credentials and schemas" if authenticated else "schemas"
        detail = f"schema_registry.url is not https: {sent} travel unencrypted to {hosts}"
        remedy = "Use https:// addresses, and schema_registry.ca_file for your own authority."
        yield Finding("schema registry transport", Verdict.WARN, detail, remedy)


def _elsewhere(hosts: Iterable[tuple[str, str]]) -> str:
    """Return the names of the hosts whose address is not on this machine, separated by commas."""
    return without_url_secrets(", ".join(name for address, name in hosts if not is_loopback(address)))


def _host(address: str) -> str:
    """Return the host in ``host:port`` or a URL, without a user or password."""
    try:
        host = urlsplit(address if "://" in address else f"//{address}").hostname
    except ValueError:  # brackets that do not match
        host = None
    return host or address.rpartition("@")[2]


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is a name or an address of this machine that other machines cannot reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
