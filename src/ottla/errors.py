"""Ottla's own errors, and the one mapping from them to Kafka's codes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final


class ErrorCode(IntEnum):
    """Kafka's error codes, by Kafka's names."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    DUPLICATE_RESOURCE = 92
    INVALID_UPDATE_VERSION = 95
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127


class OttlaError(Exception):
    """The base of all errors about a request."""


class CannotStart(OttlaError):
    """The broker cannot start; the message is one line for a person, with what to do."""


class OffsetOutOfRange(OttlaError): ...


class OffsetNotAvailable(OttlaError):
    """A new leader does not know yet where the log ends for consumers."""


class CorruptBatch(OttlaError):
    """Bytes that are no intact record batch."""


class TooLargeToOpen(CorruptBatch):
    """A batch that becomes larger than the limit when it is opened."""


class InvalidRecord(OttlaError):
    """An intact batch that breaks a rule of its topic; where it is known, which records do."""

    def __init__(self, message: str, records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = records


class UnsupportedMessageFormat(OttlaError):
    """A batch of an older magic than 2."""


class UnsupportedCompression(OttlaError): ...


class UnknownTopicOrPartition(OttlaError): ...


class UnknownTopicId(OttlaError): ...


class LeaderNotAvailable(OttlaError): ...


class NotLeader(OttlaError): ...


class NotEnoughReplicas(OttlaError):
    """Fewer replicas are in sync than acks=all needs."""


class NotEnoughReplicasAfterAppend(OttlaError):
    """They became too few while the batch waited for them: it is in the log and not committed."""


class FencedLeaderEpoch(OttlaError): ...


class UnknownLeaderEpoch(OttlaError): ...


class RequestTimedOut(OttlaError): ...


class MessageTooLarge(OttlaError): ...


class InvalidTimestamp(OttlaError): ...


class OutOfOrderSequence(OttlaError): ...


class InvalidProducerEpoch(OttlaError): ...


class InvalidTransactionState(OttlaError): ...


class TransactionCoordinatorFenced(OttlaError):
    """Said by a coordinator in whose place there is another one by now."""


class StorageFailed(OttlaError):
    """The disk refused, or the partition is fenced after it did."""


class InvalidRequest(OttlaError): ...


class UnsupportedVersion(OttlaError): ...


class NotController(OttlaError): ...


class LogDirNotFound(OttlaError):
    """The node has no data directory of this path."""


class ReplicaNotAvailable(OttlaError):
    """The node has no replica of the partition."""


class InvalidTopicName(OttlaError): ...


class TopicExists(OttlaError): ...


class InvalidPartitions(OttlaError): ...


class InvalidReplicationFactor(OttlaError): ...


class InvalidReplicaAssignment(OttlaError): ...


class NoReassignmentInProgress(OttlaError): ...


class InvalidConfig(OttlaError): ...


class PolicyViolation(OttlaError): ...


class TopicDeletionDisabled(OttlaError): ...


class BrokerNotRegistered(OttlaError): ...


class DuplicateBrokerRegistration(OttlaError):
    """Another broker with this id lives; the message says where."""


class InvalidRegistration(OttlaError): ...


class InconsistentClusterId(OttlaError): ...


class StaleBrokerEpoch(OttlaError):
    """Said by an incarnation of a broker that is not the registered one."""


class InvalidUpdateVersion(OttlaError):
    """A change that rests on an older partition epoch, or a level that cannot be had."""


class IneligibleReplica(OttlaError):
    """A replica that may not be in sync: not registered, fenced, leaving, or of another epoch."""


class NewLeaderElected(OttlaError):
    """The change is made, and whoever asked for it does not lead any more."""


class ElectionNotNeeded(OttlaError): ...


class PreferredLeaderNotAvailable(OttlaError): ...


class EligibleLeadersNotAvailable(OttlaError): ...


class InvalidRequiredAcks(OttlaError): ...


class CoordinatorLoading(OttlaError): ...


class CoordinatorNotAvailable(OttlaError): ...


class NotCoordinator(OttlaError): ...


class InvalidGroupId(OttlaError): ...


class FetchSessionNotFound(OttlaError): ...


class InvalidFetchSessionEpoch(OttlaError): ...


class FetchSessionTopicIdError(OttlaError): ...


class SnapshotNotFound(OttlaError):
    """It was removed, or never was."""


class PositionOutOfRange(OttlaError): ...


class InvalidProducerIdMapping(OttlaError):
    """A transactional id that is not known, or not as that of this producer."""


class TransactionAbortable(OttlaError):
    """What was asked is not in a transaction; the client may abort, and go on."""


class TransactionalIdRefused(OttlaError):
    """A transaction without an id, or one that its producer may not have."""


CODES: Final[dict[type[BaseException], ErrorCode]] = {
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    OffsetNotAvailable: ErrorCode.OFFSET_NOT_AVAILABLE,
    CorruptBatch: ErrorCode.CORRUPT_MESSAGE,
    TooLargeToOpen: ErrorCode.MESSAGE_TOO_LARGE,
    InvalidRecord: ErrorCode.INVALID_RECORD,
    UnsupportedMessageFormat: ErrorCode.INVALID_RECORD,
    UnsupportedCompression: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    UnknownTopicOrPartition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    UnknownTopicId: ErrorCode.UNKNOWN_TOPIC_ID,
    LeaderNotAvailable: ErrorCode.LEADER_NOT_AVAILABLE,
    NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    NotEnoughReplicasAfterAppend: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    UnknownLeaderEpoch: ErrorCode.UNKNOWN_LEADER_EPOCH,
    RequestTimedOut: ErrorCode.REQUEST_TIMED_OUT,
    MessageTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
    TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    StorageFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    LogDirNotFound: ErrorCode.LOG_DIR_NOT_FOUND,
    ReplicaNotAvailable: ErrorCode.REPLICA_NOT_AVAILABLE,
    OSError: ErrorCode.KAFKA_STORAGE_ERROR,
    InvalidRequest: ErrorCode.INVALID_REQUEST,
    UnsupportedVersion: ErrorCode.UNSUPPORTED_VERSION,
    NotController: ErrorCode.NOT_CONTROLLER,
    InvalidTopicName: ErrorCode.INVALID_TOPIC_EXCEPTION,
    TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    InvalidPartitions: ErrorCode.INVALID_PARTITIONS,
    InvalidReplicationFactor: ErrorCode.INVALID_REPLICATION_FACTOR,
    InvalidReplicaAssignment: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    NoReassignmentInProgress: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    InvalidConfig: ErrorCode.INVALID_CONFIG,
    PolicyViolation: ErrorCode.POLICY_VIOLATION,
    TopicDeletionDisabled: ErrorCode.TOPIC_DELETION_DISABLED,
    BrokerNotRegistered: ErrorCode.BROKER_ID_NOT_REGISTERED,
    DuplicateBrokerRegistration: ErrorCode.DUPLICATE_BROKER_REGISTRATION,
    InvalidRegistration: ErrorCode.INVALID_REGISTRATION,
    InconsistentClusterId: ErrorCode.INCONSISTENT_CLUSTER_ID,
    StaleBrokerEpoch: ErrorCode.STALE_BROKER_EPOCH,
    InvalidUpdateVersion: ErrorCode.INVALID_UPDATE_VERSION,
    IneligibleReplica: ErrorCode.INELIGIBLE_REPLICA,
    NewLeaderElected: ErrorCode.NEW_LEADER_ELECTED,
    ElectionNotNeeded: ErrorCode.ELECTION_NOT_NEEDED,
    PreferredLeaderNotAvailable: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    EligibleLeadersNotAvailable: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    InvalidRequiredAcks: ErrorCode.INVALID_REQUIRED_ACKS,
    CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    CoordinatorNotAvailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    NotCoordinator: ErrorCode.NOT_COORDINATOR,
    InvalidGroupId: ErrorCode.INVALID_GROUP_ID,
    FetchSessionNotFound: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    InvalidFetchSessionEpoch: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    FetchSessionTopicIdError: ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    SnapshotNotFound: ErrorCode.SNAPSHOT_NOT_FOUND,
    PositionOutOfRange: ErrorCode.POSITION_OUT_OF_RANGE,
    InvalidProducerIdMapping: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    TransactionAbortable: ErrorCode.TRANSACTION_ABORTABLE,
    TransactionalIdRefused: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def code_of(error: BaseException) -> ErrorCode:
    """The code a client is told; total, because an unmapped error is a server error."""
    for kind in type(error).__mro__:
        code = CODES.get(kind)
        if code is not None:
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


_KINDS: Final[dict[int, type[OttlaError]]] = {
    code: kind for kind, code in reversed(CODES.items()) if issubclass(kind, OttlaError)
}


def error_of(code: int, message: str | None = None) -> OttlaError:
    """Our error for the code that another node has answered with."""
    kind = _KINDS.get(code, OttlaError)
    name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error {code}"
    return kind(message or f"the controller says {name}")
