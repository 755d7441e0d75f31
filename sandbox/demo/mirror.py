"""Mirror tables from pgsluice's topics: a Structured Streaming job as anybody would write it.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1,org.apache.spark:spark-avro_2.13:4.1.1
        mirror.py --bootstrap-servers ... --registry http://... --directory ... --cuts shop.transactions
        shop.public.orders ...

Each run appends what is new in the topics to a change log, exactly once, and works out the tables from it. The marks in
the cut records, which are another log, tell which rows are gone after a table was read.
It needs nothing but pgsluice_spark; the demo is only one of its users.

https://spark.apache.org/docs/latest/streaming/apis-on-dataframes-and-datasets.html#triggers
"""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pgsluice_spark import RestRegistry, latest, read_changes, read_marks

JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSxxx",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""JSON lines can be read anywhere, unlike Parquet or Delta; these options keep every digit in them."""


def main() -> None:
    """Bring the change logs up to date, then the mirrors."""
    options = _parser().parse_args()
    spark = SparkSession.builder.appName("mirror").getOrCreate()
    registry = RestRegistry(options.registry)
    # The marks come first: then the changes that belong to them are in the topics.
    marks = read_marks(spark, options.cuts, bootstrap_servers=options.bootstrap_servers, registry=registry)
    append(marks, options.directory / options.cuts).awaitTermination()
    queries = []
    for topic in options.topics:
        changes = read_changes(spark, topic, bootstrap_servers=options.bootstrap_servers, registry=registry)
        queries.append(append(changes, options.directory / topic))
    for query in queries:  # they ran side by side
        query.awaitTermination()
    for topic in options.topics:
        print(f"{topic}: {mirror(spark, options.directory / topic, options.directory / options.cuts)}", flush=True)
    spark.stop()


def append(records: DataFrame, directory: Path) -> StreamingQuery:
    """Start to append all records that are new since the last run; the checkpoint knows where that ended."""
    return (
        records.writeStream.format("parquet")
        .option("path", str(directory / "log"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def mirror(spark: SparkSession, directory: Path, marks: Path) -> str:
    """Write the table as its changes leave it; return what was done."""
    # a column that was added in between is in some of the files only
    changes = spark.read.option("mergeSchema", "true").parquet(str(directory / "log"))
    rows = latest(changes, spark.read.parquet(str(marks / "log"))).cache()
    rows.select("after.*").write.mode("overwrite").options(**JSON_OPTIONS).json(str(directory / "rows"))
    return f"changes {changes.count():,}, rows {rows.count():,}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Mirror tables from pgsluice's topics.")
    parser.add_argument("--bootstrap-servers", required=True, help="of Kafka")
    parser.add_argument("--registry", required=True, help="URL of the schema registry; pgsluice itself serves one")
    parser.add_argument("--directory", type=Path, required=True, help="where the change logs and the mirrors are kept")
    parser.add_argument("--cuts", required=True, help="the topic of the cut records: <prefix>.transactions")
    parser.add_argument("topics", nargs="+")
    return parser


if __name__ == "__main__":
    main()
