"""A leader of the metadata log that is heard stays, unless it has lost its vote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.broker.control.metadata_quorum import MetadataQuorum
from ottla.quorum.events import RemoveVoterAsked, ResignAsked
from ottla.testing.sim.history import History
from ottla.testing.sim.observing import CALM_S, Observer
from ottla.testing.sim.troubles import Calm
from ottla.testing.sim.world import World

LOOK_S = 0.1
TICKET = 1_000


def resigns(quorum: MetadataQuorum) -> None:
    quorum.tell(ResignAsked())


def loses_its_vote(quorum: MetadataQuorum) -> None:
    key = next(key for key in quorum.voters.keys if key.id == quorum.leader_id)
    quorum.tell(RemoveVoterAsked(TICKET, key, None))


def complaints(what: Callable[[MetadataQuorum], None]) -> list[str]:
    """What is said of a leader that leads no more after `what` has befallen it."""
    history = History()

    async def story(world: World) -> None:
        await world.start_all()
        observer = Observer(world, history, Calm(lambda: world.now_s))

        while world.now_s < CALM_S + 1:
            observer.look()
            await asyncio.sleep(LOOK_S)
        brokers = [node.broker for node in world.nodes.values()]
        (leader,) = (broker._quorum for broker in brokers if broker and broker._quorum.is_leader)
        observer.look()
        what(leader)
        # All of it happens between two looks.
        while leader.is_leader:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        observer.look()

    with World(7, 3, recorded_voters=True) as world:
        world.run(story(world), limit_s=120)
    return history.complaints


@pytest.mark.parametrize(("what", "count"), [(resigns, 1), (loses_its_vote, 0)])
def test_only_who_votes_no_more_may_be_deposed(
    what: Callable[[MetadataQuorum], None], count: int
) -> None:
    said = complaints(what)
    assert len(said) == count, said
    assert all("heard it all the time, and it was deposed" in each for each in said)
