"""DescribeLogDirs, versions 1 to 4: what the data directories hold, and their room (KIP-827)."""

from __future__ import annotations

from ottla.broker.services import RequestContext, Services
from ottla.errors import code_of
from ottla.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def handle(
    services: Services, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    result = DescribeLogDirsResult(log_dir=services.partitions.directory)
    try:
        result.total_bytes, result.usable_bytes = services.disk.room_bytes(result.log_dir)
    except OSError as error:
        result.error_code = code_of(error)
        return DescribeLogDirsResponse(results=[result])
    wanted = None if request.topics is None else {t.topic: t.partitions for t in request.topics}
    for name, partitions in services.partitions.by_topic().items():
        if wanted is not None and name not in wanted:
            continue
        indexes = None if wanted is None else set(wanted[name])
        described = [
            DescribeLogDirsPartition(index, partition.log.size_bytes)
            for index, partition in partitions.items()
            if not indexes or index in indexes
        ]
        if described:
            result.topics.append(DescribeLogDirsTopic(name, described))
    return DescribeLogDirsResponse(results=[result])
