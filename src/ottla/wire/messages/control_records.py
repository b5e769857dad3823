"""The control records of the metadata log besides those of its snapshots (KIP-595, KIP-853)."""

from ottla.wire.schema import INT16, INT32, STRING, UINT16, UUID, Array, Message, Struct, field


class Voter(Struct):
    voter_id: int = field(INT32)
    voter_directory_id: bytes = field(UUID, "1+")


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    version: int = field(INT16)
    leader_id: int = field(INT32)
    voters: list[Voter] = field(Array(Voter))
    granting_voters: list[Voter] = field(Array(Voter))


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    version: int = field(INT16)
    k_raft_version: int = field(INT16)


class VoterEndpoint(Struct):
    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)


class KRaftVersionFeature(Struct):
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class RegisteredVoter(Struct):
    voter_id: int = field(INT32)
    voter_directory_id: bytes = field(UUID)
    endpoints: list[VoterEndpoint] = field(Array(VoterEndpoint))
    k_raft_version_feature: KRaftVersionFeature = field(KRaftVersionFeature)


class VotersRecord(Message, versions="0", flexible="0+"):
    version: int = field(INT16)
    voters: list[RegisteredVoter] = field(Array(RegisteredVoter))
