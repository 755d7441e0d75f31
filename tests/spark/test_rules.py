"""Tests that every rule of a mirror is needed. If a rule is switched off, a test of ``test_query.py`` must fail.

One rule is missing here: no change is applied twice. In the tests of ``test_query.py``, the rows of a mirror are right
even without this rule. Only change logs need it (``test_parquet.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark import CountMismatch, batches, copies, delta_log, fold, job, loads, mirror, query, reading
from pgsluice_spark.copies import Copies
from pgsluice_spark.cuts import Cut, Ranges
from pgsluice_spark.job import TopicJob
from pgsluice_spark.loads import LOADED, TableState
from pgsluice_spark.origin import Origin
from pgsluice_spark.targets import Committed
from pgsluice_spark.work import Work
from tests.spark import test_query as tests
from tests.spark.handmade import Handmade
from tests.spark.lakes import DeltaLake

pytestmark = [pytest.mark.usefixtures("without_compilation"), pytest.mark.long]

Rule = Callable[[pytest.MonkeyPatch], None]
"""A function that switches a rule off."""

Test = Callable[[Callable[..., Handmade], Path], None]

WRONG = AssertionError
"""Without the rule, the mirror has wrong rows, and reports no error."""
UNTYPED = StreamingQueryException
"""Without the rule, the query ends with an error of Spark that does not say what to do."""
ACCEPTED = pytest.fail.Exception
"""Without the rule, the mirror accepts what it should refuse."""


def records_between_cuts_are_not_read(patch: pytest.MonkeyPatch) -> None:
    def from_the_first_to_the_last(cuts: Sequence[Cut], topic: str) -> Ranges:
        found = batches.ranges(cuts, topic)
        return {partition: [(known[0][0], known[-1][1])] for partition, known in found.items()}

    patch.setattr(job, "ranges", from_the_first_to_the_last)


def the_last_record_of_a_repeated_cut_is_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(query, "last_of_each_number", list)


def duplicate_records_count_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Work, "events", property(lambda work: work.reading.changes(work.records())))


def rows_of_a_repeated_cut_are_counted_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loads, "_before_repetition", lambda state, _cuts: state)


def the_parts_of_a_cut_record_are_joined(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(query, "joined", list)


def missing_cut_records_are_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(query, "check_order", lambda *_: None)


def events_are_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicJob, "_mismatch", lambda *_: None)


def a_truncate_in_every_partition_counts_once(patch: pytest.MonkeyPatch) -> None:
    usual = mirror.truncates_of

    def all_of_them(work: Work, events: DataFrame) -> Any:  # noqa: ANN401 - as the original
        last, _ = usual(work, events)
        return last, {"t": events.where("op = 't'").count()}

    patch.setattr(mirror, "truncates_of", all_of_them)


def a_truncate_removes_all_earlier_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mirror, "placed", lambda events, _floor: fold.placed(events, None))


def values_that_were_not_sent_are_kept(patch: pytest.MonkeyPatch) -> None:
    none = F.array().cast("array<string>")
    all_sent = property(lambda work: work.reading.changes(work.records()).withColumn("unchanged", none))
    patch.setattr(Work, "events", all_sent)


def a_row_keeps_its_values_when_its_key_changes(patch: pytest.MonkeyPatch) -> None:
    net = mirror._net
    patch.setattr(mirror, "_net", lambda *arguments, has_gaps: net(*arguments, has_gaps=has_gaps and False))


def rows_with_infinite_keys_are_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mirror, "_with_keys", lambda events: events)


def changes_with_the_same_key_are_combined(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mirror, "_has_repeated_key", lambda _events: False)


def only_keys_of_the_same_type_limit_a_merge(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mirror, "bounded_columns", lambda key, *_: key)


def changes_of_the_key_columns_are_refused(patch: pytest.MonkeyPatch) -> None:
    facts = mirror._facts
    others = F.lit(0).alias("others")
    patch.setattr(mirror, "_facts", lambda *arguments: [*facts(*arguments)[:-1], F.max(others).alias("others")])


def the_end_of_a_load_removes_rows_that_were_not_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mirror, "advanced", lambda *arguments: (loads.advanced(*arguments)[0], None))
    patch.setattr(copies, "advanced", lambda *arguments: (loads.advanced(*arguments)[0], None))


def a_load_that_lacks_rows_is_incomplete(patch: pytest.MonkeyPatch) -> None:
    def trusting(state: TableState, *_: object) -> TableState:
        return replace(state, status=LOADED, load=None)

    patch.setattr(loads, "_ended", trusting)


def dead_letters_count_as_missing_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Origin, "tables_with_dead_letters", lambda *_: {})


def records_of_other_tables_in_the_topic_are_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_is_of_another_table", lambda _others: F.lit(False))  # noqa: FBT003 - a literal


def a_recreated_topic_is_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicJob, "_is_of_a_former_topic", lambda *_: False)


def a_target_belongs_to_one_topic_of_cut_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Copies, "_check_app", lambda *_: None)


def a_target_has_one_kind_of_query(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Copies, "_own", lambda _copies, state: state)


def a_table_that_is_left_out_has_a_gap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Copies, "_continued", lambda _copies, _name, table: table)


def changes_of_unknown_tables_are_not_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(query, "declared", lambda *_: {})


def foreign_writes_are_noticed(patch: pytest.MonkeyPatch) -> None:
    last_of = delta_log.last_of

    def of_ours(
        path: str, versions: Sequence[int], info_of: Callable[[int], delta_log.Info | None], since: int | None
    ) -> Committed | None:
        ours = [version for version in versions if delta_log.metadata(info_of(version) or {})]
        return last_of(path, ours, info_of, since)

    patch.setattr(delta_log, "last_of", of_ours)


def _of_delta(test: Callable[..., None]) -> Test:
    return partial(test, kind=DeltaLake)


NEEDED: Mapping[Rule, tuple[Test, type[BaseException]]] = {
    values_that_were_not_sent_are_kept: (tests.test_values_that_were_not_sent, WRONG),
    a_truncate_removes_all_earlier_rows: (tests.test_tables_that_share_a_topic, WRONG),
    the_end_of_a_load_removes_rows_that_were_not_read: (tests.test_rows_that_are_read_again, WRONG),
    a_row_keeps_its_values_when_its_key_changes: (tests.test_values_that_were_not_sent, WRONG),
    rows_with_infinite_keys_are_found: (_of_delta(tests.test_infinite_keys), WRONG),
    a_load_that_lacks_rows_is_incomplete: (tests.test_rows_that_are_read_again, WRONG),
    dead_letters_count_as_missing_changes: (tests.test_rows_that_are_read_again, WRONG),
    the_parts_of_a_cut_record_are_joined: (tests.test_a_cut_record_in_parts, KeyError),
    records_between_cuts_are_not_read: (tests.test_repeated_cuts, WRONG),
    the_last_record_of_a_repeated_cut_is_used: (tests.test_repeated_cuts, CountMismatch),
    rows_of_a_repeated_cut_are_counted_once: (
        partial(tests.test_rows_that_are_read_again_in_a_repeated_cut, before=1),
        WRONG,
    ),
    duplicate_records_count_once: (tests.test_repeated_cuts, CountMismatch),
    a_truncate_in_every_partition_counts_once: (tests.test_a_truncate_in_every_partition, CountMismatch),
    records_of_other_tables_in_the_topic_are_left_out: (tests.test_tables_that_share_a_topic, UNTYPED),
    events_are_counted: (tests.test_topics_that_lack_records, ACCEPTED),
    missing_cut_records_are_noticed: (tests.test_a_cut_record_that_is_missing, ACCEPTED),
    changes_with_the_same_key_are_combined: (
        tests.test_a_row_that_is_inserted_and_loaded_in_the_same_piece,
        WRONG,
    ),
    only_keys_of_the_same_type_limit_a_merge: (
        partial(tests.test_keys_of_any_type, keys=tests.NUMERIC, kind=DeltaLake),
        ValueError,
    ),
    changes_of_the_key_columns_are_refused: (_of_delta(tests.test_what_a_mirror_cannot_follow), ACCEPTED),
    foreign_writes_are_noticed: (_of_delta(tests.test_what_a_mirror_cannot_follow), ACCEPTED),
    a_target_belongs_to_one_topic_of_cut_records: (tests.test_topics_that_lack_records, UNTYPED),
    a_target_has_one_kind_of_query: (tests.test_a_target_has_one_kind_of_query, ACCEPTED),
    a_table_that_is_left_out_has_a_gap: (tests.test_a_table_that_is_left_out_for_a_while, WRONG),
    changes_of_unknown_tables_are_not_skipped: (tests.test_a_registry_that_lacks_the_schemas_of_a_table, ACCEPTED),
    a_recreated_topic_is_noticed: (partial(tests.test_records_that_are_lost, is_recreated=True), UNTYPED),
}


@pytest.mark.parametrize("rule", NEEDED, ids=lambda rule: str(rule.__name__))
def test_a_mirror_without_the_rule_is_wrong(
    rule: Rule, make: Callable[..., Handmade], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    test, expected = NEEDED[rule]
    rule(monkeypatch)
    with pytest.raises(expected):
        test(make, tmp_path)
