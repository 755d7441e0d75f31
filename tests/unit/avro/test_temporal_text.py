"""Unit tests of pgsluice.avro.temporal_text. Python's own calendar is the oracle for the years that it supports."""

from datetime import UTC, date, datetime, timedelta

import pytest

from pgsluice.avro import temporal_text
from pgsluice.avro.binary import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, encode_long
from pgsluice.avro.temporal_text import COMMON_DAYS, COMMON_US, DAY_US, FULL_DAYS, FULL_US
from pgsluice.avro.text import Misfit, Writer

DATE = temporal_text.date(*COMMON_DAYS)
FULL_DATE = temporal_text.date(*FULL_DAYS)
TIME = temporal_text.time(DAY_US)
FULL_TIME = temporal_text.time(DAY_US + 1)
TIMESTAMP = temporal_text.timestamp(*COMMON_US)
FULL_TIMESTAMP = temporal_text.timestamp(*FULL_US)
TIMESTAMPTZ = temporal_text.timestamptz(*COMMON_US)
FULL_TIMESTAMPTZ = temporal_text.timestamptz(*FULL_US)

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without time zone


def us(moment: datetime) -> int:
    return (moment.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)


def refuses(write: Writer, value: bytes) -> bool:
    try:
        write(value)
    except Misfit as misfit:
        return not misfit.args
    return False


def test_every_day_of_the_common_range_is_read() -> None:
    for ordinal in [
        *range(1, 800),
        *range(1, date.max.toordinal() + 1, 97),
        *range(date.max.toordinal() - 800, date.max.toordinal() + 1),
    ]:
        day = date.fromordinal(ordinal)
        text = day.isoformat().encode()
        assert DATE(text) == FULL_DATE(text) == encode_long((day - EPOCH.date()).days)


# From PostgreSQL: SELECT d, d - '1970-01-01' FROM unnest('{...}'::date[]) d
@pytest.mark.parametrize(
    ("value", "days"),
    [
        (b"0001-12-31 BC", -719163),
        (b"0001-01-01 BC", -719528),
        (b"0044-03-15 BC", -735160),
        (b"0005-02-29 BC", -720930),
        (b"4714-11-24 BC", -2440588),
        (b"10000-01-01", 2932897),
        (b"5874897-12-31", 2145042905),
    ],
)
def test_dates_beyond_the_common_range_need_the_full_range(value: bytes, days: int) -> None:
    assert refuses(DATE, value)
    assert FULL_DATE(value) == encode_long(days)


@pytest.mark.parametrize(
    "value",
    [
        b"infinity",
        b"-infinity",
        b"",
        b"2024-02-30",
        b"2023-02-29",
        b"2024-13-01",
        b"2024-00-01",
        b"2024-01-00",
        b"0000-01-01",
        b"0000-01-01 BC",
        b"2024-1-1",
        b"20240101",
        b"2024/01/01",
        b"2024-01-01 AD",
        b"-024-01-01",
        b"+024-01-01",
        b"2024-01- 1",
        b"2024-W01-1",
        b"01/06/2020",
        b"9999999-12-31",
        b"02024-01-01",
        b"99999999-12-31",
        b"2024-01-01 00:00:00",
        b"\xb2\xb2\xb2\xb2-01-01",
    ],
)
def test_texts_that_are_not_dates_are_refused(value: bytes) -> None:
    assert refuses(DATE, value)
    assert refuses(FULL_DATE, value)


@pytest.mark.parametrize(
    ("value", "time_us"),
    [
        (b"00:00:00", 0),
        (b"00:00:01", 1_000_000),
        (b"12:34:56", 45_296_000_000),
        (b"12:34:56.7", 45_296_700_000),
        (b"12:34:56.07", 45_296_070_000),
        (b"12:34:56.007", 45_296_007_000),
        (b"12:34:56.0007", 45_296_000_700),
        (b"12:34:56.00007", 45_296_000_070),
        (b"12:34:56.000007", 45_296_000_007),
        (b"23:59:59.999999", DAY_US - 1),
    ],
)
def test_times_are_microseconds(value: bytes, time_us: int) -> None:
    assert TIME(value) == FULL_TIME(value) == encode_long(time_us)
    midnight = us(datetime(2024, 2, 29))  # noqa: DTZ001 - a timestamp without time zone
    assert TIMESTAMP(b"2024-02-29 " + value) == encode_long(midnight + time_us)
    assert TIMESTAMPTZ(b"2024-02-29 " + value + b"+00") == encode_long(midnight + time_us)


def test_the_end_of_the_day_needs_the_full_range() -> None:
    assert refuses(TIME, b"24:00:00")
    assert FULL_TIME(b"24:00:00") == encode_long(DAY_US)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"12",
        b"12:34",
        b"12:34:5",
        b"24:00:01",
        b"24:00:00.000001",
        b"12:60:00",
        b"12:34:60",
        b"12:34:56.",
        b"12:34:56.1234567",
        b"12:34:56,5",
        b"12:34:56x5",
        b"12:34:56.-1",
        b"12:34:56+00",
        b" 2:34:56",
        b"-1:00:00",
        b"12.34.56",
    ],
)
def test_texts_that_are_not_times_are_refused(value: bytes) -> None:
    assert refuses(TIME, value)
    assert refuses(FULL_TIME, value)
    assert refuses(FULL_TIMESTAMP, b"2024-02-29 " + value)
    assert refuses(FULL_TIMESTAMPTZ, b"2024-02-29 " + value + b"+00")


@pytest.mark.parametrize("moment", [datetime.min, datetime.max, EPOCH, datetime(1969, 12, 31, 23, 59, 59, 1)])  # noqa: DTZ001, DTZ901 - without time zone
def test_timestamps_of_the_common_range_are_read(moment: datetime) -> None:
    text = moment.isoformat(sep=" ").encode()
    assert TIMESTAMP(text) == FULL_TIMESTAMP(text) == encode_long(us(moment))
    assert TIMESTAMPTZ(text + b"+00") == FULL_TIMESTAMPTZ(text + b"+00") == encode_long(us(moment))


# From PostgreSQL: SELECT t, extract(epoch FROM t) * 1000000 FROM unnest('{...}'::timestamp[]) t
@pytest.mark.parametrize(
    ("value", "timestamp_us"),
    [
        (b"0001-12-31 23:59:59.999999 BC", -62135596800000001),
        (b"0044-03-15 12:00:00 BC", -63517780800000000),
        (b"4714-11-24 00:00:00 BC", -210866803200000000),
        (b"10000-01-01 00:00:00", 253402300800000000),
        (b"294247-01-10 04:00:54.775806", LONG_MAX - 1),
    ],
)
def test_timestamps_beyond_the_common_range_need_the_full_range(value: bytes, timestamp_us: int) -> None:
    assert refuses(TIMESTAMP, value)
    assert FULL_TIMESTAMP(value) == encode_long(timestamp_us)
    zoned = value.removesuffix(b" BC") + b"+00" + (b" BC" if value.endswith(b" BC") else b"")
    assert refuses(TIMESTAMPTZ, zoned)
    assert FULL_TIMESTAMPTZ(zoned) == encode_long(timestamp_us)


@pytest.mark.parametrize("value", [b"294247-01-10 04:00:54.775807", b"294276-12-31 23:59:59.999999"])
def test_the_last_timestamps_of_postgresql_do_not_fit_64_bits_from_1970(value: bytes) -> None:
    assert refuses(FULL_TIMESTAMP, value)
    assert refuses(FULL_TIMESTAMPTZ, value + b"+00")


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        (b"2024-02-29 12:00:00+05", datetime(2024, 2, 29, 7, tzinfo=UTC)),
        (b"2024-02-29 12:00:00.5-03", datetime(2024, 2, 29, 15, 0, 0, 500_000, tzinfo=UTC)),
        (b"2024-02-29 12:00:00+05:30", datetime(2024, 2, 29, 6, 30, tzinfo=UTC)),
        (b"1890-01-01 00:00:00+00:53:28", datetime(1889, 12, 31, 23, 6, 32, tzinfo=UTC)),
        (b"1890-01-01 00:00:00-00:53:28", datetime(1890, 1, 1, 0, 53, 28, tzinfo=UTC)),
    ],
)
def test_other_offsets_are_understood(value: bytes, moment: datetime) -> None:
    assert TIMESTAMPTZ(value) == FULL_TIMESTAMPTZ(value) == encode_long(us(moment))


def test_the_range_is_that_of_the_moment_in_utc() -> None:
    assert refuses(TIMESTAMPTZ, b"9999-12-31 23:00:00-01")
    assert refuses(TIMESTAMPTZ, b"0001-01-01 00:00:00+01")
    assert TIMESTAMPTZ(b"10000-01-01 00:30:00+01") == encode_long(us(datetime(9999, 12, 31, 23, 30, tzinfo=UTC)))


@pytest.mark.parametrize(
    "value", [b"infinity", b"-infinity", b"", b"2024-02-29", b"2024-02-29T12:00:00", b"2024-02-30 12:00:00", b"now"]
)
def test_texts_that_are_not_timestamps_are_refused(value: bytes) -> None:
    assert refuses(FULL_TIMESTAMP, value)
    assert refuses(FULL_TIMESTAMPTZ, value)
    assert refuses(FULL_TIMESTAMPTZ, value + b"+00")


def test_a_time_zone_belongs_to_timestamptz_only() -> None:
    assert refuses(FULL_TIMESTAMP, b"2024-02-29 12:00:00+00")
    assert refuses(FULL_TIMESTAMPTZ, b"2024-02-29 12:00:00")


def test_infinities_are_the_extreme_numbers() -> None:
    write = temporal_text.or_infinity(DATE, INT_MIN, INT_MAX)
    assert write(b"-infinity") == encode_long(INT_MIN)
    assert write(b"infinity") == encode_long(INT_MAX)
    assert write(b"1970-01-02") == encode_long(1)
    assert refuses(write, b"Infinity")
    assert (LONG_MIN, LONG_MAX) == FULL_US


@pytest.mark.parametrize(
    ("write", "value", "number"),
    [
        (temporal_text.time(DAY_US, 1000), b"00:00:00.001", 1),
        (temporal_text.time(DAY_US + 1, 1000), b"24:00:00", 86_400_000),
        (temporal_text.timestamp(*COMMON_US, 1000), b"1969-12-31 23:59:59.999", -1),
        (temporal_text.timestamp(*FULL_US, 1000), b"10000-01-01 00:00:00", 253_402_300_800_000),
        (temporal_text.timestamptz(*COMMON_US, 1000), b"1970-01-01 00:00:01+00", 1000),
        (temporal_text.timestamptz(*COMMON_US, 1000), b"1970-01-01 00:00:01+01", -3_599_000),
    ],
)
def test_times_and_timestamps_can_be_milliseconds(write: Writer, value: bytes, number: int) -> None:
    assert write(value) == encode_long(number)


@pytest.mark.parametrize(
    ("write", "value"),
    [
        (temporal_text.time(DAY_US, 1000), b"00:00:00.0001"),
        (temporal_text.timestamp(*COMMON_US, 1000), b"1969-12-31 23:59:59.999999"),
        (temporal_text.timestamp(*COMMON_US, 1000), b"10000-01-01 00:00:00"),
        (temporal_text.timestamptz(*COMMON_US, 1000), b"1970-01-01 00:00:01.000001+00"),
        (temporal_text.timestamptz(*COMMON_US, 1000), b"1970-01-01 00:00:01.000001+01"),
    ],
)
def test_values_between_two_units_are_not_rounded(write: Writer, value: bytes) -> None:
    with pytest.raises(Misfit):
        write(value)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"PT0S", 0),
        (b"P1D", DAY_US),
        (b"PT-0.000001S", -1),
        (b"PT0.5S", 500_000),
        (b"P-3DT4H5M6.789S", -3 * DAY_US + 14_706_789_000),
        (b"PT-4H-5M-6.7S", -14_706_700_000),
        (b"PT2562047788H54.775807S", 2**63 - 1),
        (b"PT-2562047788H-54.775808S", -(2**63)),
    ],
)
def test_intervals_are_microseconds(value: bytes, number: int) -> None:
    assert temporal_text.interval_micros(value) == encode_long(number)


@pytest.mark.parametrize(
    "value",
    [
        *(b"P1M", b"P1Y", b"P1Y2M3DT4H", b"infinity", b"-infinity", b"P106751992D", b"PT2562047788H54.775808S"),
        *(b"P", b"PT", b"P1DT", b"", b"PT1.S", b"PT1.1234567S", b"PT+1S", b"1 day", b"P1D\n", b"PT1S2H"),
    ],
)
def test_intervals_with_months_and_other_texts_do_not_fit(value: bytes) -> None:
    with pytest.raises(Misfit):
        temporal_text.interval_micros(value)
