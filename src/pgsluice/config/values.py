"""The types of the values of settings, each with its check.

The modules of the settings use these types. A check that refuses a value raises ValueError. If the setting is a TOML
table, the check raises KeyProblems.
"""

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainValidator, SecretStr, WithJsonSchema

from pgsluice.avro.choices import Choice
from pgsluice.config import libpq, librdkafka
from pgsluice.config.naming import (
    check_glob,
    check_host_name,
    check_pipeline_name,
    check_slot_name,
    check_template,
    check_topic_prefix,
)
from pgsluice.config.problems import KeyProblems, Path, is_secret

COMPRESSION = {"compression.type": "lz4"}
"""The default compression. It needs little CPU time, and reduces text and Avro to a third of their size."""

MaskedTexts = dict[str, str | SecretStr]
_EMPTY = "is empty: write the secret, or leave the setting out"


def _texts(value: object, refusal: Callable[[str], str] = lambda _: "") -> dict[str, str]:
    if not isinstance(value, dict):
        raise KeyProblems([((), "must be a table of names and values")])
    found = {name: refusal(name) or _no_text(entry) for name, entry in value.items()}
    if any(found.values()):
        raise KeyProblems(((name,), sentence) for name, sentence in found.items() if sentence)
    return {name: str(entry).lower() if isinstance(entry, bool) else str(entry) for name, entry in value.items()}


def _choices(value: object) -> dict[str, Choice]:
    found: dict[str, Choice] = {}
    problems: list[tuple[Path, str]] = []
    for pattern, name in _texts(value).items():
        try:
            found[pattern] = Choice.parse(name)
        except ValueError as error:
            problems.append(((pattern,), str(error)))
    if problems:
        raise KeyProblems(problems)
    return found


def _no_text(entry: object) -> str:
    return "" if isinstance(entry, str | int | float) else "must be a text, a number, true or false"


def _parameters(value: object) -> MaskedTexts:
    return _mask(_texts(value, libpq.refusal), is_secret)


def _client_properties(value: object) -> MaskedTexts:
    texts = COMPRESSION | _texts(value, librdkafka.refusal)
    return _mask(texts, lambda name: not librdkafka.may_be_shown(name))


def _mask(texts: dict[str, str], is_masked: Callable[[str], bool]) -> MaskedTexts:
    if empty := [name for name, text in texts.items() if is_secret(name) and not text]:
        raise KeyProblems([((name,), _EMPTY) for name in empty])
    return {name: SecretStr(text) if is_masked(name) else text for name, text in texts.items()}


def reveal(masked: MaskedTexts) -> dict[str, str]:
    """Return the texts, secrets included."""
    return {name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in masked.items()}


def _no_repeats(values: list[str]) -> list[str]:
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise ValueError(f"names {', '.join(repeated)} more than once")
    return values


def _no_zero(factor: int) -> int:
    if factor == 0:
        raise ValueError("must be -1 (the broker's default) or at least 1")
    return factor


def no_uri(host: str) -> str:
    """Return the host. Raise ValueError if it has a scheme or a user."""
    if "://" in host:
        raise ValueError("is a URI: write it as postgres.dsn")
    if any("@" in one.strip()[1:] for one in host.split(",")):  # a leading @ begins an abstract name of a Unix socket
        raise ValueError("has a user in it: set postgres.user and postgres.password instead")
    return host


def no_user(servers: str) -> str:
    """Return the servers. Raise ValueError if there is a user in them."""
    if "@" in servers:
        raise ValueError('has a user in it: set "sasl.username" and "sasl.password" under kafka.client instead')
    return servers


def _not_empty(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value():
        raise ValueError(_EMPTY)
    return secret


Secret = Annotated[SecretStr, AfterValidator(_not_empty)]
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]
Port = Annotated[int, Field(strict=True, ge=1, le=2**16 - 1)]
ReplicationFactor = Annotated[int, Field(strict=True, ge=-1, le=2**15 - 1), AfterValidator(_no_zero)]
Text = Annotated[str, Field(strict=True, min_length=1)]
Command = Annotated[list[Text], Field(min_length=1)]
"""A program and its arguments."""
Names = Annotated[list[Text], Field(min_length=1), AfterValidator(_no_repeats)]
Glob = Annotated[str, Field(strict=True), AfterValidator(check_glob)]
Template = Annotated[str, Field(strict=True), AfterValidator(check_template)]
SlotName = Annotated[str, Field(strict=True), AfterValidator(check_slot_name)]
PipelineName = Annotated[str, Field(strict=True), AfterValidator(check_pipeline_name)]
HostName = Annotated[str, Field(strict=True), AfterValidator(check_host_name)]
TopicPrefix = Annotated[str, Field(strict=True), AfterValidator(check_topic_prefix)]
OnTruncate = Literal["emit", "skip"]
_TABLE_SCHEMA = WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}})
Parameters = Annotated[MaskedTexts, PlainValidator(_parameters), _TABLE_SCHEMA]
ClientProperties = Annotated[MaskedTexts, PlainValidator(_client_properties), _TABLE_SCHEMA]
TopicConfig = Annotated[dict[str, str], PlainValidator(_texts), _TABLE_SCHEMA]
ColumnTypes = Annotated[dict[str, Choice], PlainValidator(_choices), _TABLE_SCHEMA]
