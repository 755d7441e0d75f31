"""Makes text safe to show, so that it cannot control a terminal, look like two lines, or reveal secrets.

Table names, gids and server messages can contain any character. All code that shows text to people uses this module:
the commands, the log on a console, the status page. JSON output does not need this module, because the JSON encoder
escapes everything except ASCII.

https://www.unicode.org/reports/tr36/#Bidirectional_Text_Spoofing
"""

import re

_WORD = re.compile(r"\S+")
_USER_WITH_BLANK = re.compile(r"""(?<=://)[^\s/?#@"']*\s[^/?#"'\n]*@""")
_QUERY = re.compile(r"([?#]).+", re.DOTALL)
_PLAIN = re.compile(r"[\w$-]+")


def printable(text: str) -> str:
    r"""Return ``text`` with a Python escape sequence (``\x1b``) in place of every character that is not printable.

    Such characters are control characters, line breaks, marks that change the direction of text, invisible characters,
    white space other than the space character, and halves of surrogate pairs.
    """
    return text if text.isprintable() else "".join(map(_escape, text))


def quoted(*names: str) -> str:
    """Return the name of a database object for a message, with quotes around each part that is not one plain word.

    Users choose the names of tables. Without quotes, a name could read like a part of our message. The result can
    be parsed, because quotes in a name are doubled, as in SQL.
    """
    return ".".join(name if _PLAIN.fullmatch(name) else _in_quotes(name) for name in names)


def sql_identifier(*names: str) -> str:
    r"""Return the name of a database object as SQL that can be copied from a terminal.

    A character that is not printable becomes an escape sequence, as in ``U&"\000a"``.
    https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS
    """
    return ".".join(map(_sql_identifier, names))


def _sql_identifier(name: str) -> str:
    if name.isprintable():
        return _in_quotes(name)
    escaped = name.replace("\\", "\\\\")
    return "U&" + _in_quotes("".join(one if one.isprintable() else f"\\+{ord(one):06x}" for one in escaped))


def _in_quotes(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def without_url_secrets(text: str) -> str:
    """Return ``text`` with three stars in place of user, password, query and fragment of each URL in it."""
    if "://" not in text:
        return text
    return _WORD.sub(_without_secrets, _USER_WITH_BLANK.sub(_without_password, text))


def _without_password(user: re.Match[str]) -> str:
    return "***@" if ":" in user[0] else user[0]


def _without_secrets(word: re.Match[str]) -> str:
    """Return ``word`` without secrets.

    The run time must be proportional to the length of ``word``, because strangers can choose very long words.
    """
    scheme, mark, rest = word[0].partition("://")
    user, at, place = rest.rpartition("@")
    public = _QUERY.sub(r"\1***", place)
    return f"{scheme}{mark}{'***' if at else user}{at}{public}"


def _escape(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
