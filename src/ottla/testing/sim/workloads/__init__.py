"""What clients do to a simulated cluster while it is in trouble, and what they write down of it."""

from ottla.testing.sim.workloads.administrator import Administrator
from ottla.testing.sim.workloads.elector import Elector
from ottla.testing.sim.workloads.members import Member
from ottla.testing.sim.workloads.mover import Mover
from ottla.testing.sim.workloads.producers import IdempotentProducer, PlainProducer
from ottla.testing.sim.workloads.quorum_changer import QuorumChanger
from ottla.testing.sim.workloads.readers import EndWatcher, Reader
from ottla.testing.sim.workloads.stage import Stage

__all__ = [
    "Administrator",
    "Elector",
    "EndWatcher",
    "IdempotentProducer",
    "Member",
    "Mover",
    "PlainProducer",
    "QuorumChanger",
    "Reader",
    "Stage",
]
