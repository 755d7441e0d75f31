"""The parts of Avro that change events need: schemas made from relations, and rows converted from PostgreSQL's formats.

``types`` and ``schema`` choose the Avro type and the field of each column, once per version of a relation. For each
row, ``encoder`` calls ``text`` and ``binary``, and for values in binary format also ``from_binary``. ``wire`` adds the
header in front of the encoded bytes. No dict is built for a row, and nothing does I/O.

https://avro.apache.org/docs/1.12.0/specification/
"""
