"""What a starting broker tells the controller before it serves anybody."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ottla.cluster.brokers import FIRST, Cursor, Registration
from ottla.cluster.controller import Controller
from ottla.machine import Decision, Ticket
from ottla.types import Now
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.broker.control.runtime import Runtime


async def register(controller: Runtime[Controller], registration: Registration) -> int:
    """Registers the broker and begins a new leader epoch of all it leads; returns its epoch."""
    epoch: int = await controller.submit(
        lambda machine, now, ticket: machine.register_broker(registration, now, ticket)
    )
    cursor: Cursor | None = FIRST
    while cursor is not None:
        raise_epochs = partial(_raise_epochs, registration.node_id, cursor)
        cursor = await controller.submit(raise_epochs)
    return epoch


def _raise_epochs(
    node_id: int, after: Cursor, machine: Controller, now: Now, ticket: Ticket
) -> Decision[Message]:
    return machine.raise_leader_epochs(node_id, after, now, ticket)
