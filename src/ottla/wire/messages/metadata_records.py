"""The records of the metadata log."""

from ottla.wire.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Array,
    Message,
    Struct,
    field,
)


class TopicRecord(Message, api_key=2, versions="0", flexible="0+"):
    name: str = field(STRING)
    topic_id: bytes = field(UUID)


class PartitionRecord(Message, api_key=3, versions="0-2", flexible="0+"):
    partition_id: int = field(INT32, default=-1)
    topic_id: bytes = field(UUID)
    replicas: list[int] = field(Array(INT32))
    isr: list[int] = field(Array(INT32))
    removing_replicas: list[int] = field(Array(INT32))
    adding_replicas: list[int] = field(Array(INT32))
    leader: int = field(INT32, default=-1)
    leader_recovery_state: int = field(INT8, tag=0, tagged="0+")
    leader_epoch: int = field(INT32, default=-1)
    partition_epoch: int = field(INT32, default=-1)
    directories: list[bytes] = field(Array(UUID), "1+")
    eligible_leader_replicas: list[int] | None = field(
        Array(INT32), "2+", nullable="2+", default=None, tag=1, tagged="2+"
    )
    last_known_elr: list[int] | None = field(
        Array(INT32), "2+", nullable="2+", default=None, tag=2, tagged="2+"
    )


class UnregisterBrokerRecord(Message, api_key=1, versions="0", flexible="0+"):
    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64)


class FenceBrokerRecord(Message, api_key=7, versions="0", flexible="0+"):
    id: int = field(INT32)
    epoch: int = field(INT64)


class UnfenceBrokerRecord(Message, api_key=8, versions="0", flexible="0+"):
    id: int = field(INT32)
    epoch: int = field(INT64)


class ConfigRecord(Message, api_key=4, versions="0", flexible="0+"):
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


class PartitionChangeRecord(Message, api_key=5, versions="0-2", flexible="0+"):
    partition_id: int = field(INT32, default=-1)
    topic_id: bytes = field(UUID)
    isr: list[int] | None = field(Array(INT32), nullable="0+", default=None, tag=0, tagged="0+")
    leader: int = field(INT32, default=-2, tag=1, tagged="0+")
    replicas: list[int] | None = field(
        Array(INT32), nullable="0+", default=None, tag=2, tagged="0+"
    )
    removing_replicas: list[int] | None = field(
        Array(INT32), nullable="0+", default=None, tag=3, tagged="0+"
    )
    adding_replicas: list[int] | None = field(
        Array(INT32), nullable="0+", default=None, tag=4, tagged="0+"
    )
    leader_recovery_state: int = field(INT8, default=-1, tag=5, tagged="0+")
    directories: list[bytes] | None = field(
        Array(UUID), "1+", nullable="1+", default=None, tag=8, tagged="1+"
    )
    eligible_leader_replicas: list[int] | None = field(
        Array(INT32), "2+", nullable="2+", default=None, tag=6, tagged="2+"
    )
    last_known_elr: list[int] | None = field(
        Array(INT32), "2+", nullable="2+", default=None, tag=7, tagged="2+"
    )


class RemoveTopicRecord(Message, api_key=9, versions="0", flexible="0+"):
    topic_id: bytes = field(UUID)


class FeatureLevelRecord(Message, api_key=12, versions="0", flexible="0+"):
    name: str = field(STRING)
    feature_level: int = field(INT16)


class ProducerIdsRecord(Message, api_key=15, versions="0", flexible="0+"):
    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    next_producer_id: int = field(INT64)


class BrokerEndpoint(Struct):
    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)
    security_protocol: int = field(INT16)


class BrokerFeature(Struct):
    name: str = field(STRING)
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class RegisterBrokerRecord(Message, api_key=0, versions="0-3", flexible="0+"):
    broker_id: int = field(INT32)
    is_migrating_zk_broker: bool = field(BOOL, "2+")
    incarnation_id: bytes = field(UUID)
    broker_epoch: int = field(INT64)
    end_points: list[BrokerEndpoint] = field(Array(BrokerEndpoint))
    features: list[BrokerFeature] = field(Array(BrokerFeature))
    rack: str | None = field(STRING, nullable="0+")
    fenced: bool = field(BOOL, default=True)
    in_controlled_shutdown: bool = field(BOOL, "1+")
    log_dirs: list[bytes] = field(Array(UUID), "3+", tag=0, tagged="3+")


class BrokerRegistrationChangeRecord(Message, api_key=17, versions="0-2", flexible="0+"):
    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64)
    fenced: int = field(INT8, tag=0, tagged="0+")
    in_controlled_shutdown: int = field(INT8, "1+", tag=1, tagged="1+")
    log_dirs: list[bytes] = field(Array(UUID), "2+", tag=2, tagged="2+")


class ControllerEndpoint(Struct):
    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)
    security_protocol: int = field(INT16)


class ControllerFeature(Struct):
    name: str = field(STRING)
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class RegisterControllerRecord(Message, api_key=27, versions="0", flexible="0+"):
    controller_id: int = field(INT32)
    incarnation_id: bytes = field(UUID)
    zk_migration_ready: bool = field(BOOL)
    end_points: list[ControllerEndpoint] = field(Array(ControllerEndpoint))
    features: list[ControllerFeature] = field(Array(ControllerFeature))


class NoOpRecord(Message, api_key=20, versions="0", flexible="0+"):
    pass
