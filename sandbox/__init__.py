"""Real servers on this machine for the tests, the demo and the benchmarks: PostgreSQL, Kafka, Spark's jars.

Plain processes from binaries that ``pom.xml`` pins; none of them outlives the process that asked for it.
``python -m sandbox --help`` is the same from the command line.
"""
