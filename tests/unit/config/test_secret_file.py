from pathlib import Path

import pytest

from pgsluice.config.secret_file import read_password_file, read_token_file


def test_the_first_line_of_a_file_is_the_password(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for content in ("s3cret", "s3cret\n", "s3cret\r\n", "s3cret\nnote\n"):
        file.write_text(content, newline="")
        assert read_password_file(str(file)) == "s3cret"
    file.write_text(" p\u00e4ss \n")
    assert read_password_file(str(file)) == " p\u00e4ss "


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a password"),
        (b"\nlater\n", "is not a password"),
        (b"hunter2\0\n", "is not a password"),
        (b"hunter2\xff\n", "is not UTF-8 text"),
    ],
)
def test_files_without_a_password_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as caught:
        read_password_file(str(file))
    assert "hunter2" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent cannot be read: No such file"):
        read_password_file(str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read_password_file(str(tmp_path))


def test_a_file_named_by_mistake_is_not_read_to_its_end() -> None:
    with pytest.raises(ValueError, match="is not a password"):
        read_password_file("/dev/zero")


def test_a_token_is_long(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    assert read_token_file(str(file)) == "0123456789abcdef"
    file.write_text("0123456789abcde\n")
    with pytest.raises(ValueError, match="has fewer than 16 characters"):
        read_token_file(str(file))


def test_a_token_is_ascii(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdéf\n")
    with pytest.raises(ValueError, match="characters that are not ASCII, which HTTP cannot carry"):
        read_token_file(str(file))
