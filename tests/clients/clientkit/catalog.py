"""The clients under test and what each of them cannot do.

What is listed as lacking is missing in the client library itself, not in our program for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clientkit import toolchains
from clientkit.toolchains import GO, JAVA, NODE, PYTHON, Toolchain, is_optional, python

ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Client:
    name: str
    toolchain: Toolchain
    command: Callable[[], list[str]]
    lacks: frozenset[str]
    codecs: tuple[str, ...] = ALL_CODECS


CLIENTS = (
    Client(
        "confluent",
        PYTHON,
        python("confluent.py"),
        frozenset({"delete_offsets", "describe_features", "describe_log_dirs"}),
    ),
    Client(
        "kafka-python",
        PYTHON,
        python("kafka_python.py"),
        frozenset({"null_header", "record_without_key_and_value"}),
    ),
    Client(
        "aiokafka",
        PYTHON,
        python("aio.py"),
        frozenset(
            {
                "cooperative",
                "default_partitions",
                "delete_group",
                "delete_offsets",
                "describe_features",
                "describe_log_dirs",
                "offset_of_max_timestamp",
                "record_without_key_and_value",
                "set_offset",
            }
        ),
    ),
    Client("java", JAVA, toolchains.build_java, frozenset()),
    # franz-go creates topics only when asked to by an option.
    Client(
        "franz-go",
        GO,
        toolchains.build_go,
        frozenset({"auto_create", "describe_features"}),
    ),
    Client(
        "kafkajs",
        NODE,
        toolchains.build_node,
        frozenset(
            {
                "assign",
                "cooperative",
                "delete_offsets",
                "describe_features",
                "describe_log_dirs",
                "null_header",
                "offset_of_max_timestamp",
                "range",
                "static",
                "transactions",
            }
        ),
        ("none", "gzip"),
    ),
)
BY_NAME = {client.name: client for client in CLIENTS}


def able(*abilities: str) -> list[str]:
    """The names of the clients that lack none of these."""
    return [client.name for client in CLIENTS if client.lacks.isdisjoint(abilities)]


def present(*abilities: str) -> list[str]:
    """Those of the able ones that tests with several clients must have beside each other."""
    return [name for name in able(*abilities) if not is_optional(BY_NAME[name].toolchain)]
