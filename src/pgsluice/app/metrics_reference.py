"""The reference of all metrics in docs/metrics.md. ``python -m pgsluice.app.metrics_reference`` writes it there.

Types and labels are those of the metrics themselves. The texts are here, because they are longer than a metric's help.

``tests/unit/test_metrics.py`` covers it.
"""

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pgsluice.metrics import Metrics

BEGIN: Final = "<!-- What follows is written by `python -m pgsluice.app.metrics_reference`; a test compares it. -->"
END: Final = "<!-- End of the reference. -->"

_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """A metric: its name, what it is, and what to do. The latter may be empty."""

    name: str
    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Section:
    """Metrics under one heading."""

    title: str
    entries: tuple[Entry, ...]
    about: str = ""


def described() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the type and the labels of each metric, by its name. Some have no samples yet."""
    found = {}
    registry = Metrics().registry
    for collector in registry._collector_to_names:  # noqa: SLF001 - the library has no other list
        labels = getattr(collector, "_labelnames", getattr(collector, "_labels", ()))
        for family in collector.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = family.type, tuple(labels)
    return found


def markdown() -> str:
    """Return the reference."""
    known = described()
    parts = []
    for section in SECTIONS:
        rows = [_row(entry, *known[entry.name]) for entry in section.entries]
        about = f"{textwrap.fill(section.about, _WIDTH)}\n\n" if section.about else ""
        head = "| metric | type | labels | what it is | what to do |\n|---|---|---|---|---|\n"
        parts.append(f"### {section.title}\n\n{about}{head}{''.join(rows)}")
    return "\n".join(parts)


def _row(entry: Entry, kind: str, labels: tuple[str, ...]) -> str:
    cells = (f"`{entry.name}`", kind, ", ".join(f"`{label}`" for label in labels), entry.meaning, entry.remedy)
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|\n"


def renewed(text: str) -> str:
    """Return the text of docs/metrics.md with the present reference."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{markdown()}\n{END}{rest.partition(END)[2]}"


SECTIONS: Final = (
    Section(
        "Is it working",
        (
            Entry(
                "pgsluice_info",
                "1. The labels tell what runs.",
                "Raise an alarm if it disappears (PgsluiceAbsent), because then no process answers.",
            ),
            Entry(
                "pgsluice_active",
                "1 while this process streams from the slot, 0 while it waits.",
                "The sum over a pipeline's processes is 1. If it is 0 for minutes, `pgsluice "
                "status` says why under `last_error` (PgsluiceNotStreaming).",
            ),
            Entry(
                "pgsluice_state",
                "1 for what the process is doing: `starting`, `standby`, `streaming`, `waiting` "
                "(it tries again), `stopped`.",
                "See [when it waits](runbook.md#when-it-waits).",
            ),
            Entry(
                "pgsluice_lag_seconds",
                "[See above](#lag), in seconds.",
                "PgsluiceLagHigh, PgsluiceLagCritical. In the state `streaming`, find the bottleneck with "
                "[scaling.md](scaling.md). In the state `waiting`, see `last_error`.",
            ),
            Entry(
                "pgsluice_source_lag_seconds",
                "Time since the commit of the last delivered transaction, in seconds; 0 when "
                "everything is delivered. Absent before the first delivery of the process, and at"
                " a standby.",
                "It says how old the data of consumers is. If the server commits rarely, it is larger than "
                "`pgsluice_lag_seconds`.",
            ),
            Entry(
                "pgsluice_stage_lag_bytes",
                "WAL by `stage`, in bytes: `receive` is what the server has written and pgsluice "
                "has not received, `deliver` what was received and is not in Kafka, `confirm` "
                "what is in Kafka and not confirmed to the server. Between sessions, the last "
                "known positions count.",
                "It shows the cause of a lag. `receive`: the server or the network is slow, or pgsluice reads no "
                "more because Kafka is slow. `deliver`: Kafka is slow. `confirm`: a transaction is prepared or open, "
                "or a heartbeat is due.",
            ),
            Entry(
                "pgsluice_lag_bytes",
                "[See above](#lag), in bytes.",
                "PgsluiceLagGrowing: the server writes faster than is delivered.",
            ),
            Entry(
                "pgsluice_lsn",
                "Positions in the WAL, in bytes: `server`, `received`, `delivered` and "
                "`confirmed` of the present session, or of the last one.",
                "Compare them to see where the pipeline stands still. `confirmed` begins again in each session.",
            ),
        ),
    ),
    Section(
        "The slot",
        (
            Entry(
                "pgsluice_slot_exists",
                "1 if the server has the slot, 0 if it has none of that name.",
                "0 after 1: somebody dropped it (PgsluiceSlotLost). Before the first start it is 0.",
            ),
            Entry(
                "pgsluice_slot_active",
                "1 while a process streams from the slot, 0 while none does.",
                "0 for longer than a restart takes: PgsluiceSlotInactive.",
            ),
            Entry(
                "pgsluice_slot_retained_bytes",
                "WAL that the server keeps for the slot, from `restart_lsn` on, in bytes.",
                "PgsluiceSlotRetainedHigh. If the lag is small, an open or prepared transaction makes the server "
                "keep the WAL. End that transaction.",
            ),
            Entry(
                "pgsluice_slot_safe_bytes",
                "`safe_wal_size`: WAL that can be written before the slot may lose some, in bytes.",
                "PgsluiceSlotSafeLow, PgsluiceSlotLostSoon: raise `max_slot_wal_keep_size` while the disk has room.",
            ),
            Entry(
                "pgsluice_slot_wal_status",
                "1 for the slot's `wal_status` (`reserved`, `extended`, `unreserved`, `lost`), 0 for the others.",
                "`unreserved`: the next checkpoint invalidates it (PgsluiceSlotUnreserved). "
                "`lost`: replace the slot and load the tables again, as the "
                "[runbook](runbook.md#the-slot-and-the-history) says (PgsluiceSlotLost).",
            ),
            Entry(
                "pgsluice_slot_xmin_age_transactions",
                "Age of the slot's `catalog_xmin`, in transactions. VACUUM cannot remove rows of system catalogs "
                "that were deleted since then.",
                "It grows while the slot stands still. At some millions, catalogs bloat. Near 2 billion, the server "
                "refuses to write. Let pgsluice go on, or drop the slot.",
            ),
            Entry(
                "pgsluice_slot_decoded_bytes_total",
                "Bytes of changes that the server has decoded for the slot, from "
                "`pg_stat_replication_slots`. PostgreSQL 14 and newer. Absent until the server "
                "has statistics of the slot.",
                "Compare it with `pgsluice_received_bytes_total`: the server decodes what is not published, too.",
            ),
            Entry(
                "pgsluice_slot_spilled_transactions_total",
                "Transactions that the server has written to its disk while it decoded them.",
                "Raise `logical_decoding_work_mem`, or set `postgres.streaming`.",
            ),
            Entry(
                "pgsluice_slot_spilled_bytes_total",
                "Bytes that the server has written to its disk while it decoded.",
                "As above.",
            ),
            Entry(
                "pgsluice_slot_streamed_bytes_total",
                "Bytes of transactions that the server has streamed before their commit.",
                "It grows with large transactions if `postgres.streaming` is on.",
            ),
            Entry(
                "pgsluice_slot_sampled_timestamp_seconds",
                "When the slot was last looked at with success, as Unix time in seconds.",
                "PgsluiceSlotUnknown: PostgreSQL does not answer, so no other metric of this table can warn.",
            ),
        ),
    ),
    Section(
        "Certificates",
        (
            Entry(
                "pgsluice_tls_certificate_expiry_timestamp_seconds",
                "When the certificates in the file of `setting` expire, as Unix time in seconds. In a client's "
                "chain, the certificate that expires first counts; of several authorities, the one that expires "
                "last. Absent without such a file.",
                "PgsluiceCertificateExpires: renew the certificate, and replace the file.",
            ),
        ),
    ),
    Section(
        "Throughput",
        (
            Entry(
                "pgsluice_events_total",
                "Change events committed to Kafka: `c`, `u`, `d`, `t`, `m`, `r` as in [events.md](events.md).",
                "",
            ),
            Entry(
                "pgsluice_topic_events_total",
                "The same by topic. The first 500 topics since the start of the process have their own time series. "
                "All others are counted as `(other)`, a name that no topic can have. Dead letters are not counted.",
                "It shows which tables are busy. If `(other)` is large, count with the `counts` of the cut records.",
            ),
            Entry(
                "pgsluice_event_bytes_total",
                "Bytes of keys and values committed to Kafka, before compression.",
                "",
            ),
            Entry(
                "pgsluice_received_bytes_total",
                "Bytes received from the slot.",
                "If it does not grow while the server writes, the server decodes what is not "
                "published, or a large transaction.",
            ),
            Entry(
                "pgsluice_transactions_total",
                "Transactions of PostgreSQL committed to Kafka.",
                "",
            ),
            Entry(
                "pgsluice_cuts_total",
                "Cuts, which are transactions of Kafka: `data`, or `heartbeat` without events.",
                "There is at least one a minute. If there is none, Kafka takes nothing, or a "
                "large transaction is being written.",
            ),
            Entry(
                "pgsluice_cut_seconds",
                "Time to commit a cut, in seconds.",
                "Milliseconds are normal. If it takes seconds, look at the brokers, and at [scaling.md](scaling.md).",
            ),
        ),
    ),
    Section(
        "Snapshots",
        (
            Entry(
                "pgsluice_snapshot_tables",
                "Published tables by `state`: `waiting` for their turn, `loading`, `blocked` (it "
                "could not be read the last time, or transactions that are changing it have not "
                "ended), `left_out` (it cannot be loaded as it is), `stale` (it was altered after"
                " it was loaded, and is not loaded again by itself), `skipped` by the settings, "
                "`assumed` to be loaded because an earlier version has delivered their changes, "
                "`loaded`.",
                "PgsluiceTablesNotLoaded: `pgsluice status` names tables and reasons. See "
                "[snapshots.md](snapshots.md#how-far-it-has-come).",
            ),
            Entry(
                "pgsluice_snapshot_rows",
                "Rows that were read so far, of all tables that are loaded or will be.",
                "",
            ),
            Entry(
                "pgsluice_snapshot_estimated_rows",
                "What `pgsluice_snapshot_rows` will be at the end, by PostgreSQL's estimates.",
                "",
            ),
            Entry(
                "pgsluice_snapshot_rounds_total",
                "Rounds, each of which reads a chunk of rows, by `result`: `placed` in the stream, `no_place` if the "
                "stream had no place for the chunk (it is read again, with half as many rows), `failed`.",
                "Many `no_place`: transactions commit in another order than the one in which they"
                " become visible, which synchronous replication makes frequent. `failed`: the log"
                " has the reason.",
            ),
            Entry(
                "pgsluice_snapshot_round_seconds",
                "Time of a round, from the lock of the table to its rows' place in the stream, in seconds.",
                "Tens of milliseconds are normal. If it takes seconds, lower "
                "`snapshot.chunk_rows`, because the lock lasts as long.",
            ),
            Entry(
                "pgsluice_snapshot_held_seconds_total",
                "Time in which changes waited for rows to be read, in seconds.",
                "Its `rate` is the share of time in which changes wait. If this delays consumers too much, lower "
                "`snapshot.chunk_rows`.",
            ),
        ),
        'The gauges are there while the process streams, unless `snapshot.mode` is `"never"`. '
        "Numbers of rows are PostgreSQL's estimates, from the last `ANALYZE`.",
    ),
    Section(
        "Memory and disk",
        (
            Entry(
                "pgsluice_buffered_bytes",
                "Encoded bytes that are not durable in Kafka yet.",
                "At the limit, nothing more is read: Kafka is the bottleneck.",
            ),
            Entry(
                "pgsluice_buffered_limit_bytes",
                "`delivery.inflight_max`, in bytes.",
                "",
            ),
            Entry(
                "pgsluice_waiting_transactions",
                "Streamed and prepared transactions whose rows wait for the commit.",
                "",
            ),
            Entry(
                "pgsluice_waiting_bytes",
                "What these rows take: in `memory`, and on `disk`, in bytes.",
                "PgsluiceSpillNearlyFull: at the limit of the disk pgsluice stops (69). Commit or end the transaction.",
            ),
            Entry(
                "pgsluice_waiting_limit_bytes",
                "`buffer.memory_max` and `buffer.spill_max`, in bytes.",
                "",
            ),
            Entry(
                "pgsluice_prepared_transactions",
                "Prepared transactions received that have not ended.",
                "",
            ),
            Entry(
                "pgsluice_oldest_prepared_seconds",
                "Age of the oldest prepared transaction with changes, in seconds; 0 without one.",
                "PgsluicePreparedTransactionOld: it keeps the slot from moving. COMMIT PREPARED or ROLLBACK PREPARED.",
            ),
            Entry(
                "pgsluice_event_loop_delay_seconds",
                "The delay with which the event loop ran a task that was due, in seconds, measured once a second.",
                "Milliseconds are normal. If it takes longer, the process has too little CPU, or "
                "encodes without a pause: [scaling.md](scaling.md).",
            ),
            Entry(
                "process_resident_memory_bytes",
                "Memory that the process takes.",
                "Compare it with the container's limit.",
            ),
            Entry(
                "process_virtual_memory_bytes",
                "Address space of the process.",
                "",
            ),
            Entry(
                "process_cpu_seconds_total",
                "CPU time of the process.",
                "A rate near 1 is one core: [scaling.md](scaling.md).",
            ),
            Entry(
                "process_start_time_seconds",
                "When the process was started, as Unix time.",
                "PgsluiceRestarting: the process ends again and again. The last line of the log says why.",
            ),
            Entry(
                "process_open_fds",
                "Open file descriptors.",
                "",
            ),
            Entry(
                "process_max_fds",
                "The limit of open file descriptors.",
                "",
            ),
        ),
    ),
    Section(
        "Errors",
        (
            Entry(
                "pgsluice_sessions_total",
                "Sessions begun; all but the first are reconnects.",
                "",
            ),
            Entry(
                "pgsluice_session_errors_total",
                "Sessions that ended with an error, and attempts to begin one, by the kind of error.",
                "PgsluiceSessionErrors. `SourceUnavailable`: PostgreSQL. `SinkUnavailable`: "
                "Kafka. `Fenced`: a second process with the same name.",
            ),
            Entry(
                "pgsluice_resent_transactions_total",
                "Transactions that came again and were left out.",
                "Some after each reconnect are normal.",
            ),
            Entry(
                "pgsluice_kafka_errors_total",
                "Errors that the Kafka clients reported in the background, by librdkafka's name "
                "for them: `_TRANSPORT`, `_ALL_BROKERS_DOWN`, `_AUTHENTICATION`.",
                "Some `_TRANSPORT` are normal, because brokers close idle connections. The log has the reasons.",
            ),
            Entry(
                "pgsluice_dead_letters_total",
                "Changes that a dead letter stands for.",
                "PgsluiceDeadLetters: consumers lack these changes. See [poison](dead-letters.md#poison).",
            ),
            Entry(
                "pgsluice_quarantined_tables",
                "Tables that cannot be published as the settings are; at most 100 are counted.",
                "PgsluiceTablesInQuarantine: `pgsluice status` names tables and reasons. See "
                "[tables in quarantine](dead-letters.md#tables-in-quarantine).",
            ),
        ),
    ),
    Section(
        "Schemas",
        (
            Entry(
                "pgsluice_schema_versions_total",
                "New versions of schemas that were registered.",
                "If there are many, somebody alters a table again and again, and the schemas stay in memory.",
            ),
            Entry(
                "pgsluice_registry_seconds",
                "Time of a request to the schema registry server, in seconds; `result` is `ok`, "
                "an HTTP status, or what else went wrong. Only with `schema_registry.type = "
                '"confluent"`.',
                "See [registry.md](registry.md#a-registry-server).",
            ),
        ),
    ),
)


if __name__ == "__main__":
    file = Path(sys.argv[1] if sys.argv[1:] else "docs/metrics.md")
    file.write_text(renewed(file.read_text()))
