"""Parses the commands for Kafka's tools that the documentation shows, and executes them with a client library."""

import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.support.kafka import TIMEOUT_S, SecuredKafka, admin, create_topic

CLUSTER = "kafka-cluster"


@dataclass(frozen=True, slots=True)
class Right:
    """A user's right to one operation on one resource, or on all resources whose names begin with a prefix."""

    user: str
    operation: str
    kind: str
    name: str
    prefixed: bool

    def __str__(self) -> str:
        return f"{self.operation} {self.name}{'*' if self.prefixed else ''}"

    def binding(self) -> AclBinding:
        """Return the right as the client expects it."""
        return AclBinding(
            ResourceType[self.kind],
            self.name,
            ResourcePatternType.PREFIXED if self.prefixed else ResourcePatternType.LITERAL,
            self.user,
            "*",
            AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.operation).upper()],
            AclPermissionType.ALLOW,
        )


def rights(commands: str) -> list[Right]:
    """Return the rights that ``kafka-acls`` commands grant."""
    parser = _parser()
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--cluster", action="append_const", const=CLUSTER, default=[])
    parser.add_argument("--allow-principal", required=True)
    parser.add_argument("--resource-pattern-type", choices=["literal", "prefixed"], default="literal")
    for name in ("--operation", "--topic", "--group", "--transactional-id"):
        parser.add_argument(name, action="append", default=[])
    return [right for words in _commands(commands, "kafka-acls") for right in _rights(parser.parse_args(words))]


def _rights(options: Namespace) -> Iterator[Right]:
    prefixed = options.resource_pattern_type == "prefixed"
    resources = {
        "TOPIC": options.topic,
        "GROUP": options.group,
        "TRANSACTIONAL_ID": options.transactional_id,
        "BROKER": options.cluster,  # librdkafka's name for the cluster
    }
    for kind, names in resources.items():
        for name in names:
            for operation in options.operation:
                yield Right(options.allow_principal, operation, kind, name, prefixed)


def make_topics(kafka: SecuredKafka, commands: str) -> None:
    """Run ``kafka-topics`` commands that create topics."""
    parser = _parser()
    parser.add_argument("--create", action="store_true", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--config", action="append", default=[])
    for words in _commands(commands, "kafka-topics"):
        options = parser.parse_args(words)
        config = dict(setting.replace(".", "_").split("=") for setting in options.config)
        create_topic(kafka, options.topic, options.partitions, **config)


def allow(kafka: SecuredKafka, *allowed: Right) -> None:
    """Grant rights."""
    client = admin(kafka)
    for request in client.create_acls([right.binding() for right in allowed]).values():
        request.result(TIMEOUT_S)


def forbid(kafka: SecuredKafka, user: str) -> None:
    """Revoke all rights of a user."""
    anything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, user, None, AclOperation.ANY, AclPermissionType.ANY
    )
    client = admin(kafka)
    client.delete_acls([anything])[anything].result(TIMEOUT_S)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--command-config", required=True)
    return parser


def _commands(text: str, tool: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of ``tool``. Raise ValueError if another program is called."""
    for line in text.replace("\\\n", " ").splitlines():
        called, *words = shlex.split(line)
        if called != tool:
            raise ValueError(f"{called} is not {tool}")
        yield words
