"""What `ottla partitions move-dir` and `dirs` ask single nodes: each knows its own directories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.cli.failures import CommandFailed
from ottla.cli.move_plan import Place
from ottla.cli.mover import BROKER, Mover
from ottla.errors import error_of
from ottla.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from ottla.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

DIRECTORY_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"


class Copy(NamedTuple):
    """A replica in a directory; `lag` are the offsets that one on its way lacks."""

    bytes: int
    lag: int


class Directory(NamedTuple):
    """One of a node's directories: what lies there, and what is on its way there."""

    path: str
    is_offline: bool
    usable_bytes: int
    here: dict[Place, Copy]
    coming: dict[Place, Copy]


class DirectoryMover(Mover):
    def directories(self, node_id: int) -> dict[str, Directory]:
        reply = self._on_node(node_id, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
        if reply is None:
            raise CommandFailed(f"Node {node_id} does not answer; is it running?")
        found = {}
        for result in reply.results:
            directory = Directory(
                result.log_dir, bool(result.error_code), result.usable_bytes, {}, {}
            )
            for topic in result.topics:
                for one in topic.partitions:
                    copies = directory.coming if one.is_future_key else directory.here
                    place = (topic.name, one.partition_index)
                    copies[place] = Copy(one.partition_size, one.offset_lag)
            found[result.log_dir] = directory
        return found

    def send_to(self, node_id: int, wanted: Mapping[Place, str]) -> dict[Place, str]:
        """Moves replicas to these directories of the node; what was refused, and why."""
        paths: dict[str, dict[str, AlterReplicaLogDirTopic]] = {}
        for (topic, index), path in wanted.items():
            topics = paths.setdefault(path, {})
            topics.setdefault(topic, AlterReplicaLogDirTopic(topic)).partitions.append(index)
        request = AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDir(path, list(topics.values())) for path, topics in paths.items()]
        )
        reply = self._on_node(node_id, request, AlterReplicaLogDirsResponse)
        if reply is None:
            raise CommandFailed(f"Node {node_id} does not answer; is it running?")
        return {
            (topic.topic_name, one.partition_index): str(error_of(one.error_code, None))
            for topic in reply.results
            for one in topic.partitions
            if one.error_code
        }

    def directory_rate(self, node_id: int) -> str | None:
        """What somebody has set, if anybody has."""
        resource = DescribeConfigsResource(BROKER, str(node_id), [DIRECTORY_RATE])
        request = DescribeConfigsRequest(resources=[resource])
        reply = self._on_node(node_id, request, DescribeConfigsResponse)
        if not self._set_in(reply) or reply is None:
            return None
        return reply.results[0].configs[0].value

    def set_directory_rate(self, node_id: int, bytes_per_second: int | None) -> None:
        value = None if bytes_per_second is None else str(bytes_per_second)
        self._configure({(BROKER, str(node_id)): {DIRECTORY_RATE: value}})
