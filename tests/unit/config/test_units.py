from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from pgsluice.config.units import Duration, ListenAddress, NumericAs, Size, Within


class Model(BaseModel):
    duration: Duration = Duration.parse("1s")
    size: Size = Size.parse("1B")
    listen: ListenAddress = ListenAddress.parse("localhost:1")
    numeric: NumericAs = NumericAs()
    limited: Annotated[Duration, Within("1s", "1min")] = Duration.parse("1s")


def refusal(**values: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Model.model_validate(values)
    (error,) = caught.value.errors()
    return str(error["ctx"]["error"])


@pytest.mark.parametrize(
    ("text", "milliseconds", "canonical"),
    [
        ("50ms", 50, "50ms"),
        ("5s", 5_000, "5s"),
        ("90s", 90_000, "90s"),
        ("60 s", 60_000, "1min"),
        ("15min", 900_000, "15min"),
        ("24h", 86_400_000, "1d"),
        ("2d", 172_800_000, "2d"),
        ("0s", 0, "0ms"),
        (" 1500ms ", 1_500, "1500ms"),
    ],
)
def test_durations_are_read_and_printed(text: str, milliseconds: int, canonical: str) -> None:
    duration = Duration.parse(text)
    assert (duration.milliseconds, str(duration)) == (milliseconds, canonical)
    assert duration.seconds == milliseconds / 1000


@pytest.mark.parametrize(
    ("text", "size", "canonical"),
    [
        ("512B", 512, "512B"),
        ("64KiB", 65_536, "64KiB"),
        ("1024KiB", 1_048_576, "1MiB"),
        ("16 MiB", 16_777_216, "16MiB"),
        ("20GiB", 21_474_836_480, "20GiB"),
        ("1TiB", 2**40, "1TiB"),
        ("0GiB", 0, "0B"),
    ],
)
def test_sizes_are_read_and_printed(text: str, size: int, canonical: str) -> None:
    assert (Size.parse(text).bytes, str(Size.parse(text))) == (size, canonical)


@given(st.integers(min_value=0, max_value=2**60))
def test_printed_values_can_be_read_back(number: int) -> None:
    assert Duration.parse(str(Duration(number))) == Duration(number)
    assert Size.parse(str(Size(number))) == Size(number)


@pytest.mark.parametrize("text", ["", "s", "1.5s", "-1s", "1s5ms", "1e3s", "\u0661s"])
def test_only_whole_numbers_have_units(text: str) -> None:
    assert refusal(duration=text) == f"{text!r} is not a whole number with a unit: write it like '5s'"


@pytest.mark.parametrize(
    ("text", "guess"),
    [("5", "5ms"), ("5m", "5min"), ("5msec", "5ms"), ("5sec", "5s"), ("1H", "1h"), ("1days", "1d"), ("1y", "1ms")],
)
def test_an_unknown_unit_of_time_is_answered_with_a_guess(text: str, guess: str) -> None:
    assert refusal(duration=text) == f"{text!r} needs one of the units ms, s, min, h, d: perhaps {guess!r}?"


@pytest.mark.parametrize(("text", "guess"), [("16MB", "16MiB"), ("1kb", "1KiB"), ("1G", "1GiB"), ("7", "7B")])
def test_an_unknown_unit_of_size_is_answered_with_a_guess(text: str, guess: str) -> None:
    assert refusal(size=text) == f"{text!r} needs one of the units B, KiB, MiB, GiB, TiB: perhaps {guess!r}?"


def test_plain_numbers_are_answered_with_what_to_write() -> None:
    assert refusal(duration=10).endswith('write "10s" or "10ms"')
    assert refusal(duration=1.5).endswith('write "5s" or "5ms"')
    assert refusal(duration=True).endswith('write "5s" or "5ms"')
    assert refusal(size=1024).endswith('write "1024B" or "1024MiB"')
    assert refusal(size=[]).endswith('write "16B" or "16MiB"')
    assert refusal(listen=8080) == "must be a text in quotes, not int"


def test_limits_are_included() -> None:
    assert Model.model_validate({"limited": "1s"}).limited == Duration(1_000)
    assert Model.model_validate({"limited": "1min"}).limited == Duration(60_000)
    assert refusal(limited="999ms") == "is 999ms, but must be from 1s to 1min"
    assert refusal(limited="61s") == "is 61s, but must be from 1s to 1min"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("[::1]:80", "::1", 80),
        ("localhost:0", "localhost", 0),
        ("0.0.0.0:65535", "0.0.0.0", 65535),  # noqa: S104 - nothing is bound
    ],
)
def test_addresses_are_read_and_printed(text: str, host: str, port: int) -> None:
    address = ListenAddress.parse(text)
    assert (address.host, address.port, str(address)) == (host, port, text)


@pytest.mark.parametrize("text", ["", "8080", ":8080", "localhost", "localhost:65536", "::1:80", "a b:1", "h:-1"])
def test_invalid_addresses_are_refused(text: str) -> None:
    assert refusal(listen=text) == f"{text!r} is not an address with a port: write it like '0.0.0.0:8080'"


def test_names_that_no_host_can_have_are_refused() -> None:
    assert refusal(listen="a..b:80") == "no host can have the name 'a..b'"


def test_numeric_is_a_string_or_a_decimal() -> None:
    assert NumericAs.parse("string").avro == "string"
    assert NumericAs.parse("decimal(38, 9)").avro == (38, 9)
    assert str(NumericAs.parse("string")) == "string"
    assert str(NumericAs.parse("decimal( 38 ,9 )")) == "decimal(38,9)"


@pytest.mark.parametrize("text", ["decimal(39,0)", "decimal(0,0)", "decimal(5,6)"])
def test_impossible_decimals_are_refused(text: str) -> None:
    assert (
        refusal(numeric=text) == f"{text!r} is not possible: precision goes from 1 to 38, scale from 0 to the precision"
    )


@pytest.mark.parametrize("text", ["decimal", "float", "decimal(5)", "decimal(5,-1)", ""])
def test_other_choices_for_numeric_are_refused(text: str) -> None:
    assert refusal(numeric=text).endswith("is neither 'string' nor a decimal: write it like 'decimal(38,9)'")


def test_values_pass_through_and_are_dumped_as_text() -> None:
    model = Model(duration=Duration(5_000))
    assert model.model_dump(mode="json") == {
        "duration": "5s",
        "size": "1B",
        "listen": "localhost:1",
        "numeric": "string",
        "limited": "1s",
    }


def test_the_json_schema_of_every_kind_is_a_pattern() -> None:
    properties = Model.model_json_schema()["properties"]
    assert {name: entry["type"] for name, entry in properties.items()} == dict.fromkeys(Model.model_fields, "string")
    assert properties["size"]["pattern"] == Size.pattern
