"""The settings of a topic. Each names the broker settings that give it its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.config.setting import (
    LONG_MAX,
    Check,
    Long,
    Names,
    Setting,
    Settings,
    at_least,
    between,
    one_of,
    parse_all,
    setting,
    some_of,
    unknown,
)
from ottla.errors import InvalidConfig

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig

DAY_MS: Final = 24 * 3_600_000
WEEK_MS: Final = 7 * DAY_MS
CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


def _names_replicas(values: Names) -> bool:
    """`*`, or `partition:broker` pairs, or nothing."""
    pairs = [value.split(":") for value in values]
    return values in ((), ("*",)) or all(
        len(pair) == 2 and pair[0].isdigit() and pair[1].isdigit() for pair in pairs
    )


_REPLICAS: Final = Check(_names_replicas, "* or partition:broker pairs separated by commas")
_NOT_YET_REPLICAS: Final = " Accepted, but without effect on a cluster of one."


class TopicConfig(Settings):
    """Everything that can be set per topic."""

    cleanup_policy: Names = setting(
        ("delete",),
        "What happens to old data: delete drops old segments, compact keeps the last value of each "
        "key and refuses messages without one; both together do both.",
        some_of("compact", "delete"),
        broker="log.cleanup.policy",
    )
    compression_gzip_level: int = setting(
        -1,
        "Level when compression.type is gzip; -1 is the codec's own default."
        " Accepted, but without effect: the codec's default is used.",
        Check(lambda level: level == -1 or 1 <= level <= 9, "between 1 and 9, or -1"),
        broker="compression.gzip.level",
        has_effect=False,
    )
    compression_lz4_level: int = setting(
        9,
        "Level when compression.type is lz4."
        " Accepted, but without effect: the codec's default is used.",
        between(1, 17),
        broker="compression.lz4.level",
        has_effect=False,
    )
    compression_type: str = setting(
        "producer",
        "The codec in which batches are stored; producer keeps each batch as it was sent.",
        one_of(*CODECS),
        broker="compression.type",
    )
    compression_zstd_level: int = setting(
        3,
        "Level when compression.type is zstd."
        " Accepted, but without effect: the codec's default is used.",
        between(-131_072, 22),
        broker="compression.zstd.level",
        has_effect=False,
    )
    delete_retention_ms: Long = setting(
        DAY_MS,
        "How long a deletion marker stays readable in a compacted topic.",
        at_least(0),
        broker="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms: Long = setting(
        60_000,
        "How long a removed segment file stays on disk, for readers that still hold it.",
        at_least(0),
        broker="log.segment.delete.delay.ms",
    )
    flush_messages: Long = setting(
        LONG_MAX,
        "Messages between two syncs in Kafka. Accepted, but without effect: acks=all waits for a "
        "sync unless write.caching is true.",
        at_least(1),
        broker="log.flush.interval.messages",
        has_effect=False,
    )
    flush_ms: Long = setting(
        LONG_MAX,
        "Time between two syncs in Kafka. Accepted, but without effect: acks=all waits for a sync "
        "unless write.caching is true.",
        at_least(0),
        broker=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        has_effect=False,
    )
    follower_replication_throttled_replicas: Names = setting(
        (),
        "Replicas that are copied no faster than follower.replication.throttled.rate while they "
        "are not in sync: pairs of a partition and the broker that follows, or * for all.",
        _REPLICAS,
    )
    index_interval_bytes: int = setting(
        4096,
        "Bytes of log between two entries of the offset index.",
        at_least(0),
        broker="log.index.interval.bytes",
    )
    leader_replication_throttled_replicas: Names = setting(
        (),
        "Leaders that give replicas which are not in sync no more than "
        "leader.replication.throttled.rate: pairs of a partition and the broker that leads, or * "
        "for all.",
        _REPLICAS,
    )
    max_compaction_lag_ms: Long = setting(
        LONG_MAX,
        "The longest that a message may wait for compaction.",
        at_least(1),
        broker="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = setting(
        10_485_880,
        "The largest record batch that is accepted; ours is ten times Kafka's so that messages of "
        "10 MB pass.",
        at_least(0),
        broker="message.max.bytes",
    )
    message_timestamp_after_max_ms: Long = setting(
        3_600_000,
        "How far a message's timestamp may lie ahead of the broker's clock, with CreateTime.",
        at_least(0),
        broker="log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms: Long = setting(
        LONG_MAX,
        "How far a message's timestamp may lie before the broker's clock, with CreateTime.",
        at_least(0),
        broker="log.message.timestamp.before.max.ms",
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whose time a message has: its producer's (CreateTime) or the broker's (LogAppendTime).",
        one_of("CreateTime", "LogAppendTime"),
        broker="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "The share of uncompacted log from which compaction starts.",
        between(0, 1),
        broker="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: Long = setting(
        0,
        "The shortest time for which a message is left uncompacted.",
        at_least(0),
        broker="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas: int = setting(
        1,
        "In-sync replicas that acks=all needs.",
        at_least(1),
        broker="min.insync.replicas",
    )
    preallocate: bool = setting(
        False,
        "Whether a new segment file is given its full size at once. Accepted, but without effect.",
        broker="log.preallocate",
        has_effect=False,
    )
    retention_bytes: Long = setting(
        -1,
        "Bytes that a partition keeps at least; old segments above that go. -1 is no limit.",
        at_least(-1),
        broker="log.retention.bytes",
    )
    retention_ms: Long = setting(
        WEEK_MS,
        "How long a message is kept at least; a segment goes when its youngest message is older."
        " -1 is for ever.",
        at_least(-1),
        broker=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    segment_bytes: int = setting(
        1_073_741_824,
        "The size at which a segment file is closed and the next one begun.",
        at_least(14),
        broker="log.segment.bytes",
    )
    segment_index_bytes: int = setting(
        10_485_760,
        "The largest size of a segment's index; a full index begins a new segment.",
        at_least(4),
        broker="log.index.size.max.bytes",
    )
    segment_jitter_ms: Long = setting(
        0,
        "A random part of this is taken off segment.ms, so that segments do not roll all at once.",
        at_least(0),
        broker=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    segment_ms: Long = setting(
        WEEK_MS,
        "The age at which a segment file is closed and the next one begun.",
        at_least(1),
        broker=("log.roll.ms", "log.roll.hours"),
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Whether a replica that missed messages may lead when no other is left."
        + _NOT_YET_REPLICAS,
        broker="unclean.leader.election.enable",
        has_effect=False,
    )
    write_caching: bool = setting(
        False,
        "Whether acks=all answers once the batch is in the operating system's cache, as in Kafka, "
        "instead of on disk; Ottla's own setting. The broker's own topics and the metadata are "
        "always synced; there it cannot be set.",
        broker="log.write.caching",
    )

    @classmethod
    def resolve(cls, broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
        """The topic's own settings over the broker's; InvalidConfig says which is wrong."""
        for name in overrides:
            if name not in TOPIC_SETTINGS:
                raise unknown(name, TOPIC_SETTINGS, "topic setting")
        values = {
            known.field_name: inherited(known, broker)
            for known in TOPIC_SETTINGS.values()
            if known.name not in overrides
        }
        config = cls(**values, **parse_all(TOPIC_SETTINGS, overrides))
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms is {config.min_compaction_lag_ms}, but must not exceed "
                f"max.compaction.lag.ms, which is {config.max_compaction_lag_ms}."
            )
        return config


def inherited(topic_setting: Setting, broker: BrokerConfig) -> Any:
    """What a topic gets that does not set it: its first synonym with a value, or the default."""
    for name, factor in topic_setting.synonyms:
        value = getattr(broker, name.replace(".", "_"))
        if value is not None:
            return value * factor if factor > 1 and value > 0 else value
    return topic_setting.default


TOPIC_SETTINGS: Final[dict[str, Setting]] = TopicConfig.SETTINGS
