"""Runs Apache Avro's Java library to read messages and to compare schemas. Its jars come with PySpark.

https://avro.apache.org/docs/1.12.0/api/java/org/apache/avro/SchemaCompatibility.html
"""

import importlib.util
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pgsluice.avro.wire import Schema
from sandbox.java import run_program

JARS = ("avro-1*", "jackson-annotations-*", "jackson-core-2*", "jackson-databind-2*", "slf4j-api-*")

PROGRAM = """
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.Scanner;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;

public class Avro {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, Schema> SCHEMAS = new HashMap<>();
    static final GenericData PLAIN = new GenericData();

    static Schema schema(JsonNode text) {
        return SCHEMAS.computeIfAbsent(text.asText(), it -> new Schema.Parser().parse(it));
    }

    static void read(Schema writer, Schema reader, byte[] data, ObjectNode answer) throws Exception {
        BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(data, null);
        try {
            Object value = new GenericDatumReader<Object>(writer, reader, PLAIN).read(null, decoder);
            answer.set("value", JSON.readTree(PLAIN.toString(value)));
            answer.put("rest", !decoder.isEnd());
        } catch (RuntimeException error) {
            answer.put("error", error.toString());
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8);
        while (lines.hasNextLine()) {
            JsonNode task = JSON.readTree(lines.nextLine());
            Schema writer = schema(task.get("writer")), reader = schema(task.get("reader"));
            ObjectNode answer = JSON.createObjectNode();
            answer.put("compatibility", SchemaCompatibility.checkReaderWriterCompatibility(reader, writer)
                .getType().name());
            if (!task.get("data").isNull())
                read(writer, reader, HexFormat.of().parseHex(task.get("data").asText()), answer);
            out.println(answer);
        }
        out.flush();
    }
}
"""


@dataclass(frozen=True)
class Task:
    """Asks whether ``reader`` can read records of ``writer``, and what it reads from ``data``, a message's body."""

    writer: Schema
    reader: Schema
    data: bytes | None = None


@dataclass(frozen=True)
class Answer:
    """Java's answer: either the value as Avro's JSON, without logical types, or an error."""

    compatible: bool
    value: Any = None
    error: str | None = None


def ask(tasks: Iterable[Task]) -> list[Answer]:
    """Return the answer to each task."""
    lines = [
        json.dumps(
            {
                "writer": json.dumps(task.writer),
                "reader": json.dumps(task.reader),
                "data": None if task.data is None else task.data.hex(),
            }
        )
        for task in tasks
    ]
    with TemporaryDirectory() as name:
        libraries, source = Path(name), Path(name) / "Avro.java"
        source.write_text(PROGRAM)
        for jar in _jars():
            (libraries / jar.name).symlink_to(jar)
        printed = run_program(source, libraries, stdin="\n".join(lines))
    return [_answer(json.loads(line)) for line in printed.split("\n") if line]


def _answer(printed: dict[str, Any]) -> Answer:
    error = "bytes are left over" if printed.get("rest") else printed.get("error")
    return Answer(printed["compatibility"] == "COMPATIBLE", printed.get("value"), error)


@cache
def _jars() -> list[Path]:
    package = importlib.util.find_spec("pyspark")
    assert package is not None, "requirements.lock installs pyspark"
    assert package.origin is not None, "pyspark is an ordinary package"
    directory = Path(package.origin).parent / "jars"
    found = [sorted(directory.glob(f"{pattern}.jar")) for pattern in JARS]
    assert all(len(jars) == 1 for jars in found), f"{JARS} in {directory}"
    return [jar for (jar,) in found]
