"""A whole cluster in one thread and in virtual time: real brokers, real clients, one seed.

    world = World(seed=7)
    world.run(story(world), limit_s=120)

Everything that happens follows from the seed, so a failure is a number that replays.
"""

from ottla.testing.sim.world import World

__all__ = ["World"]
