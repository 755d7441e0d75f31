"""Gives ids to Avro schemas, and lets consumers find schemas by id.

:mod:`.builtin` keeps schemas in a compacted Kafka topic. :mod:`.follower` reads such topics continuously.
:mod:`.api` answers Confluent's REST requests from these schemas. :mod:`.confluent` registers schemas at a separate
registry server, which assigns the ids. It uses :mod:`.rest` for the requests. :mod:`.export` copies the schemas of a
topic to such a server.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""
