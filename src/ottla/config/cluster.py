"""The settings of a node among others: the metadata log, its quorum, membership, replication."""

from __future__ import annotations

import re
from typing import Final

from ottla.config.setting import (
    INT_MAX,
    LONG_MAX,
    Check,
    Long,
    Names,
    Settings,
    at_least,
    between,
    setting,
)

_MIB: Final = 1024 * 1024
_WINDOW: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
_ALONE: Final = " Accepted, but without effect on a cluster of one."


class ClusterSettings(Settings):
    """The part of a broker's settings that makes several nodes one cluster."""

    # The metadata log
    metadata_log_max_record_bytes_between_snapshots: Long = setting(
        20 * _MIB,
        "Bytes of the metadata log after the latest snapshot of it, above which a new one is "
        "taken. One is taken earlier, just after a start or before a stop, when the next start "
        "would be the faster for it.",
        at_least(1),
    )
    metadata_log_max_snapshot_interval_ms: Long = setting(
        3_600_000,
        "How long a change of the metadata waits at most to be in a snapshot; 0 is for ever.",
        at_least(0),
    )
    metadata_max_retention_bytes: Long = setting(
        100 * _MIB,
        "Bytes of the metadata log and its snapshots, above which only the latest snapshot and the "
        "log after it are kept; -1 is no limit. Ottla never keeps more than the last two "
        "snapshots and the log after the older of them.",
        at_least(-1),
    )
    metadata_max_retention_ms: Long = setting(
        604_800_000,
        "Age of the older of the last two snapshots of the metadata, above which only the latest "
        "and the log after it are kept; -1 is no limit.",
        at_least(-1),
    )

    # The metadata quorum
    controller_quorum_voters: Names = setting(
        (),
        "The controllers, which vote on the metadata, as id@host:port separated by commas, the "
        "same on every node; empty means those that the metadata log itself names, which "
        "controller.quorum.bootstrap.servers leads to, or else this node alone.",
    )
    controller_quorum_bootstrap_servers: Names = setting(
        (),
        "Controllers that a node asks who leads, as host:port separated by commas; one that "
        "answers is enough.",
    )
    controller_quorum_auto_join_enable: bool = setting(
        False,
        "Whether a controller without a vote asks for one when it starts; one of its own that is "
        "with another disk is taken from that first.",
    )
    controller_quorum_election_timeout_ms: int = setting(
        1000,
        "How long a voter waits for the outcome of an election before it stands itself; a random "
        "time of up to the same length is added.",
        between(1, INT_MAX),
    )
    controller_quorum_fetch_timeout_ms: int = setting(
        2000,
        "How long a voter goes on without an answer of the leader before it asks for an election; "
        "a leader from which no majority has fetched for half as long again resigns.",
        between(1, INT_MAX),
    )
    controller_quorum_election_backoff_max_ms: int = setting(
        1000,
        "The longest pause before another election, after a lost one and when a leader resigns.",
        between(0, INT_MAX),
    )
    controller_quorum_request_timeout_ms: int = setting(
        2000,
        "How long a voter waits for the answer of another before it asks again.",
        between(1, INT_MAX),
    )
    controller_quorum_retry_backoff_ms: int = setting(
        20,
        "The pause before a request to another voter that has failed is sent again.",
        between(0, INT_MAX),
    )

    # The cluster
    broker_session_timeout_ms: int = setting(
        9_000,
        "For how long the controller may hear nothing of a broker before others lead its "
        "partitions.",
        at_least(1),
    )
    replica_damaged_refill_enable: bool = setting(
        False,
        "Whether a follower empties a copy that has decayed on its disk and fetches it anew, once "
        "the metadata it knows has it outside the in-sync replicas for 10 s. That can still be "
        "behind: should the copy be in sync again by then and its leader die, messages are lost. "
        "Without it such a copy stays out of the in-sync replicas, and an operator decides. "
        "Ottla's own setting.",
    )
    broker_refusal_fences: bool = setting(
        True,
        "Whether a broker on another machine is taken for dead, and others lead, as soon as its "
        "port refuses connections. A firewall that rejects instead of dropping looks the same, and "
        "the old leader would serve reads until its lease ends; with false it is waited for until "
        "its session ends, and it cannot start again before. Ottla's own setting.",
    )
    broker_heartbeat_interval_ms: int = setting(
        2_000,
        "How often a broker tells the controller that it lives.",
        at_least(1),
    )
    controlled_shutdown_enable: bool = setting(
        True,
        "Whether a broker that stops has others take over first.",
    )
    controlled_shutdown_timeout_ms: int = setting(
        10_000,
        "How long a broker that stops waits until others have taken over; then it stops "
        "all the same. Ottla's own setting.",
        at_least(0),
    )
    auto_leader_rebalance_enable: bool = setting(
        True,
        "Whether the first replica of a partition becomes its leader again, once it is in sync.",
    )
    leader_imbalance_check_interval_seconds: Long = setting(
        300,
        "Time between two looks for leaders that are not the first replica of their partition; "
        "they go home in small steps.",
        at_least(1),
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10,
        "How many leaders may be away from home in Kafka with ZooKeeper. Accepted, but without "
        "effect, as in Kafka with KRaft: all go home.",
        has_effect=False,
    )
    auto_balance_enable: bool = setting(
        False,
        "Whether the controller moves partitions by itself when nodes have come or gone, until "
        "all carry alike, as `ottla balance` does: a few at a time, throttled. Ottla's own "
        "setting.",
        dynamic=True,
    )
    auto_balance_bytes_per_second: Long = setting(
        10 * _MIB,
        "How many bytes per second each node copies, and gives, for auto.balance.enable. Ottla's "
        "own setting.",
        at_least(1),
        dynamic=True,
    )
    auto_balance_window: str = setting(
        "",
        "The time of day in which auto.balance.enable may begin to move partitions, in UTC, such "
        "as 22:00-06:00; empty means always. Ottla's own setting.",
        Check(
            lambda text: not text or _WINDOW.fullmatch(text) is not None, "HH:MM-HH:MM, or nothing"
        ),
        dynamic=True,
    )
    auto_balance_throttled_topics: Names = setting(
        (),
        "The topics that auto.balance.enable throttles at the moment. The controller writes it, "
        "and lifts the throttle when they have arrived. Ottla's own setting.",
        dynamic=True,
    )
    drained_nodes: Names = setting(
        (),
        "The numbers of the nodes that get no new partitions, kept for all brokers; `ottla nodes "
        "drain` puts a node there, `ottla nodes add` takes it out. Ottla's own setting.",
        Check(lambda nodes: all(map(str.isdecimal, nodes)), "numbers of nodes"),
        dynamic=True,
    )
    leader_replication_throttled_rate: Long = setting(
        LONG_MAX,
        "How many bytes per second this broker gives to replicas that are not in sync, of the "
        "partitions that leader.replication.throttled.replicas of their topic names.",
        at_least(0),
        dynamic=True,
    )
    follower_replication_throttled_rate: Long = setting(
        LONG_MAX,
        "How many bytes per second this broker copies for its replicas that are not in sync, of "
        "the partitions that follower.replication.throttled.replicas of their topic names.",
        at_least(0),
        dynamic=True,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: Long = setting(
        LONG_MAX,
        "How many bytes per second this broker copies for replicas that move from one of its data "
        "directories to another.",
        at_least(1),
        dynamic=True,
    )
    replica_lag_time_max_ms: Long = setting(
        30_000,
        "For how long a replica may lack what its leader has before it is not in sync any "
        "more." + _ALONE,
        at_least(1),
        has_effect=False,
    )
    replica_fetch_min_bytes: int = setting(
        1,
        "Bytes that a fetch of a replica waits for at its leader." + _ALONE,
        at_least(0),
        has_effect=False,
    )
    replica_fetch_max_bytes: int = setting(
        _MIB,
        "Bytes of one partition in a fetch of a replica; a larger batch comes all the "
        "same." + _ALONE,
        at_least(0),
        has_effect=False,
    )
    replica_fetch_wait_max_ms: int = setting(
        500,
        "How long a fetch of a replica waits at its leader." + _ALONE,
        at_least(0),
        has_effect=False,
    )
    replica_fetch_response_max_bytes: int = setting(
        10 * _MIB,
        "Bytes in the answer to a fetch of a replica." + _ALONE,
        at_least(0),
        has_effect=False,
    )
    replica_selector_class: str | None = setting(
        None,
        f"With {RACK_AWARE_SELECTOR} consumers that say where they stand (client.rack) are sent "
        "to a replica with that broker.rack, if one is in sync; otherwise all read from the "
        "leader.",
        Check(
            lambda name: name in (None, RACK_AWARE_SELECTOR, LEADER_SELECTOR),
            f"{RACK_AWARE_SELECTOR} or {LEADER_SELECTOR}",
        ),
    )
