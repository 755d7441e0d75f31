"""Where Avro schemas get their ids, and where consumers find them by id.

:mod:`.builtin` keeps them in a compacted Kafka topic, :mod:`.follower` reads such topics for ever,
:mod:`.api` answers Confluent's REST requests from what was read. :mod:`.confluent` has a registry server give the
ids, through :mod:`.rest`; :mod:`.export` gives one the schemas of a topic.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""
