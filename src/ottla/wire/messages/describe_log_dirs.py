"""What the data directories hold, and their room."""

from ottla.wire.schema import BOOL, INT16, INT32, INT64, STRING, Array, Message, Struct, field


class DescribableLogDirTopic(Struct):
    topic: str = field(STRING)
    partitions: list[int] = field(Array(INT32))


class DescribeLogDirsRequest(Message, api_key=35, versions="1-4", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = field(
        Array(DescribableLogDirTopic), nullable="0+"
    )


class DescribeLogDirsPartition(Struct):
    partition_index: int = field(INT32)
    partition_size: int = field(INT64)
    offset_lag: int = field(INT64)
    is_future_key: bool = field(BOOL)


class DescribeLogDirsTopic(Struct):
    name: str = field(STRING)
    partitions: list[DescribeLogDirsPartition] = field(Array(DescribeLogDirsPartition))


class DescribeLogDirsResult(Struct):
    error_code: int = field(INT16)
    log_dir: str = field(STRING)
    topics: list[DescribeLogDirsTopic] = field(Array(DescribeLogDirsTopic))
    total_bytes: int = field(INT64, "4+", default=-1)
    usable_bytes: int = field(INT64, "4+", default=-1)


class DescribeLogDirsResponse(Message, api_key=35, versions="1-4", flexible="2+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "3+")
    results: list[DescribeLogDirsResult] = field(Array(DescribeLogDirsResult))
