"""The package that talks to Kafka: the sink with its producers, topics, checkpoints and commands.

Blocking calls of librdkafka run in worker threads, never on the event loop.
"""
