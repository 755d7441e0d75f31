# --- the kind of each column, which decides the function that writes its values

cdef enum Kind:
    PYTHON  # written by the column's writer in Python
    BOOLEAN
    INTEGER
    FLOAT4
    FLOAT4_AS_DOUBLE
    FLOAT8
    DECIMAL
    DATE
    TIME
    TIMESTAMP
    TIMESTAMPTZ
    STRING
    CHECKED_STRING
    UUID
    BYTEA
    SENT_BOOLEAN  # from here on, the kinds are those of values in binary format
    SENT_INT2
    SENT_INT4
    SENT_INT8
    SENT_OID
    SENT_FLOAT4
    SENT_FLOAT4_AS_DOUBLE
    SENT_FLOAT8
    SENT_DECIMAL
    SENT_NUMERIC
    SENT_DATE
    SENT_TIME
    SENT_TIMESTAMP
    SENT_BYTES
    SENT_CHECKED_STRING
    SENT_VERSION_1
    SENT_CHECKED_VERSION_1
    SENT_UUID

KINDS = {
    Opcode.BOOLEAN: BOOLEAN,
    Opcode.INTEGER: INTEGER,
    Opcode.FLOAT4: FLOAT4,
    Opcode.FLOAT4_AS_DOUBLE: FLOAT4_AS_DOUBLE,
    Opcode.FLOAT8: FLOAT8,
    Opcode.DECIMAL: DECIMAL,
    Opcode.DATE: DATE,
    Opcode.TIME: TIME,
    Opcode.TIMESTAMP: TIMESTAMP,
    Opcode.TIMESTAMPTZ: TIMESTAMPTZ,
    # Keys differ from rows only in infinities, which keys hold as numbers. All infinities are left to Python anyway.
    Opcode.KEY_DATE: DATE,
    Opcode.KEY_TIMESTAMP: TIMESTAMP,
    Opcode.KEY_TIMESTAMPTZ: TIMESTAMPTZ,
    Opcode.STRING: STRING,
    Opcode.CHECKED_STRING: CHECKED_STRING,
    Opcode.UUID: UUID,
    Opcode.BYTEA: BYTEA,
}

# The kind for each opcode and each function that reads the value, as in the shortcuts of ``avro.from_binary``.
SENT_KINDS = {
    (Opcode.BOOLEAN, numbers.boolean): SENT_BOOLEAN,
    (Opcode.INTEGER, numbers.int2): SENT_INT2,
    (Opcode.INTEGER, numbers.int4): SENT_INT4,
    (Opcode.INTEGER, numbers.int8): SENT_INT8,
    (Opcode.INTEGER, numbers.oid): SENT_OID,
    (Opcode.FLOAT4, numbers.float4): SENT_FLOAT4,
    (Opcode.FLOAT4_AS_DOUBLE, numbers.float4): SENT_FLOAT4_AS_DOUBLE,
    (Opcode.FLOAT8, numbers.float8): SENT_FLOAT8,
    (Opcode.DECIMAL, numbers.numeric): SENT_DECIMAL,
    (Opcode.STRING, numbers.numeric): SENT_NUMERIC,
    (Opcode.CHECKED_STRING, numbers.numeric): SENT_NUMERIC,
    (Opcode.DATE, temporal.date): SENT_DATE,
    (Opcode.KEY_DATE, temporal.date): SENT_DATE,
    (Opcode.TIME, temporal.time): SENT_TIME,
    (Opcode.TIMESTAMP, temporal.timestamp): SENT_TIMESTAMP,
    (Opcode.KEY_TIMESTAMP, temporal.timestamp): SENT_TIMESTAMP,
    (Opcode.TIMESTAMPTZ, temporal.timestamptz): SENT_TIMESTAMP,
    (Opcode.KEY_TIMESTAMPTZ, temporal.timestamptz): SENT_TIMESTAMP,
    (Opcode.STRING, strings.text): SENT_BYTES,
    (Opcode.STRING, base.version_1): SENT_VERSION_1,
    (Opcode.CHECKED_STRING, strings.text): SENT_CHECKED_STRING,
    (Opcode.CHECKED_STRING, base.version_1): SENT_CHECKED_VERSION_1,
    (Opcode.UUID, strings.uuid): SENT_UUID,
    (Opcode.BYTEA, strings.bytea): SENT_BYTES,
}


cdef struct Column:
    Kind kind
    Kind sent  # the kind of values in binary format
    int64_t lowest  # the bounds are exclusive, except those of integers
    int64_t highest
    int precision
    int scale
    int64_t unit_us


cdef void set_column(Column* column, kind, to_text):
    column.kind = KINDS.get(kind.opcode, PYTHON)
    column.sent = SENT_KINDS.get((kind.opcode, to_text), PYTHON)
    column.unit_us = 1
    if column.kind == INTEGER:
        column.lowest, column.highest = kind.parameters
        column.precision = len(str(column.highest))
    elif column.kind == DECIMAL:
        column.precision, column.scale = kind.parameters
    elif column.kind == TIME:
        column.highest = kind.parameters[0]
        if len(kind.parameters) > 1:
            column.unit_us = kind.parameters[1]
    elif column.kind in (DATE, TIMESTAMP, TIMESTAMPTZ):
        column.lowest, column.highest = kind.parameters[:2]
        if len(kind.parameters) > 2:
            column.unit_us = kind.parameters[2]
