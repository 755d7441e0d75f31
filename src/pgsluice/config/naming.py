"""Names in the settings: templates of topics, globs over tables.

Used by the settings model. As far as settings can tell, two tables never share a topic.
"""

import re
from urllib.parse import urlsplit

from pgsluice.config.units import MAX_PORT
from pgsluice.tables import TablePattern

_PLACEHOLDER = re.compile(r"\{(prefix|schema|table)\}")
_TOPIC_CHARACTERS = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)
_OWN = re.compile(r"\{prefix\}[._-]")
_WILDCARD = re.compile(r"[*?\[]")


SLOT_PREFIX = "pgsluice_"
"""A slot that is not named is named so, after the pipeline."""

_IDENTIFIER_MAX = 63
"""Bytes of a PostgreSQL identifier (NAMEDATALEN - 1)."""

_TOPIC_PREFIX_MAX = 150
"""Of the 249 characters of a topic's name, a hundred are left to schema and table."""

_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", re.ASCII)


def check_slot_name(name: str) -> str:
    """Return what PostgreSQL takes as a replication slot's name; ValueError for anything else."""
    return _check_identifier(name, _IDENTIFIER_MAX)


def check_pipeline_name(name: str) -> str:
    """Return a name after which a slot can be named; ValueError for anything else."""
    return _check_identifier(name, _IDENTIFIER_MAX - len(SLOT_PREFIX))


def _check_identifier(name: str, longest: int) -> str:
    if not re.fullmatch(rf"[a-z0-9_]{{1,{longest}}}", name):
        raise ValueError(f"{name!r} must be 1 to {longest} lower-case letters, digits and underscores")
    return name


def check_host_name(text: str) -> str:
    """Return ``text`` if it can be the name in a Host header; ValueError otherwise."""
    if not _HOST_NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a host name: write it without scheme, port and wildcard, as in 'pgsluice.example.com'"
        )
    return text


def check_topic_prefix(prefix: str) -> str:
    """Return the first part of topic names; ValueError for what could not be one."""
    if len(prefix) > _TOPIC_PREFIX_MAX or not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", prefix):
        raise ValueError(
            f"{prefix!r} must be at most {_TOPIC_PREFIX_MAX} letters, digits, '_' and '-', "
            "with single dots between them"
        )
    return prefix


_NO_ADDRESS = "must be addresses like http://127.0.0.1:8081, separated by commas"


def check_address(url: str) -> str:
    """Return the base of an HTTP API; ValueError, without any secret in it, for anything else."""
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may quote the URL
        raise ValueError(_NO_ADDRESS) from None
    if "@" in parts.netloc:
        raise ValueError("has a user in it: write it as username and password, which are kept out of logs")
    found = re.fullmatch(r"(?:\[[^\]]+\]|[^:]+)(?::([0-9]{1,5}))?", parts.netloc)
    is_usable = found is not None and int(found[1] or 0) <= MAX_PORT and url.isprintable() and " " not in url
    if parts.scheme not in {"http", "https"} or not is_usable or parts.query or parts.fragment:
        raise ValueError(_NO_ADDRESS)
    return url


def check_glob(glob: str) -> str:
    """Return a pattern over ``schema.table``; ValueError when it is none."""
    TablePattern.parse(glob)
    return glob


def check_template(template: str) -> str:
    """Return a template of topic names; ValueError for what Kafka does not allow or would be ambiguous."""
    if not template or not _TOPIC_CHARACTERS.fullmatch(_PLACEHOLDER.sub("", template)):
        raise ValueError(
            f"{template!r} cannot name a topic: write letters, digits, '.', '_', '-' "
            "and the placeholders {prefix}, {schema} and {table}"
        )
    if not _OWN.match(template):
        raise ValueError(
            f"{template!r} must begin with {{prefix}} and a dot, '-' or '_', or it could name another pipeline's topic"
        )
    names = _PLACEHOLDER.findall(template)
    if len(names) != len(set(names)):
        raise ValueError(f"{template!r} repeats a placeholder: one each is enough")
    between = re.search(r"\{(?:schema|table)\}(.*)\{(?:schema|table)\}", template)
    if between and "." not in between[1]:
        raise ValueError(f"{template!r} must have a dot between {{schema}} and {{table}}, or topics could coincide")
    return template


def missing_placeholders(template: str, glob: str) -> list[str]:
    """Return the placeholders without which tables that match ``glob`` would share a topic."""
    pattern = TablePattern.parse(glob)
    parts = (("{schema}", pattern.schema), ("{table}", pattern.table))
    needed = [name for name, part in parts if _WILDCARD.search(part)]
    return [placeholder for placeholder in needed if placeholder not in template]
