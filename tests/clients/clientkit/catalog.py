"""The clients under test and what each of them can do.

An operation that is missing here is missing in the client library, not in our program for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clientkit import toolchains
from clientkit.toolchains import GO, JAVA, NODE, PYTHON, Toolchain, python

ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EVERYWHERE = frozenset(
    {
        "create_topic",
        "delete_topic",
        "list_topics",
        "partitions",
        "create_partitions",
        "describe_configs",
        "alter_config",
        "delete_records",
        "list_groups",
        "describe_group",
        "group_offsets",
        "offsets",
        "offset_for_time",
        "describe_cluster",
    }
)


@dataclass(frozen=True)
class Client:
    name: str
    toolchain: Toolchain
    command: Callable[[], list[str]]
    abilities: frozenset[str]
    codecs: tuple[str, ...] = ALL_CODECS


CLIENTS = (
    Client(
        "confluent",
        PYTHON,
        python("confluent.py"),
        EVERYWHERE
        | {"delete_group", "offset_of_max_timestamp"}
        | {"assign", "range", "cooperative", "static", "null_header", "auto_create"},
    ),
    Client(
        "kafka-python",
        PYTHON,
        python("kafka_python.py"),
        EVERYWHERE
        | {"delete_group", "delete_offsets", "describe_log_dirs", "offset_of_max_timestamp"}
        | {"assign", "range", "cooperative", "static", "null_header", "auto_create"},
    ),
    Client(
        "aiokafka",
        PYTHON,
        python("aio.py"),
        EVERYWHERE | {"assign", "range", "static", "null_header", "auto_create"},
    ),
    Client(
        "java",
        JAVA,
        toolchains.build_java,
        EVERYWHERE
        | {"delete_group", "delete_offsets", "describe_log_dirs", "offset_of_max_timestamp"}
        | {"assign", "range", "cooperative", "static", "null_header", "auto_create"},
    ),
    Client(
        "franz-go",
        GO,
        toolchains.build_go,
        EVERYWHERE
        | {"delete_group", "delete_offsets", "describe_log_dirs", "offset_of_max_timestamp"}
        | {"assign", "range", "cooperative", "static", "null_header", "auto_create"},
    ),
    # kafkajs has no static membership, no cooperative assignor, no consumer without a group, and
    # brings no codec but gzip.
    Client(
        "kafkajs",
        NODE,
        toolchains.build_node,
        EVERYWHERE | {"delete_group", "auto_create"},
        ("none", "gzip"),
    ),
)
BY_NAME = {client.name: client for client in CLIENTS}


def able(*abilities: str) -> list[str]:
    return [client.name for client in CLIENTS if client.abilities.issuperset(abilities)]
