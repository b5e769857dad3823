"""The settings of a broker: Kafka's names where Kafka has the setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.config.cluster import RACK_AWARE_SELECTOR, ClusterSettings
from ottla.config.listeners import (
    Address,
    Listener,
    VoterAddress,
    parse_address,
    parse_listeners,
    parse_voters,
)
from ottla.config.roles import BROKER, CONTROLLER, ROLES, check_roles
from ottla.config.setting import (
    INT_MAX,
    Check,
    Long,
    Names,
    Setting,
    Short,
    at_least,
    between,
    default_of,
    one_of,
    parse_all,
    setting,
    some_of,
)
from ottla.config.topic import TOPIC_SETTINGS, TopicConfig
from ottla.errors import InvalidConfig

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_T: Final = TOPIC_SETTINGS
_MIB: Final = 1024 * 1024
_FOR_KAFKA_FILES: Final = (
    " Accepted so that Kafka's files load, but without effect: a broker is one event loop."
)


class BrokerConfig(ClusterSettings):
    """Everything that can be set per broker."""

    # Who and where
    node_id: int = setting(1, "The broker's number, unique in its cluster.", at_least(0))
    process_roles: Names = setting(
        ROLES,
        "What this node is: broker, controller or both. A broker has partitions and serves "
        "clients, a controller votes on the metadata and decides.",
        some_of(*ROLES),
    )
    broker_rack: str | None = setting(
        None, "Where the broker stands; replicas of a partition are spread over racks."
    )
    log_dirs: Names = setting(
        ("./ottla-data",),
        "The directories that hold all data, separated by commas; log.dir is taken as well. New "
        "partitions go to the least full, and one that fails takes only its own offline.",
        Check(lambda dirs: bool(dirs) and all(dirs), "at least one directory"),
    )
    metadata_log_dir: str | None = setting(
        None,
        "The directory that holds the metadata log; empty means where it lies, and the first of "
        "log.dirs in the beginning.",
    )
    listeners: Names = setting(
        ("PLAINTEXT://127.0.0.1:9092",),
        "Where clients are served, as NAME://host:port; port 0 takes a free one. Ours listens on "
        "this machine only unless told otherwise.",
        Check(bool, "at least one NAME://host:port"),
    )
    controller_listener_names: Names = setting(
        (),
        "The names of the listeners on which controllers speak with each other and with brokers, "
        "and serve nobody else; empty means that they do so where clients are served. A node that "
        "is only broker or only controller needs it.",
    )
    advertised_listeners: Names = setting(
        (),
        "The addresses that clients are told to connect to; empty means the listeners themselves.",
    )
    listener_security_protocol_map: Names = setting(
        ("PLAINTEXT:PLAINTEXT",),
        "The protocol that each listener name speaks, as NAME:PROTOCOL; PLAINTEXT is the only "
        "protocol so far.",
        Check(
            lambda pairs: all(pair.count(":") == 1 for pair in pairs),
            "NAME:PROTOCOL pairs separated by commas",
        ),
    )
    bootstrap_listeners: Names = setting(
        (),
        "Further addresses of the listeners for clients, as NAME://host:port, that several brokers "
        "of a host share: a client that connects there reaches any of them, and is told each "
        "broker's own address. `ottla start --workers` sets it. Ottla's own setting.",
    )
    http_listener: str = setting(
        "127.0.0.1:9644",
        "Where /healthz, /readyz and /metrics are served, as host:port; empty switches them off, "
        "port 0 takes a free one, and so does the default when its port is taken. Ottla's own "
        "setting.",
    )
    log_level: str = setting(
        "info", "How much is logged; Ottla's own setting.", one_of(*LOG_LEVELS), dynamic=True
    )
    log_format: str = setting(
        "text",
        "How log lines are written: text for people, json for machines. Ottla's own setting.",
        one_of("text", "json"),
    )

    # Topics
    num_partitions: int = setting(
        1, "Partitions of a topic that is created without a number.", at_least(1)
    )
    default_replication_factor: int = setting(
        1, "Replicas of a topic that is created without a number.", between(1, 32_767)
    )
    auto_create_topics_enable: bool = setting(
        True, "Whether a topic comes into being when a client first asks for it."
    )
    delete_topic_enable: bool = setting(True, "Whether clients may delete topics.")
    max_partitions_per_topic: int = setting(
        10_000,
        "The most partitions that a topic may have, so that one request cannot flood the broker; "
        "Ottla's own setting.",
        at_least(1),
    )
    max_partitions: int = setting(
        100_000,
        "The most partitions that the cluster may have; Ottla's own setting.",
        at_least(1),
    )
    max_request_partition_size_limit: int = setting(
        2_000, "The most partitions in one answer to DescribeTopicPartitions.", at_least(1)
    )

    # Connections and requests
    socket_request_max_bytes: int = setting(
        100 * _MIB,
        "The largest request; a connection that announces more is closed.",
        at_least(1),
    )
    socket_listen_backlog_size: int = setting(
        1024,
        "Connections that may wait to be accepted; Kafka has 50, which a restart of many clients "
        "overruns.",
        at_least(1),
    )
    max_connections: int = setting(
        50_000,
        "The most open connections; Kafka has no limit, ours keeps the broker alive.",
        at_least(1),
        dynamic=True,
    )
    connections_max_idle_ms: Long = setting(
        600_000, "How long a connection may be silent before it is closed; -1 is for ever."
    )
    queued_max_request_bytes: Long = setting(
        256 * _MIB,
        "Bytes of requests in flight in the whole broker, above which it stops reading; Kafka has "
        "no limit, -1 gives that.",
    )
    connection_max_request_bytes: Long = setting(
        32 * _MIB,
        "Bytes of requests in flight on one connection, above which it is not read; one request is "
        "always let through. Ottla's own setting.",
        at_least(1),
    )
    connection_max_reply_bytes: Long = setting(
        _MIB,
        "Bytes of replies that a client has not yet read, above which its connection is not read; "
        "Ottla's own setting.",
        at_least(1),
    )
    replies_max_bytes: Long = setting(
        512 * _MIB,
        "Bytes of unread replies in the whole broker, above which no connection is read; Ottla's "
        "own setting.",
        at_least(1),
    )
    connection_write_timeout_ms: Long = setting(
        30_000,
        "How long a client may leave a full reply buffer unread before its connection is closed; "
        "Ottla's own setting.",
        at_least(1),
    )
    request_timeout_ms: int = setting(
        30_000,
        "How long the broker waits for an answer of another, and a request that only the "
        "controller can decide for the controller.",
        at_least(1),
    )
    fetch_max_bytes: int = setting(
        55 * _MIB, "The most bytes in one answer to a fetch.", at_least(1024)
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        1000, "The most fetch sessions that are remembered.", at_least(0)
    )
    num_network_threads: int = setting(
        3,
        "Threads for the network in Kafka." + _FOR_KAFKA_FILES,
        at_least(1),
        dynamic=True,
        has_effect=False,
    )
    num_io_threads: int = setting(
        8,
        "Threads for requests in Kafka." + _FOR_KAFKA_FILES,
        at_least(1),
        dynamic=True,
        has_effect=False,
    )
    num_recovery_threads_per_data_dir: int = setting(
        1,
        "Threads for recovery in Kafka." + _FOR_KAFKA_FILES,
        at_least(1),
        dynamic=True,
        has_effect=False,
    )
    socket_send_buffer_bytes: int = setting(
        102_400,
        "The size of a socket's send buffer in Kafka. Accepted, but without effect: the operating "
        "system tunes it.",
        at_least(-1),
        has_effect=False,
    )
    socket_receive_buffer_bytes: int = setting(
        102_400,
        "The size of a socket's receive buffer in Kafka. Accepted, but without effect: the "
        "operating system tunes it.",
        at_least(-1),
        has_effect=False,
    )

    # Storage
    log_retention_check_interval_ms: Long = setting(
        300_000,
        "Time between two searches for segments that may go.",
        at_least(1),
    )
    log_cleaner_enable: bool = setting(
        True, "Whether topics with cleanup.policy=compact are compacted."
    )
    log_cleaner_backoff_ms: Long = setting(
        15_000,
        "Time between two searches for logs that are to be compacted.",
        at_least(0),
        dynamic=True,
    )
    log_cleaner_dedupe_buffer_size: Long = setting(
        128 * _MIB,
        "Memory of the compaction process for the keys of a log; with more keys than fit into it, "
        "at 32 bytes each, a log is compacted in several passes.",
        at_least(1024),
        dynamic=True,
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "Time between two writes of recovery points and log start offsets.", at_least(1)
    )
    log_scrub_bytes_per_second: Long = setting(
        8 * _MIB,
        "How many bytes of log the scrub reads per second, in search of damage; small batches "
        "count for more than they are. 0 switches it off. Ottla's own setting.",
        at_least(0),
        dynamic=True,
    )
    log_scrub_interval_ms: Long = setting(
        7 * 24 * 60 * 60 * 1000,
        "Time between the beginnings of two passes of the scrub over all logs; a pass that takes "
        "longer is followed by the next at once. Ottla's own setting.",
        at_least(1),
        dynamic=True,
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        60_000,
        "Time between two writes of log start offsets in Kafka. Accepted, but without effect: they "
        "are written when they change, and with the recovery points.",
        at_least(0),
        has_effect=False,
    )
    log_dir_stall_timeout_ms: int = setting(
        10_000,
        "How long a write or a sync in a data directory may be under way before other nodes take "
        "over what this one leads there, where there are others. In the metadata's directory that "
        "is everything: the node is fenced, and the controller moves. Ottla's own setting.",
        at_least(1),
    )
    log_open_files_max: int = setting(
        512,
        "Segment files that are kept open at once; Ottla's own setting.",
        at_least(16),
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        "How long the sequence numbers of a silent producer are remembered.",
        at_least(1),
        dynamic=True,
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        "Whether the coordinator is asked before the first batch of a transaction enters a "
        "partition (KIP-890). Without it a batch that comes late can leave a transaction open "
        "that nobody ends.",
    )

    # Groups and offsets
    group_min_session_timeout_ms: int = setting(
        6_000, "The shortest session timeout that a group member may ask for.", at_least(0)
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "The longest session timeout that a group member may ask for.", at_least(0)
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000,
        "How long an empty group waits for more members before it first balances.",
        at_least(0),
    )
    group_max_size: int = setting(INT_MAX, "The most members in a group.", at_least(1))
    offset_metadata_max_bytes: int = setting(
        4_096, "The largest note that a consumer may leave beside a committed offset.", at_least(0)
    )
    offsets_topic_num_partitions: int = setting(
        50,
        "Partitions of the topic that holds committed offsets; fixed once it exists.",
        at_least(1),
    )
    offsets_topic_replication_factor: Short = setting(
        3,
        "Replicas of the topic that holds committed offsets; on a smaller cluster as many as there "
        "are brokers when it is created.",
        at_least(1),
    )
    offsets_topic_segment_bytes: int = setting(
        100 * _MIB, "Segment size of the topic that holds committed offsets.", at_least(1)
    )
    offsets_commit_timeout_ms: int = setting(
        5000,
        "How long a commit, a join or another change of a group waits for the disk before its "
        "client is told to try again.",
        at_least(1),
    )
    offsets_retention_minutes: int = setting(
        10_080, "How long the offsets of an empty group are kept.", at_least(1)
    )
    offsets_retention_check_interval_ms: Long = setting(
        600_000, "Time between two searches for offsets that may go.", at_least(1)
    )

    # Transactions
    transaction_max_timeout_ms: int = setting(
        900_000, "The longest time that a producer may allow its transactions.", at_least(1)
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        "How long a transactional id is remembered after its last transaction.",
        at_least(1),
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "Time between two searches for transactional ids that may go.", at_least(1)
    )
    transaction_state_log_num_partitions: int = setting(
        50,
        "Partitions of the topic that holds the state of transactions; fixed once it exists.",
        at_least(1),
    )
    transaction_state_log_replication_factor: Short = setting(
        3,
        "Replicas of the topic that holds the state of transactions; on a smaller cluster as many "
        "as there are brokers when it is created.",
        at_least(1),
    )
    transaction_state_log_min_isr: int = setting(
        2,
        "How many replicas of the state of transactions must be in sync for a change of it; on a "
        "smaller cluster not more than there are replicas.",
        at_least(1),
    )
    transaction_state_log_segment_bytes: int = setting(
        100 * _MIB, "Segment size of the topic that holds the state of transactions.", at_least(1)
    )

    # Defaults of topic settings
    compression_gzip_level: int = default_of(_T["compression.gzip.level"])
    compression_lz4_level: int = default_of(_T["compression.lz4.level"])
    compression_type: str = default_of(_T["compression.type"])
    compression_zstd_level: int = default_of(_T["compression.zstd.level"])
    log_cleaner_delete_retention_ms: Long = default_of(_T["delete.retention.ms"])
    log_cleaner_max_compaction_lag_ms: Long = default_of(_T["max.compaction.lag.ms"])
    log_cleaner_min_cleanable_ratio: float = default_of(_T["min.cleanable.dirty.ratio"])
    log_cleaner_min_compaction_lag_ms: Long = default_of(_T["min.compaction.lag.ms"])
    log_cleanup_policy: Names = default_of(_T["cleanup.policy"])
    log_flush_interval_messages: Long = default_of(_T["flush.messages"])
    log_flush_interval_ms: Long | None = setting(
        None,
        "Default of the topic setting flush.ms; empty means log.flush.scheduler.interval.ms."
        " Accepted, but without effect, as that is.",
        at_least(0),
        dynamic=True,
        has_effect=False,
    )
    log_flush_scheduler_interval_ms: Long = setting(
        _T["flush.ms"].default,
        "Default of the topic setting flush.ms when log.flush.interval.ms is empty."
        " Accepted, but without effect, as that is.",
        has_effect=False,
    )
    log_index_interval_bytes: int = default_of(_T["index.interval.bytes"])
    log_index_size_max_bytes: int = default_of(_T["segment.index.bytes"])
    log_message_timestamp_after_max_ms: Long = default_of(_T["message.timestamp.after.max.ms"])
    log_message_timestamp_before_max_ms: Long = default_of(_T["message.timestamp.before.max.ms"])
    log_message_timestamp_type: str = default_of(_T["message.timestamp.type"])
    log_preallocate: bool = default_of(_T["preallocate"])
    log_retention_bytes: Long = default_of(_T["retention.bytes"])
    log_retention_ms: Long | None = setting(
        None,
        "Default of the topic setting retention.ms; empty means log.retention.minutes.",
        at_least(-1),
        dynamic=True,
    )
    log_retention_minutes: int | None = setting(
        None,
        "Default of the topic setting retention.ms, in minutes; empty means log.retention.hours.",
        at_least(-1),
    )
    log_retention_hours: int = setting(
        168,
        "Default of the topic setting retention.ms, in hours.",
        at_least(-1),
    )
    log_roll_ms: Long | None = setting(
        None,
        "Default of the topic setting segment.ms; empty means log.roll.hours.",
        at_least(1),
        dynamic=True,
    )
    log_roll_hours: int = setting(
        168, "Default of the topic setting segment.ms, in hours.", at_least(1)
    )
    log_roll_jitter_ms: Long | None = setting(
        None,
        "Default of the topic setting segment.jitter.ms; empty means log.roll.jitter.hours.",
        at_least(0),
        dynamic=True,
    )
    log_roll_jitter_hours: int = setting(
        0, "Default of the topic setting segment.jitter.ms, in hours.", at_least(0)
    )
    log_segment_bytes: int = default_of(_T["segment.bytes"])
    log_segment_delete_delay_ms: Long = default_of(_T["file.delete.delay.ms"])
    log_write_caching: bool = default_of(_T["write.caching"])
    message_max_bytes: int = default_of(_T["max.message.bytes"])
    min_insync_replicas: int = default_of(_T["min.insync.replicas"])
    unclean_leader_election_enable: bool = default_of(_T["unclean.leader.election.enable"])

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> BrokerConfig:
        """The configuration in which `texts`, by Kafka's names, replace the defaults."""
        return cls().changed(texts)

    def changed(self, texts: Mapping[str, str]) -> BrokerConfig:
        """This configuration with some settings given anew; all rules are checked."""
        config = self.replace(**parse_all(BROKER_SETTINGS, texts))
        config.check()
        return config

    @property
    def data_dir(self) -> str:
        return self.log_dirs[0]

    def bound(self) -> tuple[Listener, ...]:
        """Where to listen."""
        return parse_listeners(self.listeners, "listeners")

    @property
    def is_broker(self) -> bool:
        return BROKER in self.process_roles

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.process_roles

    @property
    def is_rack_aware(self) -> bool:
        """Whether consumers are sent to replicas in their own rack (KIP-392)."""
        return self.replica_selector_class == RACK_AWARE_SELECTOR

    @property
    def controller_names(self) -> frozenset[str]:
        """The listeners that are for controllers; none where they are served with clients."""
        return frozenset(name.upper() for name in self.controller_listener_names)

    def client_listeners(self) -> tuple[Listener, ...]:
        """Where clients are served."""
        return tuple(each for each in self.bound() if each.name not in self.controller_names)

    def controller_listeners(self) -> tuple[Listener, ...]:
        """Where controllers are served apart from clients; none where this node has no such."""
        return tuple(each for each in self.bound() if each.name in self.controller_names)

    def shared(self) -> tuple[Listener, ...]:
        """Where clients are served, too, by whichever broker of the host gets the connection."""
        return parse_listeners(self.bootstrap_listeners, "bootstrap.listeners")

    def told(self) -> tuple[Listener, ...]:
        """As advertised.listeners has them."""
        return parse_listeners(self.advertised_listeners, "advertised.listeners")

    def advertised(self) -> tuple[Listener, ...]:
        """What clients are told; a port 0 is still to be replaced by the one that was bound."""
        if not self.is_broker:
            return ()
        if not self.advertised_listeners:
            return self.client_listeners()
        return tuple(each for each in self.told() if each.name not in self.controller_names)

    def bootstrap_servers(self) -> tuple[Address, ...]:
        """Where to ask who leads the metadata log."""
        setting = "controller.quorum.bootstrap.servers"
        return tuple(
            parse_address(text, setting) for text in self.controller_quorum_bootstrap_servers
        )

    def voters(self) -> tuple[VoterAddress, ...]:
        """Who votes on the metadata; nobody named means this node alone."""
        return parse_voters(self.controller_quorum_voters, "controller.quorum.voters")

    def http_address(self) -> Address | None:
        """Where health and metrics are served."""
        if not self.http_listener:
            return None
        return parse_address(self.http_listener, "http.listener")

    def check(self) -> None:
        """The rules that span several settings."""
        check_roles(self)
        self.http_address()
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidConfig(
                f"group.min.session.timeout.ms is {self.group_min_session_timeout_ms}, but must "
                "not exceed group.max.session.timeout.ms, which is "
                f"{self.group_max_session_timeout_ms}."
            )
        if self.message_max_bytes > self.socket_request_max_bytes:
            raise InvalidConfig(
                f"message.max.bytes is {self.message_max_bytes}, but must not exceed "
                f"socket.request.max.bytes, which is {self.socket_request_max_bytes}."
            )
        TopicConfig.resolve(self, {})


BROKER_SETTINGS: Final[dict[str, Setting]] = BrokerConfig.SETTINGS
