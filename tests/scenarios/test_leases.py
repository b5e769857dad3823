"""A broker looks at its lease before it answers, however long its process slept."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.errors import ErrorCode
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from raw_client import RawClient
from scenarios.in_process import BrokerInside

LIST_OFFSETS_VERSION, METADATA_VERSION = 7, 9


def error_of_end(client: RawClient) -> int:
    asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[asked])])
    reply = client.ask(request, LIST_OFFSETS_VERSION)
    code: int = reply.topics[0].partitions[0].error_code
    return code


def named_leader(client: RawClient) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    leader: int = client.ask(request, METADATA_VERSION).topics[0].partitions[0].leader_id
    return leader


def test_a_request_that_has_waited_is_answered_under_the_lease_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
        inside.create_topic("t")
        assert error_of_end(client) == ErrorCode.NONE
        assert named_leader(client) == inside.node.config.node_id

        async def sleep_through_it() -> None:
            """As if there were others, and the last heartbeat was answered long ago."""
            lease = inside.node._lease
            monkeypatch.setattr(lease, "_is_needed", lambda: True)
            monkeypatch.setattr(lease, "_seconds", 0.0)
            lease._until_s = 0.0
            inside.node._look_before_requests()
            assert lease.is_held, "no timer has run"

        inside.call(sleep_through_it())
        assert error_of_end(client) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert named_leader(client) == -1
