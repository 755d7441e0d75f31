"""Compares numerics that are strings in keys and decimals in rows.

Used by :mod:`.fold`, :mod:`.mirror` and :mod:`.rows`. With the setting ``tables.numeric``, a numeric without precision
is a decimal in rows. In keys, it is always a string, because a decimal cannot hold every numeric, and a key has no
``raw``. Equal numerics can have different texts, such as 9 and 9.0, and Spark would compare a string with a decimal as
doubles. So both are compared as texts without zeros at the end of the fraction.

``tests/spark/test_query.py`` covers this module.

https://www.postgresql.org/docs/current/datatype-numeric.html
"""

from pyspark.sql.types import DecimalType, StringType, StructType

from pgsluice_spark.targets import quoted


def numeric_keys(key: StructType, row: StructType) -> dict[str, int]:
    """Return the columns of the key that are strings in the key and decimals in the row, with the decimals' scales."""
    strings = {part.name for part in key if isinstance(part.dataType, StringType)}
    return {
        field.name: field.dataType.scale
        for field in row
        if field.name in strings and isinstance(field.dataType, DecimalType)
    }


def shortest(text: str) -> str:
    """Return SQL for a numeric's text without zeros at the end of its fraction. ``text`` is an expression in SQL."""
    return f"if(contains({text}, '.'), trim(TRAILING '.' FROM trim(TRAILING '0' FROM {text})), {text})"


def text_in_row(row: str, name: str, raw: str, scale: int) -> str:
    """Return SQL for the text of a numeric in a row.

    ``row`` is the prefix of the row's columns, and ``raw`` the map that has the texts of values that the decimals
    cannot hold.
    """
    # A cast of a decimal to a string may use an exponent. format_number does not, but separates thousands.
    plain = f"replace(format_number({row}{quoted(name)}, {scale}), ',', '')"
    return f"coalesce(try_element_at({raw}, '{name}'), {plain})"
