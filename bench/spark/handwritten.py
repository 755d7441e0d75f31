"""The code that users would write: a job that decodes a topic with one schema, and a query that merges the events.

The job decodes every record with the newest schema, and may apply only a part of a transaction. It does not handle
other tables, columns that were not sent, or truncates. So the job does only what every handwritten job has to do.

https://spark.apache.org/docs/latest/sql-data-sources-avro.html
https://docs.delta.io/latest/delta-update.html
"""

import time

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.avro.functions import from_avro

from bench.spark.stage import Stage
from pgsluice_spark import RestRegistry

_HEADER_BYTES = 5
"""The length of the magic byte and the id of the schema, which precede the Avro record."""


def decoded(records: DataFrame, schema: str) -> DataFrame:
    """Return the events that the records of a topic contain."""
    body = F.expr(f"substring(value, {_HEADER_BYTES + 1})")
    return records.select(from_avro(body, schema).alias("event")).select("event.*")


def schema_of(stage: Stage, table: str) -> str:
    """Return the newest schema of a table's events."""
    return RestRegistry(stage.daemon.url).versions((f"{stage.topic(table)}-value",))[-1].schema


def options(stage: Stage, table: str) -> dict[str, str]:
    """Return the options of the Kafka source."""
    return {
        "kafka.bootstrap.servers": stage.kafka.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "startingOffsets": "earliest",
        "subscribe": stage.topic(table),
    }


def events(stage: Stage, table: str) -> DataFrame:
    """Return all events in a topic."""
    records = stage.spark.read.format("kafka").options(**options(stage, table)).load()
    return decoded(records, schema_of(stage, table))


def merge(stage: Stage, name: str, table: str) -> float:
    """Merge a topic up to its present end into a Delta table. Return the seconds that this took."""
    begin = time.monotonic()
    place, schema = path(stage, name), schema_of(stage, table)

    def apply(batch: DataFrame, _number: int) -> None:
        newest = Window.partitionBy("id").orderBy(F.desc("lsn"), F.desc("seq"))
        changes = decoded(batch, schema).select("op", "lsn", "seq", F.coalesce("after", "before").alias("row"))
        last = changes.select("op", "lsn", "seq", "row.*").withColumn("n", F.row_number().over(newest)).where("n = 1")
        rows = last.drop("n", "lsn", "seq")
        if not (stage.directory / name).exists():
            rows.limit(0).drop("op").write.format("delta").save(str(stage.directory / name))
        rows.createOrReplaceTempView("changes")
        columns = [column for column in rows.columns if column != "op"]
        batch.sparkSession.sql(
            f"""
            MERGE INTO {place} AS t USING changes AS s ON t.id = s.id
            WHEN MATCHED AND s.op = 'd' THEN DELETE
            WHEN MATCHED THEN UPDATE SET {", ".join(f"{column} = s.{column}" for column in columns)}
            WHEN NOT MATCHED AND s.op != 'd' THEN
                INSERT ({", ".join(columns)}) VALUES ({", ".join(f"s.{column}" for column in columns)})
            """
        )

    records = stage.spark.readStream.format("kafka").options(**options(stage, table)).load()
    writer = records.writeStream.option("checkpointLocation", str(stage.directory / f"{name}.checkpoint"))
    writer.trigger(availableNow=True).foreachBatch(apply).start().awaitTermination()
    return time.monotonic() - begin


def path(stage: Stage, name: str) -> str:
    """Return the name of a run's Delta table in SQL."""
    return f"delta.`{stage.directory / name}`"
