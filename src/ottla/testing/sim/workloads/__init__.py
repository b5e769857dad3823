"""What clients do to a simulated cluster while it is in trouble, and what they write down of it."""

from ottla.testing.sim.workloads.administrator import Administrator
from ottla.testing.sim.workloads.members import Member
from ottla.testing.sim.workloads.producers import IdempotentProducer, PlainProducer
from ottla.testing.sim.workloads.readers import EndWatcher, Reader
from ottla.testing.sim.workloads.stage import Stage

__all__ = [
    "Administrator",
    "EndWatcher",
    "IdempotentProducer",
    "Member",
    "PlainProducer",
    "Reader",
    "Stage",
]
