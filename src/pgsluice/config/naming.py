"""Checks of names in the settings: templates of topic names, patterns of table names, hosts and addresses.

The settings model uses these checks. They refuse a template with which two tables could share a topic by accident.
"""

import re
from urllib.parse import urlsplit

from pgsluice.config.units import MAX_PORT
from pgsluice.tables import TablePattern

_PLACEHOLDER = re.compile(r"\{(prefix|schema|table)\}")
_TOPIC_CHARACTERS = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)
_OWN = re.compile(r"\{prefix\}[._-]")


SLOT_PREFIX = "pgsluice_"
"""If postgres.slot is not set, the slot's name is this prefix and the pipeline's name."""

_IDENTIFIER_MAX = 63
"""The maximum length of a PostgreSQL identifier, in bytes (NAMEDATALEN - 1)."""

_TOPIC_PREFIX_MAX = 150
"""A topic's name has at most 249 characters. This limit leaves about a hundred characters for schema and table."""

_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", re.ASCII)


def check_slot_name(name: str) -> str:
    """Return ``name``. Raise ValueError if PostgreSQL does not accept it for a replication slot."""
    return _check_identifier(name, _IDENTIFIER_MAX)


def check_pipeline_name(name: str) -> str:
    """Return ``name``. Raise ValueError if a slot cannot be named after it."""
    return _check_identifier(name, _IDENTIFIER_MAX - len(SLOT_PREFIX))


def _check_identifier(name: str, longest: int) -> str:
    if not re.fullmatch(rf"[a-z0-9_]{{1,{longest}}}", name):
        raise ValueError(f"{name!r} must be 1 to {longest} lower-case letters, digits and underscores")
    return name


def check_host_name(text: str) -> str:
    """Return ``text``. Raise ValueError if it cannot be the name in a Host header."""
    if not _HOST_NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a host name: write it without scheme, port and wildcard, as in 'pgsluice.example.com'"
        )
    return text


def check_topic_prefix(prefix: str) -> str:
    """Return ``prefix``. Raise ValueError if it cannot be the first part of topic names."""
    if len(prefix) > _TOPIC_PREFIX_MAX or not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", prefix):
        raise ValueError(
            f"{prefix!r} must be at most {_TOPIC_PREFIX_MAX} letters, digits, '_' and '-', "
            "with single dots between them"
        )
    return prefix


_NO_ADDRESS = "must be addresses like http://127.0.0.1:8081, separated by commas"


def check_address(url: str) -> str:
    """Return ``url``. Raise ValueError, without secrets in its text, if ``url`` cannot be the base of an HTTP API."""
    try:
        parts = urlsplit(url)
    except ValueError:  # the error's message may quote the URL
        raise ValueError(_NO_ADDRESS) from None
    if "@" in parts.netloc:
        raise ValueError("has a user in it: set username and password instead, which are kept out of logs")
    found = re.fullmatch(r"(?:\[[^\]]+\]|[^:]+)(?::([0-9]{1,5}))?", parts.netloc)
    is_usable = found is not None and int(found[1] or 0) <= MAX_PORT and url.isprintable() and " " not in url
    if parts.scheme not in {"http", "https"} or not is_usable or parts.query or parts.fragment:
        raise ValueError(_NO_ADDRESS)
    return url


def check_glob(glob: str) -> str:
    """Return ``glob``. Raise ValueError if it is not a pattern over ``schema.table``."""
    TablePattern.parse(glob)
    return glob


def check_template(template: str) -> str:
    """Return ``template``. Raise ValueError if its topic names could be invalid in Kafka, or ambiguous."""
    if not template or not _TOPIC_CHARACTERS.fullmatch(_PLACEHOLDER.sub("", template)):
        raise ValueError(
            f"{template!r} cannot name a topic: write letters, digits, '.', '_', '-' "
            "and the placeholders {prefix}, {schema} and {table}"
        )
    if not _OWN.match(template):
        raise ValueError(
            f"{template!r} must begin with {{prefix}} and a dot, '-' or '_'; otherwise it could name a topic of "
            "another pipeline"
        )
    names = _PLACEHOLDER.findall(template)
    if len(names) != len(set(names)):
        raise ValueError(f"{template!r} repeats a placeholder: use each of them once")
    between = re.search(r"\{(?:schema|table)\}(.*)\{(?:schema|table)\}", template)
    if between and "." not in between[1]:
        raise ValueError(
            f"{template!r} must have a dot between {{schema}} and {{table}}; otherwise two tables could get one topic"
        )
    return template
