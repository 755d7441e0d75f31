"""Turns values in PostgreSQL's binary format (``postgres.binary``) into the text that the output functions write.

``conversions`` finds the conversion of a column, and the other modules have the conversions of each family of types.
``avro`` reads this text, so the events are the same, whether PostgreSQL sends text or binary values. If no send
function can have written the bytes of a value, its conversion raises :class:`pgsluice.pgoutput.cursor.Malformed`.

https://www.postgresql.org/docs/current/sql-createtype.html
"""
