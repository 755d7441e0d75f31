"""Text search: tsvector and tsquery as PostgreSQL writes them.

``conversions`` chooses the function for each type.

https://www.postgresql.org/docs/current/datatype-textsearch.html
"""

from typing import Final, NamedTuple

from pgsluice.pgbinary.base import INT16, INT32
from pgsluice.pgoutput.cursor import Cursor, FixedFields, Malformed

_POSITION: Final = FixedFields(position="H")
_POSITION_MASK: Final = 0x3FFF
_WEIGHT_SHIFT: Final = 14
_WEIGHTS: Final = (b"", b"C", b"B", b"A")
"""The letter of each weight of a position. The letter D is not written."""

_COUNT_WIDTH: Final = 2
"""The minimum size of a lexeme or a part of a query, in bytes. A count is invalid if the whole value is shorter than
this size times the count."""


def tsvector(value: bytes) -> bytes:
    """Return the text of a tsvector: ``'lexeme':1A,2 'lexeme'``."""
    cursor = Cursor(value, 0)
    lexemes = [_lexeme(cursor) for _ in range(_count(cursor))]
    cursor.end()
    return b" ".join(lexemes)


def _count(cursor: Cursor) -> int:
    (count,) = cursor.fields(INT32)
    if not 0 <= count * _COUNT_WIDTH <= len(cursor.data):
        raise Malformed(0, "a count of elements that fits the length of the value")
    return int(count)


def _lexeme(cursor: Cursor) -> bytes:
    word = _quoted(cursor.string("lexeme"))
    (count,) = cursor.fields(_POSITION)
    positions = [_position(*cursor.fields(_POSITION)) for _ in range(count)]
    return word + b":" + b",".join(positions) if positions else word


def _position(number: int) -> bytes:
    return b"%d%b" % (number & _POSITION_MASK, _WEIGHTS[number >> _WEIGHT_SHIFT])


def _quoted(word: str) -> bytes:
    return b"'%b'" % word.encode().replace(b"\\", b"\\\\").replace(b"'", b"''")


# --- queries

_VALUE, _OPERATOR = 1, 2
_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_SIGNS: Final = {_AND: b"&", _OR: b"|"}
_PRIORITIES: Final = {_NOT: 4, _PHRASE: 3, _AND: 2, _OR: 1}
_PRIORITY_OF_A_WORD: Final = 5
_QUERY_WEIGHTS: Final = ((8, b"A"), (4, b"B"), (2, b"C"), (1, b"D"))


class _Part(NamedTuple):
    """A part of a query: its text, and the priority and kind that decide whether it needs parentheses."""

    text: bytes
    priority: int
    is_phrase: bool = False

    def within(self, priority: int, *, right_of_phrase: bool = False) -> bytes:
        """Return the text as an operand of an operator of this priority, in parentheses if it needs them."""
        if self.priority < priority or (self.is_phrase and right_of_phrase):
            return b"( %b )" % self.text
        return self.text


def tsquery(value: bytes) -> bytes:
    """Return the text of a tsquery: ``'word':*A & !'word' <-> ( 'word' | 'word' )``."""
    cursor = Cursor(value, 0)
    items = [_item(cursor) for _ in range(_count(cursor))]
    cursor.end()
    # PostgreSQL sends every operator before its operands, and the right operand before the left one. So if the items
    # are read backwards, an operator comes after its operands.
    parts: list[_Part] = []
    for item in reversed(items):
        parts.append(item if isinstance(item, _Part) else _combined(parts, *item))
    if len(parts) > 1 or bool(parts) is not bool(items):
        raise Malformed(0, "one query")
    return parts[0].text if parts else b""


def _item(cursor: Cursor) -> _Part | tuple[int, int]:
    """Read a word, or an operator with the distance of its operands."""
    if cursor.choice("kind", bytes((_VALUE, _OPERATOR))) == _VALUE:
        return _word(cursor)
    operator = cursor.choice("operator", bytes(_PRIORITIES))
    return operator, cursor.fields(INT16)[0] if operator == _PHRASE else 0


def _word(cursor: Cursor) -> _Part:
    weight, has_prefix = cursor.byte("weight"), cursor.flag("prefix")
    marks = b"*" * has_prefix + b"".join([letter for bit, letter in _QUERY_WEIGHTS if weight & bit])
    word = _quoted(cursor.string("word"))
    return _Part(word + b":" + marks if marks else word, _PRIORITY_OF_A_WORD)


def _combined(parts: list[_Part], operator: int, distance: int) -> _Part:
    """Take the operands of an operator from the end of ``parts``. Return one part, with the operator and operands."""
    priority = _PRIORITIES[operator]
    try:
        if operator == _NOT:
            return _Part(b"!" + parts.pop().within(priority), priority)
        is_phrase = operator == _PHRASE
        right, left = parts.pop().within(priority, right_of_phrase=is_phrase), parts.pop().within(priority)
    except IndexError:
        raise Malformed(0, "operands of every operator") from None
    sign = _SIGNS.get(operator) or (b"<->" if distance == 1 else b"<%d>" % distance)
    return _Part(b"%b %b %b" % (left, sign, right), priority, is_phrase)
