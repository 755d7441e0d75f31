import pytest

from bench.reader import KEY_HEADER, decode_long
from pgsluice.avro.binary import encode_long


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, 300, 1_000_000, 2**62, -(2**63)])
def test_the_id_is_read_after_the_header_of_a_key(number: int) -> None:
    assert decode_long(bytes(KEY_HEADER) + encode_long(number) + b"more", KEY_HEADER) == number
