from dataclasses import replace

import psycopg
import pytest

from pgsluice.errors import (
    ConfigError,
    HistoryError,
    NotInBinary,
    PermissionDenied,
    PgsluiceError,
    PoisonError,
    SlotInUse,
    SourceUnavailable,
)
from pgsluice.postgres import failures
from pgsluice.postgres.failures import ServerError
from pgsluice.postgres.options import StreamOptions
from pgsluice.postgres.slot import SlotState

SLOT = SlotState(
    name="s",
    plugin="pgoutput",
    slot_type="logical",
    database="shop",
    temporary=False,
    active_pid=None,
    restart_lsn=1,
    confirmed_flush_lsn=2,
    wal_status="reserved",
    safe_wal_size=None,
    two_phase=False,
    failover=False,
    synced=False,
    invalidation=None,
)


def error(sqlstate: str, message: str = "words", detail: str = "", routine: str = "", context: str = "") -> ServerError:
    return ServerError(sqlstate, message, detail, routine, context)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ('FATAL:  password authentication failed for user "u"', PermissionDenied),
        ('FATAL:  Peer authentication failed for user "u"', PermissionDenied),
        ("fe_sendauth: no password supplied", PermissionDenied),
        ('FATAL:  no pg_hba.conf entry for host "h", user "u", database "d", no encryption', PermissionDenied),
        ("FATAL:  permission denied to start WAL sender", PermissionDenied),
        ("FATAL:  must be superuser or replication role to start walsender", PermissionDenied),
        ('FATAL:  permission denied for database "d"', PermissionDenied),
        ('FATAL:  role "u" does not exist', PermissionDenied),
        ('FATAL:  database "d" does not exist', ConfigError),
        ("SSL error: certificate verify failed", ConfigError),
        ('server certificate for "a" does not match host name "b"', ConfigError),
        ('root certificate file "f" does not exist', ConfigError),
        ('could not load private key file "f"', ConfigError),
        ("FATAL:  unsupported startup parameter: replication", ConfigError),
        ("FATAL:  connection requires a valid client certificate", PermissionDenied),
        ("SSL error: sslv3 alert certificate expired", PermissionDenied),
        ('FATAL:  certificate authentication failed for user "u"', PermissionDenied),
        ("SSL error: tlsv1 alert unknown ca", PermissionDenied),
        (
            'authentication method requirement "md5" failed: server requested a cleartext password',
            ConfigError,
        ),
        ("channel binding required, but server authenticated client without channel binding", ConfigError),
        ("could not match 2 port numbers to 3 hosts", ConfigError),
        ("could not match 1 host names with 2 hostaddr values", ConfigError),
        ('invalid port number: "99999"', ConfigError),
        ('invalid "ssl_min_protocol_version" value: "TLSv9"', ConfigError),
        ('weak sslmode "prefer" may not be used with sslrootcert=system (use "verify-full")', ConfigError),
        ('definition of service "s" not found', ConfigError),
        ('Unix-domain socket path "/p" is too long (maximum 107 bytes)', ConfigError),
        ('service file "/nowhere" not found', ConfigError),
        ("bad value for connect_timeout: 'x'", ConfigError),
        ("Connection refused", SourceUnavailable),
        ("FATAL:  the database system is starting up", SourceUnavailable),
        ("FATAL:  die Passwort-Authentifizierung ist fehlgeschlagen", SourceUnavailable),
    ],
)
def test_a_failed_connection_is_retried_or_refused_with_advice(words: str, kind: type[PgsluiceError]) -> None:
    found = failures.cannot_connect(psycopg.OperationalError(f"connection failed:\n\t{words}\n"))
    assert type(found) is kind
    is_refused = kind is PermissionDenied or "FATAL" in words
    what = "PostgreSQL refused the connection" if is_refused else "PostgreSQL cannot be reached"
    assert str(found).startswith(f"{what}: connection failed:; ")
    assert ("Check postgres.host and postgres.port" in str(found)) == (words == "Connection refused")
    assert words in str(found)
    assert ("To do: " in str(found)) == (kind is not SourceUnavailable)


def test_a_handshake_that_ends_early_is_tried_again_with_advice() -> None:
    found = failures.cannot_connect(psycopg.OperationalError("SSL error: unexpected eof while reading"))
    assert type(found) is SourceUnavailable
    assert "sslnegotiation = direct needs" in str(found)


@pytest.mark.parametrize(
    "words",
    [
        "sorry, too many clients already",
        'too many connections for role "u"',
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'number of requested standby connections exceeds "max_wal_senders" (currently 1)',
    ],
)
def test_a_server_without_room_is_tried_again_with_advice(words: str) -> None:
    found = failures.cannot_connect(psycopg.OperationalError(f"connection failed: FATAL:  {words}"))
    assert type(found) is SourceUnavailable
    assert "raise max_wal_senders or max_connections" in str(found)


def test_a_failure_is_retried_if_any_host_may_come_back() -> None:
    words = (
        '- host: a, port: 1, hostaddr: 192.0.2.1: FATAL:  database "d" does not exist\n'
        "- host: b, port: 1, hostaddr: 192.0.2.2: SSL error: unexpected eof while reading"
    )
    assert type(failures.cannot_connect(psycopg.OperationalError(words))) is SourceUnavailable


def test_an_invalid_connection_string_is_not_repeated() -> None:
    """psycopg's error may quote the whole connection string."""
    found = failures.cannot_connect(psycopg.ProgrammingError('unexpected character in URI: "postgresql://u:secret@["'))
    assert str(found) == "libpq cannot parse the connection string of PostgreSQL. To do: correct postgres.dsn"
    assert type(found) is ConfigError


REFUSED = "connection failed: Connection refused"
READ_ONLY = "connection failed: session is read-only"
DENIED = 'connection failed: FATAL:  password authentication failed for user "u"'


def all_failures(*attempts: tuple[str, str, str]) -> str:
    """Return psycopg's error after it has tried several addresses without success."""
    lines = [f"- host: {host!r}, port: '5432', hostaddr: {address!r}: {words}" for host, address, words in attempts]
    return "\n".join([attempts[-1][-1], "Multiple connection attempts failed. All failures were:", *lines])


@pytest.mark.parametrize(
    ("attempts", "kind"),
    [
        ([("db1", "10.0.0.1", REFUSED), ("db2", "10.0.0.2", DENIED)], SourceUnavailable),
        ([("db1", "10.0.0.1", DENIED), ("db2", "10.0.0.2", READ_ONLY)], SourceUnavailable),
        ([("db1", "10.0.0.1", DENIED), ("db2", "10.0.0.2", DENIED)], PermissionDenied),
        ([("localhost", "::1", REFUSED), ("localhost", "127.0.0.1", DENIED)], PermissionDenied),
    ],
)
def test_a_failure_of_several_hosts_is_retried_if_one_may_come_back(
    attempts: list[tuple[str, str, str]], kind: type[PgsluiceError]
) -> None:
    found = failures.cannot_connect(psycopg.OperationalError(all_failures(*attempts)))
    assert type(found) is kind
    assert all(words in str(found) for *_, words in attempts)


def test_a_broken_connection_is_retried() -> None:
    found = failures.connection_lost(psycopg.OperationalError("server closed\n the connection\n"))
    assert str(found) == "the connection to PostgreSQL broke: server closed; the connection"


def test_a_query_without_an_answer_is_retried() -> None:
    found = failures.query_failed(psycopg.OperationalError("the connection is closed"), "asking")
    assert type(found) is SourceUnavailable
    assert "the connection to PostgreSQL broke" in str(found)


def test_a_usable_slot_is_accepted() -> None:
    assert failures.unusable("s", SLOT, "shop", StreamOptions(), 170010) is None


@pytest.mark.parametrize(
    ("slot", "wanted"),
    [
        (replace(SLOT, failover=True), StreamOptions(two_phase=True)),
        (replace(SLOT, failover=True, two_phase=True), StreamOptions()),
    ],
)
def test_two_phase_and_failover_can_be_combined_since_version_18(slot: SlotState, wanted: StreamOptions) -> None:
    found = failures.unusable("s", slot, "shop", wanted, 170010)
    with pytest.raises(ConfigError, match=r"would be lost\. Give up one of the two"):
        raise found or AssertionError
    assert failures.unusable("s", slot, "shop", wanted, 180000) is None


@pytest.mark.parametrize(
    ("slot", "kind", "words"),
    [
        (None, ConfigError, "does not exist"),
        (replace(SLOT, plugin="wal2json"), ConfigError, "has the output plugin wal2json"),
        (replace(SLOT, plugin=None), ConfigError, "is a physical slot"),
        (replace(SLOT, database="other"), ConfigError, "belongs to database 'other', but dbname is 'shop'"),
        (replace(SLOT, invalidation="idle_timeout"), HistoryError, r"invalidated replication slot 's' \(idle_timeout"),
        (replace(SLOT, two_phase=True), ConfigError, r'ALTER_REPLICATION_SLOT "s" \(TWO_PHASE false\)'),
    ],
)
def test_an_unusable_slot_is_refused(slot: SlotState | None, kind: type[PgsluiceError], words: str) -> None:
    found = failures.unusable("s", slot, "shop", StreamOptions(origin="none"), 170010)
    with pytest.raises(kind, match=words):
        raise found or AssertionError


@pytest.mark.parametrize(
    ("refusal", "kind", "words"),
    [
        (error("42501"), PermissionDenied, "doing: words .SQLSTATE 42501.. To do: the role needs LOGIN"),
        (error("55006"), SlotInUse, "wal_sender_timeout"),
        (error("42710"), SlotInUse, "at the same time"),
        (error("53400"), SourceUnavailable, "raise max_replication_slots"),
        (error("57P03"), SourceUnavailable, "doing: words .SQLSTATE 57P03.$"),
        (error("XX000", detail="More."), SourceUnavailable, "doing: words .SQLSTATE XX000.: More$"),
        (error("55000", routine="CheckLogicalDecodingRequirements"), ConfigError, "set wal_level = logical"),
        (error("55000", routine="CheckSlotRequirements"), ConfigError, "max_replication_slots > 0"),
        (error("0A000", routine="CheckLogicalDecodingRequirements"), SourceUnavailable, "the server is a standby"),
    ],
)
def test_a_refused_command_is_reported_with_advice(refusal: ServerError, kind: type[PgsluiceError], words: str) -> None:
    found = failures.refused(refusal, "doing")
    assert type(found) is kind
    with pytest.raises(kind, match=words):
        raise found


IN_CHANGE = 'slot "s", output plugin "pgoutput", in the change callback, associated LSN 0/16B3A98'


@pytest.mark.parametrize(
    ("failure", "slot", "kind", "words"),
    [
        (error("55000"), replace(SLOT, invalidation="wal_removed"), HistoryError, "invalidated"),
        (error("55000"), replace(SLOT, synced=True), SourceUnavailable, "a standby's copy"),
        (error("55000"), SLOT, SourceUnavailable, "streaming from slot 's': words"),
        (error("57P01"), None, SourceUnavailable, "57P01"),
        (error("42704", 'publication "p" does not exist'), SLOT, ConfigError, 'publication "p" does not exist. '),
        (error("42704", routine="ReplicationSlotAcquire"), None, ConfigError, "streaming from slot 's': words"),
        (error("42883", routine="getTypeBinaryOutputInfo"), SLOT, NotInBinary, "streaming from slot"),
        (error("42883"), SLOT, SourceUnavailable, "streaming from slot 's': words"),
        (error("0A000"), SLOT, ConfigError, "agree about each table's columns"),
        (error("22021"), SLOT, PoisonError, "not valid in the database's encoding"),
        (error("54000"), SLOT, PoisonError, "exceeds what the server can send"),
        (error("22012"), SLOT, PoisonError, "from slot 's': DivisionByZero .SQLSTATE 22012.* row filter"),
        (error("22ZZZ"), SLOT, PoisonError, "error .SQLSTATE 22ZZZ"),
        (error("XX000", context=IN_CHANGE), SLOT, PoisonError, "at 0/16B3A98 .*InternalError .SQLSTATE XX000"),
        (error("XX000", routine="palloc", context=IN_CHANGE), SLOT, PoisonError, "postgres.binary is off, set it to"),
        (error("XX000", context=IN_CHANGE.replace("change", "stream_change")), SLOT, PoisonError, "at 0/16B3A98"),
        (error("XX000", context=IN_CHANGE.replace("change", "commit")), SLOT, SourceUnavailable, "XX000"),
        (error("53200", context=IN_CHANGE), SLOT, SourceUnavailable, "streaming from slot 's': words"),
        (error("57P01", context=IN_CHANGE), SLOT, SourceUnavailable, "streaming from slot 's': words"),
        (error("42883", routine="array_send", context=IN_CHANGE), SLOT, NotInBinary, "streaming from slot"),
    ],
)
def test_the_error_of_a_broken_stream_is_judged(
    failure: ServerError, slot: SlotState | None, kind: type[PgsluiceError], words: str
) -> None:
    found = failures.stream_broke(failure, "s", slot)
    assert type(found) is kind
    with pytest.raises(kind, match=words):
        raise found


def test_poison_has_a_position_but_no_data() -> None:
    failure = error("22P02", "secret", "secret", context='slot "s", output plugin "pgoutput", associated LSN 0/16B3A98')
    text = str(failures.stream_broke(failure, "s", SLOT))
    assert "cannot send a change at 0/16B3A98 from slot" in text
    assert "secret" not in text
