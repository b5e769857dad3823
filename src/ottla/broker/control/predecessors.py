"""Who was the controller before this node, as far as that is certain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.sessions import Predecessor
from ottla.ports import Clock
from ottla.types import NO_NODE

if TYPE_CHECKING:
    from ottla.broker.control.needs import Leadership


class Predecessors:
    def __init__(self, leadership: Leadership, clock: Clock) -> None:
        self._leadership = leadership
        self._clock = clock
        self._epoch = -1
        self._last: Predecessor | None = None
        leadership.on_leader_change(self._see)

    def _see(self) -> None:
        leader, epoch = self._leadership.leader_id, self._leadership.leader_epoch
        if leader == NO_NODE or self._leadership.is_leader:
            return
        if self._last is None or (leader, epoch) != (self._last.node_id, self._epoch):
            self._epoch = epoch
            self._last = Predecessor(leader, self._clock.now().steady_ms)

    def take(self) -> Predecessor | None:
        """Of the epoch before the one that is led here, where this node has followed it; once, as
        a controller that forgets itself may have answered its predecessor meanwhile.
        """
        last, self._last = self._last, None
        return last if self._epoch == self._leadership.leader_epoch - 1 else None
