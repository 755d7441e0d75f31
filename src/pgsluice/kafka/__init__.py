"""Everything that talks to Kafka: producer sessions, the checkpoint, topics.

Blocking calls of librdkafka run in one worker thread, never on the event loop.
"""
