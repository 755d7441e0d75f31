"""The parts of Avro that change events need: schemas made from relations, and rows converted from PostgreSQL's formats.

``types`` and ``schema`` decide once per version of a relation. ``encoder``, ``text`` and ``binary`` run per row, and so
does ``from_binary`` for values in binary format. ``wire`` is the framing around the result. No dict is built for a row,
and nothing does I/O.

https://avro.apache.org/docs/1.12.0/specification/
"""
