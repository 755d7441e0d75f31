"""What the send functions of types wrote (``postgres.binary``), back to the text their output functions write.

``types`` finds the conversion of a column; the other modules hold the conversions by family. Text is the one
form that the rest of ``avro`` knows, so that a value gives the same bytes, however it was sent. Whatever is
not what a send function writes is :class:`pgsluice.pgoutput.cursor.Malformed`.

https://www.postgresql.org/docs/current/sql-createtype.html
"""
