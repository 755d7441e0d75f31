"""Turns values in PostgreSQL's binary format (``postgres.binary``) into PostgreSQL's text format.

``conversions`` finds the conversion of a column, and the other modules have the conversions of each family of types.
``avro`` reads the text, so the events are the same, whether PostgreSQL sends text or binary values. If a value cannot
be converted, its conversion raises one of the errors in ``base.UNREAD``.

https://www.postgresql.org/docs/current/sql-createtype.html
"""
