"""What a voter must not forget: the epoch, its leader, whom it voted for in it, and that it has
forgotten what it knew before.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

from ottla.quorum.values import Value
from ottla.types import NO_NODE, NodeId

FILE_NAME: Final = "quorum-state"
DATA_VERSION: Final = 1
NO_DIRECTORY_ID: Final = bytes(16)
BLANK: Final = "ottlaIsBlank"


class UnreadableQuorumState(Exception):
    """The file holds something else than a quorum state that this version knows."""


class QuorumState(Value):
    leader_id: NodeId = NO_NODE
    leader_epoch: int = 0
    voted_id: NodeId = NO_NODE
    voted_directory_id: bytes = NO_DIRECTORY_ID
    is_blank: bool = False
    """Whether this disk was empty, and has not had all of a leader's log since."""


def encode_state(state: QuorumState) -> bytes:
    """Kafka's JSON form, version 1."""
    voted_directory_id = urlsafe_b64encode(state.voted_directory_id).rstrip(b"=")
    document: dict[str, object] = {
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
        "votedDirectoryId": voted_directory_id.decode("ascii"),
        "data_version": DATA_VERSION,
    }
    if state.is_blank:
        # Not Kafka's, whose readers pass it over.
        document[BLANK] = True
    return json.dumps(document, separators=(",", ":")).encode()


def decode_state(data: bytes) -> QuorumState:
    try:
        document = json.loads(data)
        version = document["data_version"]
        if version not in (0, DATA_VERSION):
            raise UnreadableQuorumState(f"{FILE_NAME} has the unknown data_version {version}")
        voted_directory_id = document.get("votedDirectoryId", "")
        return QuorumState(
            leader_id=NodeId(int(document["leaderId"])),
            leader_epoch=int(document["leaderEpoch"]),
            voted_id=NodeId(int(document["votedId"])),
            voted_directory_id=urlsafe_b64decode(voted_directory_id + "==") or NO_DIRECTORY_ID,
            is_blank=bool(document.get(BLANK, False)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableQuorumState(f"{FILE_NAME} cannot be read: {error!r}") from error
