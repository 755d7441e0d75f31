"""Real servers on this machine for the tests, the demo and the benchmarks: PostgreSQL, Kafka, Spark's jars.

They are plain processes, from binaries that ``pom.xml`` pins. No server outlives the process that started it. ``python
-m sandbox --help`` is the same from the command line.
"""
