"""Checks that each message of the runbook is produced by a test on real servers.

``NO_SERVER`` and ``ONLY_IN_UNIT_TESTS`` list the exceptions.
"""
# ruff: noqa: E501 - each message is on one line

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.support.runbook import ANYTHING, rows

TESTS = Path(__file__).parents[1]
SCENARIOS = ("changes", "history", "settings", "topics")
"""The suffixes of the modules ``test_runbook_*`` that have scenarios."""

FOLLOWED: Mapping[str, str] = {
    "The checkpoint belongs to the PostgreSQL cluster with system identifier …": "start_rules::another_cluster_is_refused",
    "The topics under this prefix belong to pipeline …": "weather::a_prefix_that_belongs_to_another_pipeline",
    "Slot … is at …, after a PREPARE TRANSACTION at …": "start_rules::a_slot_advanced_past_a_prepared_transaction_is_refused",
    "PostgreSQL has invalidated replication slot …": "postgres_slots::a_slot_invalidated_while_the_daemon_lags_is_refused",
    "Changes before … are in Kafka, but the server's WAL ends at …": "start_rules::a_server_restored_to_before_heartbeats_is_refused",
    "Changes before … on timeline … are in Kafka. The server is on timeline …": "start_rules::a_server_promoted_from_before_delivered_changes_is_refused",
    "PostgreSQL has sent …. … was restored from a backup or a disk snapshot, or it is a copy of the server that was followed": "start_rules::a_restored_server_is_refused_even_if_its_wal_has_grown_before_the_start",
    "An earlier run found this, so pgsluice does not continue by itself": "start_rules::a_server_restored_to_before_heartbeats_is_refused",
    "Topic … has … partitions now instead of …": "topics_behind_our_back::added_partitions_are_noticed_without_traffic",
    "Topic … …, but cut … was committed": "topics_behind_our_back::deleted_cut_records_stop_the_daemon",
    "The schemas of topic … are not registered any more": "topics_behind_our_back::deleted_schemas_stop_the_daemon",
    "a topic has changed, which is accepted": "topics_behind_our_back::a_deleted_topic_stops_the_daemon_until_this_is_accepted",
    "PostgreSQL cannot send a change": "postgres_publications::a_row_that_the_server_cannot_send_can_be_skipped",
    "Kafka refuses a batch of records for …": "kafka_weather::batches_are_refused_if_a_broker_comes_back_with_a_lower_limit",
    "PostgreSQL decodes with the catalog as it was at the slot's position, so a publication created later does not count there": "postgres_publications::a_dropped_publication_stops_the_daemon",
    "replication slot … decodes prepared transactions at PREPARE TRANSACTION": "origin::a_slot_that_was_started_with_them_is_refused",
    "it is a standby's copy of a slot of the primary, so wait for the standby's promotion or connect to the primary": "postgres_failures::a_synchronised_slot_is_waited_for",
    "Another producer with our transactional.id has taken over": "exactly_once::a_program_that_fences_us_and_writes_nothing_is_not_taken_for_another_owner",
    "Check the credentials under kafka.client": "kafka_weather::a_changed_password_stops_the_daemon",
    "pgsluice was writing to …": "kafka_weather::rights_that_are_withdrawn_stop_the_daemon",
    "Check the files under kafka.client: whether they exist, belong together, and may be read": "kafka_tls::files_that_are_missing",
    "Transactions that have not committed yet need more than buffer.spill_max": "spill::the_allowed_bytes_on_disk_are_not_exceeded",
    "…, which holds rows of a transaction that has not committed yet, is not as it was written": "spill::a_truncated_file_stops_the_daemon_and_loses_nothing",
    "The disk under buffer.spill_dir has not finished a job for … s": "spill_disk::a_start_on_a_hanging_disk_is_given_up",
    "nothing moves": "spill_disk::a_hanging_write_is_reported_and_then_stops_the_daemon",
    "Nothing is lost: what was not delivered was not confirmed either, and will be sent again": "spill_disk::a_hanging_write_is_reported_and_then_stops_the_daemon",
    "Changes in flight could not be delivered within shutdown.drain_timeout": "weather::a_stop_during_an_outage_of_kafka_exits_with_75_and_loses_nothing",
    "Kafka cannot be reached, or refuses us": "weather::a_start_waits_for_kafka_and_says_so_once",
    "Kafka takes no records where fewer replicas are in sync than min.insync.replicas": "kafka_weather::the_daemon_waits_for_enough_replicas_and_says_so",
    "table …: column … of type … cannot be …": "chosen_types::a_choice_that_becomes_impossible_stops_the_daemon_until_it_is_changed",
    "a table is not published any more, so copies of it miss its changes from now on": "snapshot_alter::a_table_that_returns_to_the_publication_is_loaded_again",
    "a table cannot be read now": "snapshot_weather::a_locked_table_does_not_delay_the_stream",
    "… of table … name columns outside its replica identity": "hostile_names::printed_remedies_solve_the_problem",
    "Replication slot … does not exist on this server, so nothing was dropped": "cli::check_and_the_slot_commands_report_what_they_find",
    "slot … does not exist": "cli::check_and_the_slot_commands_report_what_they_find",
    "the pipeline is paused: nothing is delivered, and PostgreSQL keeps its WAL, until …": "pause::a_pause_is_shown_and_survives_restarts_until_resume",
}
"""Messages that no scenario produces, each with a test on real servers that produces the message and follows its advice.

The test is given as its file and the beginning of its name.
"""

PRODUCED: Mapping[str, str] = {
    "raise max_wal_senders or max_connections, or end sessions that nobody needs": "postgres_network::a_server_that_is_full_is_waited_for",
    "raise max_replication_slots, or drop slots that nobody needs": "postgres_failures::a_server_without_room_is_retried",
    "the server is a standby, so wait for its promotion or connect to the primary": "postgres_failures::a_standby_is_waited_for",
    "The broker that answers for topic … has an outdated view of it": "kafka_outdated::the_probe_reveals_the_outdated_broker",
    "Partition … of topic … ends at offset …": "kafka_ledger::records_that_were_lost_between_sessions_are_noticed",
    "A topic with cleanup.policy=compact takes no record without key. Every topic takes only timestamps within its …": "kafka_sink::a_record_without_key_is_refused_by_a_compacted_topic",
    "set wal_level = logical (on a standby, also on its primary) and max_replication_slots > 0, then restart the server": "postgres_failures::a_server_that_does_not_decode_is_refused",
    "let the publications of one pipeline agree about each table's columns, or follow them with separate pipelines": "postgres_stream::publications_that_disagree_about_columns_stop",
    "replication slot … but a logical slot with … is needed": "postgres_catalog::every_problem_of_a_server_is_found",
    "replication slot … belongs to database …, but dbname is …": "postgres_catalog::every_problem_of_a_server_is_found",
    "replication slot … survives failovers (failover) and takes prepared transactions at PREPARE": "postgres_catalog::every_problem_of_a_server_is_found",
    "slots that survive a failover need PostgreSQL 17": "postgres_connection::a_slot_can_survive_a_failover_from_17",
    "postgres.… needs PostgreSQL … or later": "origin::origin_none_needs_postgresql_16",
    "… cannot be read beyond offset … another producer keeps a transaction open on it": "exactly_once::a_foreign_transaction_that_does_not_end_is_named",
    "This happened twice in a row with transaction … of PostgreSQL": "exactly_once::a_transaction_that_misses_its_deadline_twice_stops_the_daemon",
    "It does not stream from our slot: another pipeline with the same name and kafka.topic_prefix follows a copy of this database": "exactly_once::another_owner_without_our_slot_stops_the_daemon",
    "The schema registry refuses the new schema of …": "registry_server::poison_and_incompatible_schemas_on_a_real_server_lose_nothing",
    "The schema registry gives id … to a schema of subject …, but there are messages with this id and another schema": "registry_server::a_server_that_was_emptied_is_noticed",
    "Record … of topic … is not a schema": "registry::a_broken_record_is_named",
    "Topic … was deleted, or created again, while it was being read": "registry::follow_ends_when_the_topic_is_deleted",
    "Set the mode to READWRITE": "registry_server::a_read_only_server_is_sufficient_if_it_has_the_schemas",
    "Rows of a transaction that has not committed yet could not be kept on disk": "spill::a_full_disk_stops_the_daemon_and_loses_nothing",
    "dead letter": "poison::a_dead_letter_replaces_a_record_too_large_in_the_same_cut",
    "table in quarantine": "hostile_tables::a_table_with_an_impossible_type_goes_into_quarantine",
    "a table was altered, and existing rows have values that the stream did not send": "snapshot_alter::",
    "a record in the topic of commands is ignored": "snapshot_commands::records_that_are_not_commands_are_ignored",
    "values come in text format until the next start, although postgres.binary is set": "binary::a_value_that_has_no_binary_format_is_delivered_from_its_text",
    "a Kafka transaction stays open until its timeout": "kafka_sink::a_transaction_that_cannot_be_aborted_ends_with_its_timeout",
    "slot creation waits for running transactions to end": "postgres_connection::",
    "an incompatible schema is registered": "registry_server::poison_and_incompatible_schemas_on_a_real_server_lose_nothing",
    "Replication slot … is in use, so it was not dropped": "cli::a_slot_in_use_is_not_dropped",
    "There is no topic …. … creates it when it starts": "snapshot_commands::without_a_daemon_no_command_is_sent",
    "No pipeline has read topic … yet": "snapshot_commands::without_a_daemon_no_command_is_sent",
    "… tables were not loaded completely": "snapshot_commands::a_load_is_cancelled_and_not_begun_again",
    "Correct --prefix, or kafka.topic_prefix; nothing was exported": "registry_server::a_server_can_take_over_from_the_builtin_registry",
    "Table … and its partitions do not all have the same replica identity": "partition_identity::partitions_with_different_keys",
    "Table … would go to topic …, which Kafka cannot distinguish from … of table …": "hostile_tables::check_names_the_tables_that_cannot_be_published",
    "Topic … belongs to another pipeline, whose kafka.topic_prefix is …": "hostile_tables::the_service_topics_of_another_pipeline_are_not_written_to",
    "Create topic … yourself, …, or leave the table out with tables.exclude": "minimal_rights::topics_made_beforehand_need_no_right_to_create_them",
    "Topic … was not created, because this pipeline already has … topics, including reserved ones": "kafka_sink::",
    "Topic … has cleanup.policy=compact, but truncates or rows without a key go to it": "poison::a_table_whose_topic_was_made_compacted",
    "The types of a table's columns contain more than … other types": "postgres_catalog::",
    "Replication slot … exists already": "cli::check_and_the_slot_commands_report_what_they_find",
}
"""Like FOLLOWED, for tests that produce a message but do not follow its advice."""

NO_SERVER: Mapping[str, str] = {
    "a slot's name has 1 to 63 of the characters a-z, 0-9 and _": "pgsluice refuses the settings before it connects to a server",
    "libpq cannot parse the connection string of PostgreSQL": "pgsluice refuses the settings before it connects to a server",
    "libpq cannot parse the connection parameters of PostgreSQL": "pgsluice refuses the settings before it connects to a server",
    "schema_registry.url is not set": "pgsluice refuses the settings before it connects to a server",
    "Lower delivery.transaction_timeout, or raise transaction.max.timeout.ms on the brokers": "pgsluice lowers the timeout by itself if it has the right to read the limit of the brokers",
    "PostgreSQL 10 is the first version with pgoutput": "the tests have no older version",
    "replication slot … does not exist. If somebody has dropped it, the changes since then are lost to this pipeline, "
    "because a new slot does not send them": "a race of some milliseconds between two requests of a start",
    "Slot … was dropped while it was being started": "a race of some milliseconds between two requests of a start",
    "kafka.aws_msk_region needs Python's module …": "the module is installed where the tests run",
    "A schema registry server needs Python's module …": "the module is installed where the tests run",
    "OTEL_... asks for spans, but none are sent: pip install 'pgsluice[otel]'": (
        "the module is installed where the tests run"
    ),
    "…=require, but the compiled modules cannot be used": "the modules are installed where the tests run",
    "… is …: write one of …": "the environment variable has nothing to do with a server",
    "http.listen: … is not an address": "pgsluice refuses the settings before its HTTP server starts to listen",
    "http.tls_cert_file: … cannot be read: …": "the client that reads the file reports this, and not a server",
    "Table … has had more than … columns": "the table must have had 50,000 columns, which takes many ALTER TABLE statements",
    "Position …, recorded as delivered, lies inside the commit record …": "no server of these tests has such a position",
}
"""Messages that no real server produces in these tests, with the reasons. Unit tests produce them."""

ONLY_IN_UNIT_TESTS = frozenset(
    {
        "the role needs LOGIN and REPLICATION",
        "The server is a standby, and it has not replayed … yet",
        "…: no answer (…)",
        "Rows that were read from tables are in Kafka at … on timeline …",
        "The last … delivered ended at …. The slot's position is before it, but the server did not send it again",
        "The transaction that ends at … has xid …, but the one delivered had xid …",
        "The message at … is not the one that was delivered",
        "the value of key column … was not sent (unchanged, out of line)",
        "PostgreSQL cannot be reached: …. To do: …",
        "choose a name that is not reserved",
        "the daemon at … refuses us",
        "shows another certificate than http.tls_cert_file",
        "no daemon answers at …",
        "But it happened twice in a row, and nothing after … was delivered in between",
        "It does not know this compatibility level or mode",
        "a table cannot be published",
        "table released from quarantine",
        "tables cannot be read now",
        "no table can be loaded",
        "a table cannot be loaded",
        "further tables cannot be read, because their owners are not trusted",
        "tables count as loaded, because an earlier version has delivered their changes",
        "a prepared transaction keeps the slot from moving",
        "COMMIT PREPARED of a transaction that was not received",
        "the last checkpoint has no cut record, so it was not committed",
        "another program writes to the topic of checkpoints",
        "the topic of commands ends before the last command that was read",
        "transactions do not work: if a former owner left one open, readers wait for its timeout",
        "reading waits",
        "the types of the published columns were not checked",
        "the HTTP server keeps its former certificate or token",
        "the slot cannot be read: its metrics become unknown, until a later attempt succeeds",
        "a schema has got suspiciously many versions within an hour",
        "the schema registry has another id for a schema than earlier messages",
        "prefixes share ids: clients that do not name the subject are refused",
        "waiting for Kafka",
        "reading a schema topic",
        "Kafka clients cannot be replaced now",
        "waiting for schemas",
        "files could not be removed in time; the next process removes them",
        "PostgreSQL says",
        "the program at this address is not pgsluice",
        "No pipeline has answered. The command has expired",
        "There is no checkpoint of this pipeline yet",
        "The registry uses id … for a schema of subject …",
        "The registry gave id … to a schema that has id … in messages",
        "… Correct kafka.topic_prefix, or start the pipeline once",
        "It is not from this pipeline, or its schema is not in the topic of schemas",
        "table …: key column … is not among the published columns",
        "The key of table … is not among its published columns",
        "Table … would go to topic …, which a [[tables.rules]] entry gives to other tables",
        "Table … would go to topic …, which has the rows of another table",
        "Table … would go to topic …, which pgsluice keeps for itself",
        "Table … would go to topic …, but … is reserved for table …",
        "Kafka refuses topic …",
        "It can never take this schema",
    }
)
"""Messages that real servers could cause, but that only unit tests produce."""

SHORT = 8
"""Parts of a message with fewer characters occur in too many places to be useful."""

WINDOW = 15
"""The source of the test that produces a message must contain this number of consecutive characters of the message."""


def scenarios() -> Iterator[str]:
    """Yield the messages that the scenarios produce."""
    for name in SCENARIOS:
        module = importlib.import_module(f"tests.integration.test_runbook_{name}")
        yield from getattr(module, "MESSAGES", ())
        for scenario in getattr(module, "SCENARIOS", ()):
            yield from (scenario.message, *scenario.also)


@cache
def functions(file: str) -> Mapping[str, str]:
    """Return the source of each test of a file by the test's name. The empty name has the source of the whole file."""
    text = (TESTS / "integration" / f"test_{file}.py").read_text()
    parts = {
        node.name.removeprefix("test_"): ast.get_source_segment(text, node) or ""
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    return {**parts, "": text}


def source(test: str) -> str:
    """Return the source of the test, or of the whole file if no test is named."""
    file, _, name = test.partition("::")
    found = functions(file)
    if not name:
        return found[""]
    return next((text for known, text in found.items() if known.startswith(name)), "")


def is_quoted(message: str, text: str) -> bool:
    """Return whether the source of a test contains a part of the message."""
    text = re.sub(r'\\|"\s*\n\s*f?r?"', "", text)
    pieces = [piece.strip() for piece in message.split(ANYTHING)]
    longest = max(map(len, pieces))
    return any(is_part_in(piece, text) for piece in pieces if len(piece) >= min(longest, SHORT))


def is_part_in(piece: str, text: str) -> bool:
    return any(piece[at : at + WINDOW] in text for at in range(max(len(piece) - WINDOW, 0) + 1))


def test_every_message_is_produced_somewhere() -> None:
    covered = [*scenarios(), *FOLLOWED, *PRODUCED, *NO_SERVER, *ONLY_IN_UNIT_TESTS]
    assert [one for one in rows() if one not in covered] == []
    assert [one for one in covered if one not in rows()] == []


@pytest.mark.parametrize("message", [*FOLLOWED, *PRODUCED])
def test_the_named_test_quotes_the_message(message: str) -> None:
    assert is_quoted(message, source({**FOLLOWED, **PRODUCED}[message]))
