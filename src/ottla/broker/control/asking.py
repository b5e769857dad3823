"""Asking the controller on behalf of a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.cluster.controller import Controller
from ottla.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    NotController,
    NotCoordinator,
    StorageFailed,
)
from ottla.machine import Decision, Ticket
from ottla.types import Now
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.broker.control.needs import ControlServices


async def ask_controller(
    services: ControlServices, decide: Callable[[Controller, Now, Ticket], Decision[Message]]
) -> Any:
    """The decider's reply. What the runtime calls a coordinator is a controller to the client."""
    try:
        return await services.controller.submit(decide)
    except (CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator) as error:
        failure = services.controller.partition.failure
        if failure is not None:
            raise StorageFailed(f"The metadata log cannot be written: {failure}") from error
        raise NotController(str(error)) from error
