"""Scenarios for every kind of ALTER after which replication continues: how the schemas change, and which events arrive.

``python -m tests.integration.scenarios.evolution`` prints the Markdown tables that docs/evolution.md contains. Each
ALTER runs in a transaction that writes rows before and after the ALTER. The transaction is large enough to be streamed
by servers that support streaming. Then the daemon is killed, and more rows are written. Finally, the ALTER is undone,
and runs again outside of a transaction.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.replay import row_fields
from tests.support.scenario import Found, Scenario, quoted

NAME_CHARACTERS = 60
"""The maximum length of a scenario's name, which is also the name of a schema."""

TOUCH = "UPDATE t SET id = id;"
"""Updates all rows, because the stream does not contain DDL, and a mirror learns the new shape only from rows."""

MANY = "INSERT INTO public.filler SELECT generate_series(1, 1000);"
"""Inserts unpublished rows. There are enough of them for the server to stream the transaction."""


@dataclass(frozen=True)
class Alteration:
    """An ALTER of table ``t``, the sentences about it in the documentation, and the events that the test expects."""

    alter: str
    undo: str
    schema: str
    """A description of the change of the values' schema."""
    seen: str
    """A description of what consumers see."""
    fields: Sequence[str]
    """The fields of the row in each version of the subject, each with its name, PostgreSQL type and Avro type."""
    setup: str = "CREATE TABLE t (id int PRIMARY KEY, v text)"
    touch: str = TOUCH
    rows: str = "INSERT INTO t VALUES (1, 'a'), (2, 'b');"
    keys: Sequence[str] = ("id:int",)
    """The fields of the key in each version of its subject."""
    alone: bool = False
    """Whether some version of PostgreSQL allows the ALTER only outside of transactions."""
    ops: str = "ccu" + "uu" * 4
    contents: str = "SELECT * FROM {}.t"
    """A query for the rows that a mirror should have at the end. ``{}`` stands for the scenario's schema."""
    since: int = 10
    lacking: str = ""
    shown: str = ""
    """The ALTER in docs/evolution.md, if it differs from the statement."""
    check: Callable[[Found], None] = field(default=lambda _: None)

    @property
    def title(self) -> str:
        return self.shown or self.alter

    def scenario(self) -> Scenario:
        """Return the scenario, with the rows and ALTERs in their order."""
        begun = f"{self.rows}\nBEGIN;\nUPDATE t SET id = id WHERE id = 1;"
        altered = f"{self.alter};\n{self.touch}"
        name = re.sub(r"\W+", "_", self.title, flags=re.ASCII)[:NAME_CHARACTERS]
        return Scenario(
            name,
            self.seen,
            setup=self.setup,
            work=f"{begun}\nCOMMIT;\n{altered}" if self.alone else f"{begun}\n{MANY}\n{altered}\n{MANY}\nCOMMIT;",
            while_down=self.touch,
            after_restart=f"{self.undo};\n{self.touch}\n{altered}",
            contents={"t": self.contents.format(quoted(name))},
            ops={"t": self.ops},
            check=self._check,
            since=self.since,
            lacking=self.lacking,
        )

    def _check(self, found: Found) -> None:
        assert shapes(found) == list(self.fields)
        assert key_shapes(found) == list(self.keys)
        self.check(found)


def shapes(found: Found, table: str = "t") -> list[str]:
    """Return the fields of each schema registered for the table, oldest first."""
    return [
        " ".join(f"{entry['name']}:{entry['pg.type']}:{avro_type(entry['type'][1])}" for entry in row_fields(version))
        for version in found.versions("value", table)
    ]


def key_shapes(found: Found, table: str = "t") -> list[str]:
    """Return the fields of each schema registered for the table's key, oldest first."""
    return [
        " ".join(f"{entry['name']}:{avro_type(entry['type'])}" for entry in version["fields"])
        for version in found.versions("key", table)
    ]


def avro_type(schema: Any) -> str:  # noqa: ANN401 - JSON
    """Return a short name of an Avro type."""
    match schema:
        case {"logicalType": "decimal", "precision": precision, "scale": scale}:
            return f"decimal({precision},{scale})"
        case {"logicalType": str(name)}:
            return name
        case {"type": "array", "items": [_, items]}:
            return f"array<{avro_type(items)}>"
    return str(schema)


# --- columns

ID, V = "id:int4:int", "v:text:string"
SAME = "unchanged"
NOT_SENT = "Existing rows are not sent."

COLUMNS = (
    Alteration(
        "ALTER TABLE t ADD COLUMN c int",
        "ALTER TABLE t DROP COLUMN c",
        "one field more",
        f"Rows that are written after the ALTER have the field. {NOT_SENT}",
        (f"{ID} {V}", f"{ID} {V} c:int4:int"),
    ),
    Alteration(
        "ALTER TABLE t ADD COLUMN c int DEFAULT 7",
        "ALTER TABLE t DROP COLUMN c",
        "one field more",
        "Rows that are written after the ALTER have the field. In PostgreSQL, existing rows also have the value "
        "immediately. Consumers see the value in such a row when the row is next written.",
        (f"{ID} {V}", f"{ID} {V} c:int4:int"),
    ),
    Alteration(
        "ALTER TABLE t ADD COLUMN c float DEFAULT random(), ADD COLUMN d serial",
        "ALTER TABLE t DROP COLUMN c, DROP COLUMN d",
        "one field more",
        "Rows that are written after the ALTER have the field. PostgreSQL rewrites the table, but does not send the "
        "rewritten rows.",
        (f"{ID} {V}", f"{ID} {V} c:float8:double d:int4:int"),
        shown="ALTER TABLE t ADD COLUMN c float DEFAULT random()",
    ),
    Alteration(
        "ALTER TABLE t ADD COLUMN c int GENERATED ALWAYS AS (id * 2) STORED",
        "ALTER TABLE t DROP COLUMN c",
        SAME,
        "Nothing, because generated columns are not published. PostgreSQL 18 can publish them on request.",
        (f"{ID} {V}",),
        contents="SELECT id, v FROM {}.t",
        since=12,
        lacking="generated columns came with PostgreSQL 12",
    ),
    Alteration(
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t ADD COLUMN v text",
        "one field less",
        "Rows that are written after the ALTER lack the field. If the column is added again with the same type, it has "
        "the same field.",
        (f"{ID} {V} w:int4:int", f"{ID} w:int4:int", f"{ID} w:int4:int {V}"),
        setup="CREATE TABLE t (id int PRIMARY KEY, v text, w int)",
    ),
    Alteration(
        "ALTER TABLE t DROP COLUMN v, ADD COLUMN v text",
        "ALTER TABLE t DROP COLUMN w, ADD COLUMN w int",
        "the same fields in another order",
        "Readers find fields by name and see no difference, except that the new column is empty.",
        (f"{ID} {V} w:int4:int", f"{ID} w:int4:int {V}"),
        setup="CREATE TABLE t (id int PRIMARY KEY, v text, w int)",
    ),
    Alteration(
        "ALTER TABLE t DROP COLUMN v, ADD COLUMN v int",
        "ALTER TABLE t DROP COLUMN v, ADD COLUMN v text",
        "field `v` is removed, field `v__2` is added",
        "The new column uses the old field if the new type fits into the field, or if the field can be widened. "
        "Otherwise, the column gets a new field.",
        (f"{ID} {V}", f"{ID} v__2:int4:int"),
    ),
    Alteration(
        "ALTER TABLE t RENAME COLUMN v TO w",
        "ALTER TABLE t RENAME COLUMN w TO v",
        "field `v` is removed, field `w` is added",
        "A renamed column gets a new field, because PostgreSQL does not say that it is the same column.",
        (f"{ID} {V}", f"{ID} w:text:string"),
    ),
    Alteration(
        'ALTER TABLE t ADD COLUMN "V" text',
        'ALTER TABLE t DROP COLUMN "V"',
        "one field more, `V__2`",
        "No two fields differ only in upper and lower case. `pg.name` is the column's name.",
        (f"{ID} {V}", f"{ID} {V} V__2:text:string"),
    ),
    Alteration(
        'ALTER TABLE t RENAME COLUMN v TO "größer als"',
        'ALTER TABLE t RENAME COLUMN "größer als" TO v',
        "field `v` is removed, field `gr_x00F6__x00DF_er_x0020_als` is added",
        "Characters that Avro does not allow in a name are escaped. `pg.name` is the column's name.",
        (f"{ID} {V}", f"{ID} gr_x00F6__x00DF_er_x0020_als:text:string"),
    ),
)

# --- keys and identity


def _images(found: Found) -> None:
    assert [event["before_image"] for event in found.events()] == ["none"] * 3 + ["full"] * 4 + ["none"] * 2 + [
        "full"
    ] * 2


def _codes(found: Found) -> None:
    names = ["id"] * 3 + ["code"] * 4 + ["id"] * 2 + ["code"] * 2
    assert [list(event.key or {}) for event in found.events()] == [[name] for name in names]


KEYED = f"{ID} code:text:string"
WITH_CODE = "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL UNIQUE)"

IDENTITY = (
    Alteration(
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        SAME,
        "`before_image` is `full`. The key stays the primary key. If another primary key is added later, rows that "
        "were written before, and have nulls in its columns, keep the former key, or have a null key if there was "
        "none.",
        (f"{ID} {V}",),
        check=_images,
    ),
    Alteration(
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "unchanged; the key's schema is another one",
        "Keys consist of the index's columns, so the same row has another key. See [keys](#keys).",
        (KEYED,),
        setup=WITH_CODE,
        keys=("id:int", "code:string"),
        check=_codes,
    ),
    Alteration(
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code)",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)",
        "unchanged; the key's schema is another one",
        "Keys consist of the columns of the new primary key, so the same row has another key.",
        (KEYED,),
        setup=WITH_CODE,
        keys=("id:int", "code:string"),
        check=_codes,
    ),
    Alteration(
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, code)",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)",
        "unchanged; the key's schema is another one",
        "Keys consist of the columns of the new primary key, so the same row has another key.",
        (KEYED,),
        setup=WITH_CODE,
        keys=("id:int", "id:int code:string"),
        shown="ALTER TABLE t ... ADD PRIMARY KEY (id, code)",
    ),
    Alteration(
        "ALTER TABLE t RENAME COLUMN id TO number",
        "ALTER TABLE t RENAME COLUMN number TO id",
        "field `id` is removed, field `number` is added, also in the key",
        "The field of the key has another name, so the same row has another key.",
        (f"{ID} {V}", f"number:int4:int {V}"),
        touch="UPDATE t SET v = v;",
        keys=("id:int", "number:int"),
    ),
    Alteration(
        "ALTER TABLE t ALTER COLUMN id TYPE bigint",
        "ALTER TABLE t ALTER COLUMN id TYPE int",
        "`id` changes in place, also in the key",
        "The bytes of a row's key change, because they contain the schema id. If the column becomes an int again, the "
        "field stays a long.",
        (f"{ID} {V}", f"id:int8:long {V}", f"id:int4:long {V}"),
        keys=("id:int", "id:long"),
    ),
)

# --- ALTER TYPE

TYPES = (
    Alteration(
        "ALTER TYPE mood ADD VALUE IF NOT EXISTS 'ok'",
        "ALTER TABLE t ALTER v SET DEFAULT 'ok'",
        SAME,
        "Enums are strings, so a new or renamed value is another string. Existing rows with a renamed value "
        "are not sent.",
        (f"{ID} v:mood:string",),
        setup="CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TABLE t (id int PRIMARY KEY, v mood)",
        rows="INSERT INTO t VALUES (1, 'sad'), (2, 'happy');",
        alone=True,
    ),
    Alteration(
        "ALTER DOMAIN amount ADD CHECK (value < 1000)",
        "ALTER DOMAIN amount SET DEFAULT 5",
        SAME,
        "A domain has the field of its base type, and no ALTER can give it another base type. Checks and "
        "defaults are not sent.",
        (f"{ID} v:int4:int",),
        setup="CREATE DOMAIN amount AS int CHECK (value > 0); CREATE TABLE t (id int PRIMARY KEY, v amount)",
        rows="INSERT INTO t VALUES (1, 1), (2, NULL);",
    ),
    Alteration(
        "ALTER TABLE t ALTER v TYPE amount",
        "ALTER TABLE t ALTER v TYPE int",
        SAME,
        "A domain over the same type has the same Avro type. `<prefix>.schemas` has the OID of the domain.",
        (f"{ID} v:int4:int",),
        setup="CREATE DOMAIN amount AS int CHECK (value > 0); CREATE TABLE t (id int PRIMARY KEY, v int)",
        rows="INSERT INTO t VALUES (1, 1), (2, NULL);",
        shown="ALTER TABLE t ALTER v TYPE a_domain",
    ),
    Alteration(
        "ALTER TYPE pair ADD ATTRIBUTE c int CASCADE",
        "ALTER TYPE pair DROP ATTRIBUTE c CASCADE",
        SAME,
        "A composite value is text in PostgreSQL's format. In rows that are written after the ALTER, it has one part "
        "more.",
        (f"{ID} v:pair:string",),
        setup="CREATE TYPE pair AS (a int, b text); CREATE TABLE t (id int PRIMARY KEY, v pair)",
        rows="INSERT INTO t VALUES (1, '(1,x)'), (2, NULL);",
        shown="ALTER TYPE a_composite ADD ATTRIBUTE c int",
    ),
    Alteration(
        "ALTER TYPE mood RENAME TO state",
        "ALTER TYPE state RENAME TO mood",
        "`pg.type` changes, after the next reconnect",
        "Nothing else changes. PostgreSQL does not send the new name before the reconnect.",
        (f"{ID} v:mood:string", f"{ID} v:state:string"),
        setup="CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TABLE t (id int PRIMARY KEY, v mood)",
        rows="INSERT INTO t VALUES (1, 'sad'), (2, 'happy');",
    ),
)

SILENT = (
    Alteration(
        "ALTER TABLE t ALTER v SET DEFAULT 'x', ALTER v SET NOT NULL, ADD CHECK (v <> '')",
        "CREATE INDEX ON t (v); COMMENT ON TABLE t IS 'silent'; ANALYZE t",
        SAME,
        "Nothing. The same holds for indexes, comments, owners, rights, statistics, storage, tablespaces and triggers.",
        (f"{ID} {V}",),
        shown="ALTER TABLE t ALTER v SET DEFAULT 'x', ALTER v SET NOT NULL, ADD CHECK (v <> '')",
    ),
    Alteration(
        "VACUUM FULL t",
        "CLUSTER t USING t_pkey",
        SAME,
        "Nothing: the rows are the same.",
        (f"{ID} {V}",),
        alone=True,
        shown="VACUUM FULL t; CLUSTER t",
    ),
)

# --- types of columns


@dataclass(frozen=True)
class Retyping:
    """A change of a column's type, the field's types before and after it, and the values of the column in two rows."""

    before: str
    after: str
    fields: tuple[str, str]
    values: tuple[str, str]
    using: str = ""
    """An expression that converts the column ``{}``. It is empty if PostgreSQL converts the values by itself."""
    back: str = ""
    """The expression for the opposite conversion, with which the test undoes the change."""

    @property
    def field(self) -> str:
        """A description of the change of the field."""
        before, after = self.fields
        if self in ANOTHER_FIELD:
            return f"a new field with the suffix `__2`: {after}"
        return "as it was" if before == after else f"{before} becomes {after}"


IN_PLACE = (
    Retyping("smallint", "integer", ("int", "int"), ("7", "-32768")),
    Retyping("smallint", "bigint", ("int", "long"), ("7", "-32768")),
    Retyping("integer", "bigint", ("int", "long"), ("7", "-2147483648")),
    Retyping("integer", "double precision", ("int", "double"), ("7", "2147483647")),
    Retyping("real", "double precision", ("float", "double"), ("1.1", "-3.4028235e38")),
    Retyping("numeric(10,2)", "numeric(20,2)", ("decimal(10,2)", "decimal(20,2)"), ("12.34", "-99999999.99")),
    Retyping("varchar(10)", "varchar(20)", ("string", "string"), ("'a'", "'b'")),
    Retyping("varchar(10)", "text", ("string", "string"), ("'a'", "'b'")),
    Retyping("text", "jsonb", ("string", "string"), ("'{}'", "'[1]'"), using="{}::jsonb"),
    Retyping("bit(3)", "bit varying", ("string", "string"), ("B'101'", "B'000'")),
    Retyping(
        "timestamp(3)", "timestamp", *(("local-timestamp-micros",) * 2, ("'2024-02-29 12:00:00.123'", "'1969-12-31'"))
    ),
    Retyping("varchar(9)[]", "text[]", ("array<string>", "array<string>"), ("'{a,NULL}'", "'{}'")),
)
"""Changes after which the column keeps its field. If one of them is undone, the field keeps the wider type."""

ANOTHER_FIELD = (
    Retyping("integer", "text", ("int", "string"), ("7", "-7"), back="{}::int"),
    Retyping("text", "integer", ("string", "int"), ("'7'", "'-7'"), using="{}::int"),
    Retyping("integer", "boolean", ("int", "boolean"), ("1", "0"), using="{} <> 0", back="{}::int"),
    Retyping("bigint", "double precision", ("long", "double"), ("7", "9007199254740993")),
    Retyping("bigint", "numeric(20,0)", ("long", "decimal(20,0)"), ("7", "9223372036854775807")),
    Retyping("integer", "numeric", ("int", "string"), ("7", "-7")),
    Retyping("numeric(10,2)", "numeric(12,4)", ("decimal(10,2)", "decimal(12,4)"), ("12.34", "-99999999.99")),
    Retyping("numeric(10,2)", "numeric", ("decimal(10,2)", "string"), ("12.34", "-99999999.99")),
    Retyping("real", "numeric(10,2)", ("float", "decimal(10,2)"), ("1.5", "-2.25")),
    Retyping("date", "timestamp", ("date", "local-timestamp-micros"), ("'2024-02-29'", "'1969-12-31'")),
    Retyping(
        "timestamp",
        "timestamptz",
        ("local-timestamp-micros", "timestamp-micros"),
        ("'2024-02-29 12:00'", "'1969-12-31'"),
    ),
    Retyping("date", "text", ("date", "string"), ("'2024-02-29'", "'1969-12-31'"), back="{}::date"),
    Retyping("text", "uuid", ("string", "uuid"), (f"'{'1' * 32}'", f"'{'0' * 32}'"), using="{}::uuid"),
    Retyping(
        "text",
        "bytea",
        ("string", "bytes"),
        ("'a'", "'b'"),
        using="convert_to({}, 'UTF8')",
        back="convert_from({}, 'UTF8')",
    ),
    Retyping("text", "text[]", ("string", "array<string>"), ("'a'", "'b'"), using="ARRAY[{}]", back="{}[1]"),
    Retyping("integer[]", "bigint[]", ("array<int>", "array<long>"), ("'{7,NULL}'", "'{}'")),
)


def _retyped(name: str, about: str, retypings: Sequence[Retyping]) -> Scenario:
    """Return a scenario with a column for each change of type."""
    columns = [f"c{number}" for number in range(len(retypings))]

    def alter(kinds: Sequence[str], conversions: Sequence[str]) -> str:
        parts = [
            f"ALTER {column} TYPE {kind}" + (f" USING {conversion.format(column)}" if conversion else "")
            for column, kind, conversion in zip(columns, kinds, conversions, strict=True)
        ]
        return f"ALTER TABLE t {', '.join(parts)};"

    def check(found: Found) -> None:
        # If a change in place is undone, the field keeps its type, but the name of PostgreSQL's type changes.
        undone = [] if retypings is ANOTHER_FIELD else [_expected(retypings, 1)]
        assert _types(found) == [_expected(retypings, 0), _expected(retypings, 1), *undone]

    declared = ", ".join(f"{column} {one.before}" for column, one in zip(columns, retypings, strict=True))
    rows = "), (".join(f"{row + 1}, " + ", ".join(one.values[row] for one in retypings) for row in (0, 1))
    there = alter([one.after for one in retypings], [one.using for one in retypings])
    back = alter([one.before for one in retypings], [one.back for one in retypings])
    return Scenario(
        name,
        about,
        setup=f"CREATE TABLE t (id int PRIMARY KEY, {declared})",
        work=f"INSERT INTO t VALUES ({rows});\nBEGIN;\n{TOUCH}\n{MANY}\n{there}\n{TOUCH}\n{MANY}\nCOMMIT;",
        while_down=TOUCH,
        after_restart=f"{back}\n{TOUCH}\n{there}\n{TOUCH}",
        ops={"t": "cc" + "uu" * 5},
        check=check,
    )


def _expected(retypings: Sequence[Retyping], version: int) -> list[str]:
    suffix = "__2" if retypings is ANOTHER_FIELD and version else ""
    return ["id:int", *(f"c{number}{suffix}:{one.fields[version]}" for number, one in enumerate(retypings))]


def _types(found: Found) -> list[list[str]]:
    return [
        [f"{entry['name']}:{avro_type(entry['type'][1])}" for entry in row_fields(version)]
        for version in found.versions("value")
    ]


# --- tables as a whole


@dataclass(frozen=True)
class Move:
    """A change of a table as a whole, the sentences about it in the documentation, and its scenarios."""

    title: str
    schema: str
    seen: str
    scenarios: Sequence[Scenario]


PLAIN = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def _recreated(found: Found) -> None:
    assert shapes(found) == [f"{ID} {V}", f"{ID} v__2:int4:int"]


RENAMED = Scenario(
    "ALTER TABLE t RENAME TO renamed",
    "Rows that are written after the ALTER go to another topic.",
    setup=PLAIN,
    publication="FOR TABLE t",
    tables=(),
    contents={
        "t": 'SELECT * FROM "ALTER TABLE t RENAME TO renamed".t WHERE id IN (2, 5)',
        "renamed": "SELECT * FROM (VALUES (3, 'c'), (4, 'd')) AS v (id, v)",
    },
    work=f"""
        INSERT INTO t VALUES (1, 'a'), (2, 'b');
        BEGIN;
        DELETE FROM t WHERE id = 1;
        {MANY}
        ALTER TABLE t RENAME TO renamed;
        INSERT INTO renamed VALUES (3, 'c');
        {MANY}
        COMMIT;
    """,
    while_down="INSERT INTO renamed VALUES (4, 'd')",
    after_restart="ALTER TABLE renamed RENAME TO t; INSERT INTO t VALUES (5, 'e')",
    ops={"t": "ccdc", "renamed": "cc"},
)

MOVED = Scenario(
    "ALTER TABLE t SET SCHEMA",
    "Rows that are written after the ALTER go to another topic.",
    setup=f'CREATE SCHEMA "moved here"; {PLAIN}',
    publication="FOR TABLE t",
    tables=(),
    work=f"""
        INSERT INTO t VALUES (1, 'a');
        BEGIN;
        INSERT INTO t VALUES (2, 'b');
        {MANY}
        ALTER TABLE t SET SCHEMA "moved here";
        INSERT INTO "moved here".t VALUES (3, 'c');
        {MANY}
        COMMIT;
    """,
    while_down="INSERT INTO \"moved here\".t VALUES (4, 'd')",
    after_restart="""
        ALTER TABLE "moved here".t SET SCHEMA "ALTER TABLE t SET SCHEMA";
        INSERT INTO t VALUES (5, 'e');
    """,
    contents={"t": "SELECT * FROM (VALUES (1, 'a'), (2, 'b'), (5, 'e')) AS v (id, v)"},
    ops={"t": "ccc"},
    elsewhere={"moved here.t": "cc"},
)


def _schema_renamed(name: str, elsewhere: Mapping[str, str], **versions: Any) -> Scenario:  # noqa: ANN401 - passed to Scenario
    return Scenario(
        name,
        "Rows that are written after the ALTER go to another topic.",
        setup='CREATE SCHEMA "old name"; CREATE TABLE "old name".t (id int PRIMARY KEY, v text)',
        publication='FOR TABLE "old name".t',
        tables=(),
        work=f"""
            INSERT INTO "old name".t VALUES (1, 'a');
            BEGIN;
            INSERT INTO "old name".t VALUES (2, 'b');
            {MANY}
            ALTER SCHEMA "old name" RENAME TO "new name";
            INSERT INTO "new name".t VALUES (3, 'c');
            {MANY}
            COMMIT;
        """,
        while_down="INSERT INTO \"new name\".t VALUES (4, 'd')",
        elsewhere=elsewhere,
        **versions,
    )


RECREATED = Scenario(
    "DROP TABLE t and CREATE TABLE t",
    "Another table of the same name goes to the same topic.",
    setup=PLAIN,
    work=f"""
        INSERT INTO t VALUES (1, 'a');
        BEGIN;
        DELETE FROM t;
        {MANY}
        DROP TABLE t;
        CREATE TABLE t (id int PRIMARY KEY, v int);
        ALTER PUBLICATION "DROP TABLE t and CREATE TABLE t" ADD TABLE t;
        INSERT INTO t VALUES (2, 5);
        {MANY}
        COMMIT;
    """,
    while_down="INSERT INTO t VALUES (3, 6)",
    after_restart="""
        DELETE FROM t;
        DROP TABLE t;
        CREATE TABLE t (id int PRIMARY KEY, v text);
        ALTER PUBLICATION "DROP TABLE t and CREATE TABLE t" ADD TABLE t;
        INSERT INTO t VALUES (4, 'd');
    """,
    ops={"t": "cdcc" + "dd" + "c"},
    check=_recreated,
)

TREE = """
    CREATE TABLE t (id int, v text) PARTITION BY RANGE (id);
    CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100);
    CREATE TABLE late (v text, id int PRIMARY KEY);
    ALTER TABLE low ADD PRIMARY KEY (id);
    INSERT INTO late VALUES ('before', 100);
"""
MOVES_OF_PARTITIONS = f"""
    INSERT INTO t VALUES (1, 'a');
    BEGIN;
    INSERT INTO t VALUES (2, 'b');
    {MANY}
    ALTER TABLE t ATTACH PARTITION late FOR VALUES FROM (100) TO (200);
    INSERT INTO t VALUES (101, 'c');
    {MANY}
    COMMIT;
    BEGIN;
    INSERT INTO t VALUES (3, 'd');
    {MANY}
    ALTER TABLE t DETACH PARTITION low;
    INSERT INTO low VALUES (4, 'e');
    INSERT INTO t VALUES (102, 'f');
    {MANY}
    COMMIT;
"""
ROWS_OF_PARTITIONS = "INSERT INTO t VALUES (103, 'g'); INSERT INTO low VALUES (5, 'h')"
NOTICED = "PostgreSQL publishes partitioned tables from 13 on, and notices DETACH at once from 15 on"


def _of_root(name: str, last: int, **versions: Any) -> Scenario:  # noqa: ANN401 - passed to Scenario
    """Return a scenario in which partitions have their own topics.

    ``last`` is the id of the last row of the detached partition that is still sent.
    """
    return Scenario(
        name,
        "The rows of a partition are published while it is attached.",
        setup=TREE,
        tables=(),
        publication="FOR TABLE t",
        contents={
            "low": f'SELECT id, v FROM "{name}".low WHERE id <= {last}',
            "late": f'SELECT v, id FROM "{name}".late WHERE id > 100',
        },
        work=MOVES_OF_PARTITIONS,
        while_down=ROWS_OF_PARTITIONS,
        ops={"low": "c" * last, "late": "ccc", "t": ""},
        **versions,
    )


def _as_root(name: str, last: int, **versions: Any) -> Scenario:  # noqa: ANN401 - passed to Scenario
    """Return the scenario of :func:`_of_root` with all rows in the topic of the root."""
    return Scenario(
        name,
        "While a partition is attached, its rows are published as rows of the root.",
        setup=TREE,
        tables=(),
        publication="FOR TABLE t WITH (publish_via_partition_root)",
        contents={
            "t": f'SELECT id, v FROM "{name}".t WHERE id > 100 '
            f'UNION ALL SELECT id, v FROM "{name}".low WHERE id <= {last}'
        },
        work=MOVES_OF_PARTITIONS,
        while_down=ROWS_OF_PARTITIONS,
        ops={"low": "", "late": "", "t": "c" * (last + 3)},
        **versions,
    )


PARTITIONS = (
    Scenario(
        "partitions published themselves",
        "If partitions are published individually, it does not matter whether they are attached.",
        setup=TREE,
        tables=["low", "late"],
        contents={"late": 'SELECT v, id FROM "partitions published themselves".late WHERE id > 100'},
        work=MOVES_OF_PARTITIONS,
        while_down=ROWS_OF_PARTITIONS,
        ops={"low": "ccccc", "late": "ccc", "t": ""},
    ),
    _of_root("partitions of a published root", last=3, since=15, lacking=NOTICED),
    _of_root("partitions of a published root before 15", last=4, since=13, until=14, lacking=NOTICED),
    _as_root("partitions published as their root", last=3, since=15, lacking=NOTICED),
    _as_root("partitions published as their root before 15", last=4, since=13, until=14, lacking=NOTICED),
)

MOVES = (
    Move(
        "ALTER TABLE t RENAME TO renamed",
        "a new subject, version 1",
        "Rows that are written after the ALTER go to the topic of the new name. Earlier rows stay in the old topic. To "
        "keep one topic, give the new name a rule whose `topic` is the old topic, without `{table}`.",
        [RENAMED],
    ),
    Move("ALTER TABLE t SET SCHEMA s", "a new subject, version 1", "As above.", [MOVED]),
    Move(
        "ALTER SCHEMA s RENAME TO renamed",
        "new subjects, version 1",
        "As above, for each table. Before PostgreSQL 16, the server sends the new name only when the table is next "
        "altered, or after a reconnect. Until then, rows go to the old topic.",
        [
            _schema_renamed(
                "ALTER SCHEMA RENAME",
                {"old name.t": "cc", "new name.t": "cc"},
                since=16,
                lacking="servers send the new name immediately from PostgreSQL 16 on",
            ),
            _schema_renamed(
                "ALTER SCHEMA RENAME before 16",
                {"old name.t": "ccc", "new name.t": "c"},
                until=15,
                lacking="servers send the new name immediately from PostgreSQL 16 on",
            ),
        ],
    ),
    Move(
        "DROP TABLE t; CREATE TABLE t ...",
        "the next version of the same subject",
        "The topic stays the same. Columns of the same name and type keep their fields, others get new fields. DROP "
        "itself is not sent. If the publication lists its tables (FOR TABLE), add the new table to it.",
        [RECREATED],
    ),
    Move(
        "ALTER TABLE t ATTACH PARTITION p / DETACH PARTITION p",
        "unchanged",
        "With `publish_via_partition_root`, rows that are written while the partition is attached are published as "
        "rows of the root. Without this option, they are published as rows of the partition, and the partition's topic "
        "is created with its first row. If the publication lists the partitions and not the root, the rows of each "
        "partition are published as its own rows, whether it is attached or not. Rows that a partition already "
        "contains when it is attached are not sent, and rows of a detached partition are not deleted. On an existing "
        "connection, PostgreSQL 13 and 14 sometimes miss an ATTACH or DETACH. The server may then leave out rows of an "
        "attached partition that was not published before. So after an ATTACH or DETACH, restart pgsluice before rows "
        "are written.",
        PARTITIONS,
    ),
)

SCENARIOS: list[Scenario] = [
    *(one.scenario() for one in (*COLUMNS, *IDENTITY, *TYPES, *SILENT)),
    _retyped("ALTER COLUMN TYPE in place", "The field stays the same, because it has room for both types.", IN_PLACE),
    _retyped(
        "ALTER COLUMN TYPE, another field",
        "The column gets a new field, because with the old field, readers would fail or read wrong values.",
        ANOTHER_FIELD,
    ),
    *(scenario for move in MOVES for scenario in move.scenarios),
]

# --- docs/evolution.md


def markdown() -> str:
    """Return the tables of docs/evolution.md."""
    groups: Mapping[str, Sequence[Alteration | Move]] = {
        "Columns": COLUMNS,
        "Keys and identity": IDENTITY,
        "Types": TYPES,
        "Tables": MOVES,
        "Without effect": SILENT,
    }
    parts = [_table(title, [(one.title, one.schema, one.seen) for one in rows]) for title, rows in groups.items()]
    lines = [f"| {one.before} | {one.after} | {one.field} |" for one in (*IN_PLACE, *ANOTHER_FIELD)]
    head = "| from | to | the field |\n|---|---|---|"
    return "\n".join([*parts, "### Types of columns", "", head, *lines])


def _table(title: str, rows: Sequence[tuple[str, str, str]]) -> str:
    lines = [f"| {_code(alter)} | {schema} | {seen} |" for alter, schema, seen in rows]
    return "\n".join([f"### {title}", "", "| | schema of values | what consumers see |", "|---|---|---|", *lines, ""])


def _code(statement: str) -> str:
    return f"`{statement}`"


if __name__ == "__main__":
    print(markdown())  # noqa: T201 - the output of a command
