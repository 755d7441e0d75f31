"""Real servers on this machine for the tests, the demo and the benchmarks: PostgreSQL, Kafka, Spark's jars.

The servers are plain processes, from binaries that ``pom.xml`` pins. No server outlives the process that started it.
``python -m sandbox --help`` lists the commands that start and stop servers.
"""
