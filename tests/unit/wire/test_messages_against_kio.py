"""Each message and version, judged by another implementation, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given

from ottla.wire.codec import decode, encode
from ottla.wire.schema import Message
from unit.wire import oracle
from unit.wire.catalogue import all_messages, all_versions, name_of, structs

# What Kafka 4.0 itself no longer speaks, or keeps only on disk, kio does not have.
NOT_IN_KIO = {
    "ProduceRequest": {0, 1, 2},
    "ProduceResponse": {0, 1, 2},
}
ONLY_ON_DISK = {"ottla.wire.messages.group_records", "ottla.wire.messages.metadata_records"}


def is_in_kio(kind: type[Message], version: int) -> bool:
    if kind.__module__ in ONLY_ON_DISK:
        return False
    return version not in NOT_IN_KIO.get(kind.__name__, ())


JUDGED = [pair for pair in all_versions() if is_in_kio(*pair)]


@pytest.mark.parametrize(("kind", "version"), JUDGED, ids=name_of)
def test_kio_reads_what_we_write_and_we_read_what_kio_writes(kind, version):
    theirs = oracle.counterpart(kind, version)

    @given(structs(kind, version, oracle.KioValues(kind, theirs, version)))
    def check(message):
        data = encode(message, version)
        entity = oracle.read(theirs, data)
        assert oracle.to_ours(kind, entity, version) == message
        their_data = oracle.write(entity)
        assert decode(kind, their_data, version) == message
        assert their_data == data

    check()


@pytest.mark.parametrize(("kind", "version"), JUDGED, ids=name_of)
def test_flexible_versions_and_keys_are_those_of_kio(kind, version):
    theirs = oracle.counterpart(kind, version)
    assert theirs.__flexible__ == (version in kind.FLEXIBLE)
    assert getattr(theirs, "__api_key__", -1) == kind.API_KEY


@pytest.mark.parametrize("kind", all_messages(), ids=name_of)
def test_no_version_between_the_first_and_the_last_of_kio_is_forgotten(kind):
    if kind.__module__ in ONLY_ON_DISK:
        pytest.skip("a record on disk, which kio does not have")
    ours = set(range(kind.VERSIONS.first, kind.VERSIONS.last + 1))
    missing = {version for version in oracle.versions_of(kind) if version < kind.VERSIONS.last}
    assert missing - ours == set()
    assert ours - oracle.versions_of(kind) == NOT_IN_KIO.get(kind.__name__, set())


