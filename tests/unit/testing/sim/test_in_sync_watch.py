"""Whoever is in sync without something that is committed is found, at the moment when it is so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.cluster.image import NOT_MOVING, Moving, PartitionImage
from ottla.log.epochs import Epochs
from ottla.testing.sim.history import History
from ottla.testing.sim.in_sync_watch import InSyncWatch
from ottla.types import LeaderEpoch, TopicPartition

ID = b"i" * 16
MAIN = TopicPartition("main", 0)


def replica(end: int, committed: int, epoch: int = 1, partition_epoch: int | None = None) -> Any:
    leading = partition_epoch is not None
    return SimpleNamespace(
        topic_id=ID,
        index=0,
        name=MAIN,
        start_offset=0,
        end_offset=end,
        high_watermark=SimpleNamespace(offset=committed),
        replicas=SimpleNamespace(partition_epoch=partition_epoch) if leading else None,
        failure=None,
        is_fenced=False,
        is_offline=False,
        is_retired=False,
        _log=SimpleNamespace(_epochs=Epochs.of([(LeaderEpoch(epoch), 0)])),
    )


def broker(partition: Any, isr: tuple[int, ...], partition_epoch: int = 3) -> Any:
    partitions = {0: SimpleNamespace(isr=isr, partition_epoch=partition_epoch)}
    topic = SimpleNamespace(id=ID, name="main", partitions=partitions)
    image = SimpleNamespace(topics_by_id={ID: topic})
    return SimpleNamespace(_partitions=[partition], _metadata=SimpleNamespace(image=image))


def complaints(*brokers: Any) -> list[str]:
    history = History()
    InSyncWatch(history).look(dict(enumerate(brokers, 1)))
    return history.complaints


def test_a_member_that_lacks_what_is_committed_is_found() -> None:
    leader, member = replica(5, 5, partition_epoch=3), replica(4, 4)
    (said,) = complaints(broker(leader, (1, 2)), broker(member, (1, 2)))
    assert "node 2 is in sync and ends at 4, node 1 has committed up to 5" in said


def test_a_member_that_has_something_else_there_is_found() -> None:
    leader, member = replica(5, 5, epoch=2, partition_epoch=3), replica(5, 4, epoch=1)
    (said,) = complaints(broker(leader, (1, 2)), broker(member, (1, 2)))
    assert "node 2 is in sync and has epoch 1 there" in said


def test_a_member_that_has_all_of_it_and_one_that_is_not_in_sync_are_well() -> None:
    leader = replica(5, 5, partition_epoch=3)
    assert not complaints(broker(leader, (1, 2)), broker(replica(6, 4), (1, 2)))
    assert not complaints(broker(leader, (1,)), broker(replica(2, 2), (1,)))


def test_metadata_that_a_leader_has_left_behind_proves_nothing() -> None:
    leader, member = replica(5, 5, partition_epoch=4), replica(2, 2)
    assert not complaints(broker(leader, (1, 2)), broker(member, (1, 2)))


def image(replicas: tuple[int, ...], isr: tuple[int, ...], moving: Moving, epoch: int) -> Any:
    partition = PartitionImage(1, LeaderEpoch(1), epoch, replicas, isr, moving=moving)
    topic = SimpleNamespace(id=ID, name="main", partitions={0: partition})
    return SimpleNamespace(image=SimpleNamespace(topics_by_id={ID: topic}))


def moved(*steps: Any) -> list[str]:
    history = History()
    watch = InSyncWatch(history)
    for metadata in steps:
        watch.look({1: SimpleNamespace(_partitions=[], _metadata=metadata)})
    return history.complaints


COMING = Moving(adding=(3,), removing=(2,))


def test_a_move_that_has_arrived_with_somebody_who_is_not_in_sync_is_found() -> None:
    (said,) = moved(image((1, 3, 2), (1, 2), COMING, 4), image((1, 3), (1,), NOT_MOVING, 5))
    assert said == "main-0 has moved from [1, 3, 2] to [1, 3], and in sync are [1]"
    assert moved(image((1, 2), (1, 2), NOT_MOVING, 4), image((1, 3), (1,), NOT_MOVING, 5))


def test_a_move_that_has_arrived_in_sync_or_has_gone_back_is_well() -> None:
    coming = image((1, 3, 2), (1, 2), COMING, 4)
    assert not moved(coming, image((1, 3), (1, 3), NOT_MOVING, 5))
    assert not moved(coming, image((1, 2), (1,), NOT_MOVING, 5))
    # Nobody has gone: internal topics get more replicas when nodes come.
    assert not moved(image((1, 2), (1, 2), NOT_MOVING, 4), image((1, 2, 3), (1, 2), NOT_MOVING, 5))
    # Who was in sync on arrival may have fallen back since.
    assert not moved(coming, image((1, 3), (1,), NOT_MOVING, 6))
