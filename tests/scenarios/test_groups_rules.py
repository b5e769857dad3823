"""What the group APIs promise, in every version, seen in raw frames."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.testing import Broker
from ottla.testing.plugin import BrokerFactory
from ottla.wire.codec import encode
from ottla.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from raw_client import RawClient

GROUP, TRANSACTION, SHARE = 0, 1, 2


@pytest.fixture
def client(ottla_broker: Broker) -> Iterator[RawClient]:
    with RawClient(ottla_broker.bootstrap) as client:
        client.ask(FindCoordinatorRequest(coordinator_keys=["any"]), 4)
        yield client


@pytest.fixture
def group() -> str:
    return f"group-{secrets.token_hex(4)}"


def joining(group: str, topic: str = "t", **fields: Any) -> JoinGroupRequest:
    subscription = b"\0\0" + encode(ConsumerProtocolSubscription(topics=[topic]), 0)
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        **fields,
    )


def enter(client: RawClient, group: str, version: int = 9, topic: str = "t") -> Any:
    """Joins as the only member; the reply to the join that counts."""
    reply = client.ask(joining(group, topic), version)
    if version >= 4:
        assert reply.error_code == ErrorCode.MEMBER_ID_REQUIRED
        reply = client.ask(joining(group, topic, member_id=reply.member_id), version)
    assert reply.error_code == ErrorCode.NONE
    return reply


def syncing(group: str, joined: Any, share: bytes = b"all", version: int = 5) -> SyncGroupRequest:
    named = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    return SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=share)],
        **named,
    )


def form_group(client: RawClient, group: str, topic: str = "t") -> Any:
    """A stable group of one."""
    joined = enter(client, group, topic=topic)
    assert client.ask(syncing(group, joined), 5).error_code == ErrorCode.NONE
    return joined


def committing(
    group: str, topic: str, offset: int, *, partition: int = 0, **fields: Any
) -> OffsetCommitRequest:
    position = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata="note"
    )
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[position])]
    return OffsetCommitRequest(group_id=group, topics=topics, **fields)


def code(reply: Any) -> ErrorCode:
    """The error of the only partition."""
    return ErrorCode(reply.topics[0].partitions[0].error_code)


# ------------------------------------------------------------------------------------- coordinators


@pytest.mark.parametrize("version", range(7))
def test_a_group_is_found_in_every_version(
    ottla_broker: Broker, client: RawClient, group: str, version: int
) -> None:
    reply = client.ask(FindCoordinatorRequest(key=group, coordinator_keys=[group]), version)
    found = reply.coordinators[0] if version >= 4 else reply
    assert found.error_code == ErrorCode.NONE
    assert f"{found.host}:{found.port}" == ottla_broker.bootstrap
    assert version < 4 or found.key == group
    assert version < 1 or found.error_message is None


@pytest.mark.parametrize("version", range(1, 7))
def test_what_is_not_there_yet_is_refused_for_good(client: RawClient, version: int) -> None:
    expected = {
        SHARE: ErrorCode.INVALID_REQUEST,
        77: ErrorCode.INVALID_REQUEST,
    }
    for key_type, error in expected.items():
        request = FindCoordinatorRequest(key="x", key_type=key_type, coordinator_keys=["x"])
        reply = client.ask(request, version)
        found = reply.coordinators[0] if version >= 4 else reply
        assert (found.error_code, found.node_id) == (error, -1)
        assert found.error_message


def test_several_groups_are_found_at_once(client: RawClient) -> None:
    reply = client.ask(FindCoordinatorRequest(coordinator_keys=["a", "b", "c"]), 6)
    assert [(found.key, found.error_code) for found in reply.coordinators] == [
        ("a", 0),
        ("b", 0),
        ("c", 0),
    ]


def test_who_does_not_ask_for_the_coordinator_is_told_to(
    ottla_broker_factory: BrokerFactory,
) -> None:
    broker = ottla_broker_factory()
    with RawClient(broker.bootstrap) as client:
        not_coordinator = ErrorCode.NOT_COORDINATOR
        assert client.ask(joining("g"), 9).error_code == not_coordinator
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert client.ask(heartbeat, 4).error_code == not_coordinator
        assert code(client.ask(committing("g", "t", 1), 9)) is not_coordinator
        fetched = client.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g")]), 9)
        assert fetched.groups[0].error_code == not_coordinator
        described = client.ask(DescribeGroupsRequest(groups=["g"]), 6)
        assert described.groups[0].error_code == not_coordinator
        deleted = client.ask(DeleteGroupsRequest(groups_names=["g"]), 2)
        assert deleted.results[0].error_code == not_coordinator
        assert client.ask(ListGroupsRequest(), 5).groups == []


# --------------------------------------------------------------------------------------- membership


@pytest.mark.parametrize("version", range(10))
def test_joining_in_every_version(client: RawClient, group: str, version: int) -> None:
    joined = enter(client, group, version)
    assert (joined.generation_id, joined.leader) == (1, joined.member_id)
    assert [member.member_id for member in joined.members] == [joined.member_id]
    assert joined.protocol_name == "range"
    assert joined.protocol_type == ("consumer" if version >= 7 else None)


@pytest.mark.parametrize("version", range(6))
def test_syncing_in_every_version(client: RawClient, group: str, version: int) -> None:
    joined = enter(client, group)
    reply = client.ask(syncing(group, joined, version=version), version)
    assert (reply.error_code, reply.assignment) == (ErrorCode.NONE, b"all")
    assert reply.protocol_name == ("range" if version >= 5 else None)


def test_from_version_5_on_a_sync_must_name_its_protocol(client: RawClient, group: str) -> None:
    joined = enter(client, group)
    reply = client.ask(syncing(group, joined, version=4), 5)
    assert reply.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(5))
def test_heartbeats_in_every_version(client: RawClient, group: str, version: int) -> None:
    member = form_group(client, group).member_id
    alive = HeartbeatRequest(group_id=group, generation_id=1, member_id=member)
    late = HeartbeatRequest(group_id=group, generation_id=0, member_id=member)
    stranger = HeartbeatRequest(group_id=group, generation_id=1, member_id="x")
    errors = [client.ask(one, version).error_code for one in (alive, late, stranger)]
    assert errors == [
        ErrorCode.NONE,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]


@pytest.mark.parametrize("version", range(6))
def test_leaving_in_every_version(client: RawClient, group: str, version: int) -> None:
    member = form_group(client, group).member_id
    request = LeaveGroupRequest(
        group_id=group,
        member_id=member,
        members=[MemberIdentity(member_id=member, reason="done" if version >= 5 else None)],
    )
    first, second = client.ask(request, version), client.ask(request, version)
    errors = [
        reply.members[0].error_code if version >= 3 else reply.error_code
        for reply in (first, second)
    ]
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]


def test_the_empty_group_id_is_invalid_where_kafka_says_so(client: RawClient) -> None:
    requests: list[tuple[Any, int]] = [
        (joining(""), 9),
        (SyncGroupRequest(protocol_type="consumer", protocol_name="range"), 5),
        (HeartbeatRequest(), 4),
        (LeaveGroupRequest(), 5),
        (OffsetDeleteRequest(), 0),
    ]
    errors = {client.ask(request, version).error_code for request, version in requests}
    assert errors == {ErrorCode.INVALID_GROUP_ID}


def test_a_parked_join_holds_back_later_requests_and_is_answered_in_order(
    ottla_broker: Broker, client: RawClient, group: str
) -> None:
    first = form_group(client, group)
    with RawClient(ottla_broker.bootstrap) as other:
        promised = other.ask(joining(group), 9).member_id
        other.send(joining(group, member_id=promised), 9)
        other.send(ListGroupsRequest(), 4)
        again = client.ask(joining(group, member_id=first.member_id), 9)
        assert (again.generation_id, len(again.members)) == (2, 2)
        assert other.receive().generation_id == 2
        assert group in {listed.group_id for listed in other.receive().groups}


# ------------------------------------------------------------------------------------------ offsets


@pytest.mark.parametrize("version", range(2, 10))
def test_commits_in_every_version(
    client: RawClient, group: str, ottla_topic: str, version: int
) -> None:
    member = form_group(client, group, ottla_topic).member_id
    fields = {"generation_id_or_member_epoch": 1, "member_id": member}
    assert code(client.ask(committing(group, ottla_topic, 5, **fields), version)) is ErrorCode.NONE
    fields["generation_id_or_member_epoch"] = 9
    late = client.ask(committing(group, ottla_topic, 6, **fields), version)
    assert code(late) is ErrorCode.ILLEGAL_GENERATION


def test_one_bad_partition_does_not_fail_its_siblings(
    client: RawClient, group: str, ottla_topic: str
) -> None:
    request = committing(group, ottla_topic, 5)
    request.topics += committing(group, ottla_topic, 5, partition=77).topics
    request.topics += committing(group, "no-such-topic", 5).topics
    large = committing(group, ottla_topic, 5).topics
    large[0].partitions[0].committed_metadata = "x" * 5_000
    request.topics += large
    reply = client.ask(request, 9)
    assert [topic.partitions[0].error_code for topic in reply.topics] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ]


@pytest.mark.parametrize("version", range(1, 8))
def test_one_groups_offsets_are_read_in_every_version(
    client: RawClient, group: str, ottla_topic: str, version: int
) -> None:
    client.ask(committing(group, ottla_topic, 5), 8)
    asked = OffsetFetchRequestTopic(name=ottla_topic, partition_indexes=[0, 1])
    reply = client.ask(OffsetFetchRequest(group_id=group, topics=[asked]), version)
    assert reply.error_code == ErrorCode.NONE
    assert [(p.committed_offset, p.metadata, p.error_code) for p in reply.topics[0].partitions] == [
        (5, "note", 0),
        (-1, "", 0),
    ]
    if version >= 2:
        everything = client.ask(OffsetFetchRequest(group_id=group, topics=None), version)
        assert [topic.name for topic in everything.topics] == [ottla_topic]


@pytest.mark.parametrize("version", [8, 9])
def test_several_groups_offsets_are_read_at_once(
    client: RawClient, group: str, ottla_topic: str, version: int
) -> None:
    client.ask(committing(group, ottla_topic, 5), 8)
    asked = [OffsetFetchRequestTopics(name=ottla_topic, partition_indexes=[0])]
    groups = [
        OffsetFetchRequestGroup(group_id=group, topics=asked),
        OffsetFetchRequestGroup(group_id=group, topics=None),
        OffsetFetchRequestGroup(group_id=f"{group}-other", topics=asked),
    ]
    reply = client.ask(OffsetFetchRequest(groups=groups, require_stable=True), version)
    found = [[p.committed_offset for t in g.topics for p in t.partitions] for g in reply.groups]
    assert found == [[5], [5], [-1]]
    assert {answer.error_code for answer in reply.groups} == {ErrorCode.NONE}


def test_offsets_in_topics_that_are_read_cannot_be_deleted(
    client: RawClient, group: str, ottla_topic: str
) -> None:
    member = form_group(client, group, ottla_topic).member_id
    fields = {"generation_id_or_member_epoch": 1, "member_id": member}
    client.ask(committing(group, ottla_topic, 5, **fields), 9)
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    request = OffsetDeleteRequest(
        group_id=group, topics=[OffsetDeleteRequestTopic(name=ottla_topic, partitions=partitions)]
    )
    assert code(client.ask(request, 0)) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    client.ask(LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member)]), 5)
    assert code(client.ask(request, 0)) is ErrorCode.NONE
    left = client.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, None)]), 9)
    assert left.groups[0].topics == []


# ----------------------------------------------------------------------------------- administration


@pytest.mark.parametrize("version", range(7))
def test_describing_in_every_version(client: RawClient, group: str, version: int) -> None:
    member = form_group(client, group).member_id
    request = DescribeGroupsRequest(groups=[group, "nobody"], include_authorized_operations=True)
    by_name = {found.group_id: found for found in client.ask(request, version).groups}
    found, missing = by_name[group], by_name["nobody"]
    assert (found.group_state, found.protocol_type, found.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (described,) = found.members
    assert (described.member_id, described.client_id) == (member, "raw")
    assert described.client_host == "/127.0.0.1"
    assert described.member_assignment == b"all"
    assert (found.authorized_operations >= 0) == (version >= 3)
    assert missing.group_state == "Dead"
    expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
    assert missing.error_code == expected


@pytest.mark.parametrize("version", range(6))
def test_listing_in_every_version(
    client: RawClient, group: str, ottla_topic: str, version: int
) -> None:
    form_group(client, group)
    client.ask(committing(f"{group}-empty", ottla_topic, 1), 8)

    def listed(**filters: Any) -> set[str]:
        found = client.ask(ListGroupsRequest(**filters), version).groups
        return {one.group_id for one in found if one.group_id.startswith(group)}

    assert listed() == {group, f"{group}-empty"}
    if version >= 4:
        assert listed(states_filter=["stable"]) == {group}
    if version >= 5:
        assert listed(types_filter=["classic"]) == {group, f"{group}-empty"}
        assert listed(types_filter=["consumer"]) == set()


@pytest.mark.parametrize("version", range(3))
def test_deleting_in_every_version(
    client: RawClient, group: str, ottla_topic: str, version: int
) -> None:
    form_group(client, group)
    client.ask(committing(f"{group}-empty", ottla_topic, 1), 8)
    request = DeleteGroupsRequest(groups_names=[group, f"{group}-empty", f"{group}-none"])
    reply = client.ask(request, version)
    assert {result.group_id: result.error_code for result in reply.results} == {
        group: ErrorCode.NON_EMPTY_GROUP,
        f"{group}-empty": ErrorCode.NONE,
        f"{group}-none": ErrorCode.GROUP_ID_NOT_FOUND,
    }
