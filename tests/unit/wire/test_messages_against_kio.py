"""Each message and version, judged by another implementation, in both directions."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from ottla.wire.codec import decode, encode
from ottla.wire.schema import Array, Message, StructType
from unit.wire import oracle
from unit.wire.catalogue import all_messages, all_versions, name_of, structs

# What Kafka 4.0 itself no longer speaks, or keeps only on disk, kio does not have.
NOT_IN_KIO = {
    "ProduceRequest": {0, 1, 2},
    "ProduceResponse": {0, 1, 2},
}
# kio says None where the wire has the id of zeros or the time -1.
NULL_IS_A_NUMBER = {"uuid", "datetime_i64"}
ONLY_ON_DISK = {
    "ottla.wire.messages.group_records",
    "ottla.wire.messages.metadata_records",
    "ottla.wire.messages.transaction_records",
}


def is_in_kio(kind: type[Message], version: int) -> bool:
    if kind.__module__ in ONLY_ON_DISK:
        return False
    return version not in NOT_IN_KIO.get(kind.__name__, ())


MESSAGES = [kind for kind in all_messages() if kind.__module__ not in ONLY_ON_DISK]
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


@pytest.mark.parametrize(("kind", "version"), JUDGED, ids=name_of)
def test_what_may_be_null_and_what_is_default_is_as_in_kio(kind, version):
    assert_same_rules(kind, oracle.counterpart(kind, version), version)


def assert_same_rules(kind, theirs, version):
    for our, their in oracle.paired_fields(kind, theirs, version):
        where = f"{kind.__name__}.{our.name}"
        if their.metadata.get("kafka_type") not in NULL_IS_A_NUMBER:
            assert oracle.is_nullable(theirs, their.name) == (version in our.nullable), where
        if their.default is not dataclasses.MISSING and not dataclasses.is_dataclass(their.default):
            default = [] if our.is_made_fresh else our.default
            assert oracle.to_ours(our.kind, their.default, version) == default, where
        item = our.kind.item if isinstance(our.kind, Array) else our.kind
        if isinstance(item, StructType):
            assert_same_rules(item, oracle.part_type(theirs, their.name), version)


@pytest.mark.parametrize("kind", MESSAGES, ids=name_of)
def test_no_version_between_the_first_and_the_last_of_kio_is_forgotten(kind):
    ours = set(range(kind.VERSIONS.first, kind.VERSIONS.last + 1))
    theirs = oracle.versions_of(kind)
    assert {version for version in theirs if version < kind.VERSIONS.last} - ours == set()
    assert ours - theirs == NOT_IN_KIO.get(kind.__name__, set())
