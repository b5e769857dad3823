"""How a cluster is: what its supervisor knows of processes, its nodes of partitions and lag."""

from __future__ import annotations

import asyncio
import http.client
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ottla.cli.figures import Figures
from ottla.cli.supervisor.home import Home
from ottla.cli.supervisor.node import State
from ottla.cli.supervisor.requests import ask
from ottla.client.connection import Connection
from ottla.client.failures import ClientFailed
from ottla.client.settings import ClientSettings
from ottla.types import METADATA_TOPIC, NO_NODE
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse

ANSWER_S_MAX: Final = 3.0
METRICS_BYTES_MAX: Final = 16 * 1024 * 1024
FOLLOWER_LAG: Final = "follower_lag"
# A process is there and does not answer: it is stopped, busy, or waits for a majority.
SILENT: Final = "silent"


class Told(NamedTuple):
    """What one node says; the lag is that of its followers, by their ids."""

    metadata: MetadataResponse
    is_controller: bool
    lags: Mapping[int, float]


def look(home: Home) -> list[dict[str, Any]]:
    """A row for each node; what nobody can say is None."""
    plan = home.known_plan()
    answer = ask(home, "status")
    if answer is None:
        return [_row(_gone(number, plan.address_of(number)), {}) for number in plan.numbers]
    facts = answer["nodes"]
    told = asyncio.run(_ask_all(facts))
    return [_row(each, told) for each in facts]


def _gone(number: int, address: str) -> dict[str, Any]:
    state = str(State.STOPPED)
    return {"node_id": number, "pid": None, "address": address, "state": state, "http": None}


def _row(facts: Mapping[str, Any], told: Mapping[int, Told]) -> dict[str, Any]:
    number = facts["node_id"]
    is_running = facts["state"] == State.RUNNING
    is_silent = is_running and number not in told
    row = {
        "node_id": number,
        "pid": facts["pid"],
        "address": facts["address"],
        "role": None,
        "state": SILENT if is_silent else facts["state"],
        "leaders": None,
        "under_replicated": None,
        "lag": None,
        "http": facts["http"],
    }
    if is_running and not is_silent:
        row["role"] = "controller" if told[number].is_controller else "broker"
    view = _best(told.values())
    if view is not None:
        led = Counter(partition.leader_id for partition in _partitions(view))
        lacking = Counter(
            partition.leader_id
            for partition in _partitions(view)
            if len(partition.isr_nodes) < len(partition.replica_nodes)
        )
        row["leaders"], row["under_replicated"] = led[number], lacking[number]
        row["lag"] = int(sum(each.lags.get(number, 0) for each in told.values()))
    return row


def _best(told: Iterable[Told]) -> MetadataResponse | None:
    """The controller has decided it; anybody else may not know the last of it yet."""
    ordered = sorted(told, key=lambda each: not each.is_controller)
    return ordered[0].metadata if ordered else None


def _partitions(metadata: MetadataResponse) -> list[Any]:
    return [partition for topic in metadata.topics for partition in topic.partitions]


async def _ask_all(facts: Iterable[Mapping[str, Any]]) -> dict[int, Told]:
    running = [each for each in facts if each["state"] == State.RUNNING]
    answers = await asyncio.gather(*(_ask_one(each) for each in running))
    return {
        each["node_id"]: told
        for each, told in zip(running, answers, strict=True)
        if told is not None
    }


async def _ask_one(facts: Mapping[str, Any]) -> Told | None:
    settings = ClientSettings((), "ottla-cli")
    connection: Connection | None = None
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            connection = await Connection.open(facts["address"], settings)
            metadata = await connection.ask(
                MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse
            )
            topic = DescribeQuorumTopic(METADATA_TOPIC, [DescribeQuorumPartition(0)])
            quorum = await connection.ask(DescribeQuorumRequest([topic]), DescribeQuorumResponse)
            lags = await asyncio.to_thread(_follower_lags, facts["http"])
    except (ClientFailed, OSError, TimeoutError):
        return None
    finally:
        if connection is not None:
            connection.abort("all is said")
    return Told(metadata, _leads(quorum, facts["node_id"]), lags)


def _leads(quorum: DescribeQuorumResponse, number: int) -> bool:
    """Only the leader knows; others answer with an error."""
    results = [each for topic in quorum.topics for each in topic.partitions]
    return any(each.leader_id == number != NO_NODE and not each.error_code for each in results)


def _follower_lags(address: str | None) -> dict[int, float]:
    if address is None:
        return {}
    connection = http.client.HTTPConnection(address, timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read(METRICS_BYTES_MAX).decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(str(error)) from None
    finally:
        connection.close()
    samples = Figures.parse(text).all(FOLLOWER_LAG)
    return {int(sample.labels["node"]): sample.value for sample in samples}
