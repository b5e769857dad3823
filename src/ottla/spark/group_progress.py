"""Tells a consumer group how far the query is, so that every lag tool sees it.

Spark's checkpoint is what counts; the group is for people to look at. So a commit that fails is a
warning, and the query waits for one only shortly.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Final

from ottla.client.blocking import Blocking
from ottla.errors import OttlaError
from ottla.types import TopicPartition

log = logging.getLogger(__name__)

WAIT_S: Final = 2.0
# The last commit of a query that ends by itself: there will be no other chance.
WAIT_S_LAST: Final = 10.0
PAUSE_AFTER_FAILURE_S: Final = 5.0


class GroupProgress:
    """Commits what Spark has finished; one commit at a time, the newest offsets win."""

    def __init__(
        self,
        blocking: Callable[[], Blocking],
        group: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocking = blocking
        self._group = group
        self._clock = clock
        self._committed: dict[TopicPartition, int] = {}
        self._sent: tuple[Future[None], dict[TopicPartition, int]] | None = None
        self._silent_until = 0.0
        self._told = ""

    def commit(self, offsets: Mapping[TopicPartition, int], *, is_last: bool = False) -> None:
        """Returns soon, whatever the coordinator does."""
        wait_s = WAIT_S_LAST if is_last else WAIT_S
        if self._sent is not None and not self._collect(wait_s if is_last else 0.0):
            return
        changed = {p: at for p, at in offsets.items() if self._committed.get(p) != at}
        if not changed or (not is_last and self._clock() < self._silent_until):
            return
        group = self._group
        future = self._blocking().submit(lambda cluster: cluster.commit(group, changed))
        self._sent = (future, changed)
        self._collect(wait_s)

    def _collect(self, wait_s: float) -> bool:
        """Whether the commit under way has ended, well or not."""
        assert self._sent is not None
        future, offsets = self._sent
        try:
            future.result(wait_s)
        except FutureTimeout:
            if not future.done():
                self._warn("no answer yet")
                return False
            self._failed("no answer")
        except (OttlaError, OSError) as error:
            self._failed(str(error) or type(error).__name__)
        else:
            self._committed.update(offsets)
            self._told = ""
        self._sent = None
        return True

    def _failed(self, reason: str) -> None:
        self._silent_until = self._clock() + PAUSE_AFTER_FAILURE_S
        self._warn(reason)

    def _warn(self, reason: str) -> None:
        if reason != self._told:
            self._told = reason
            log.warning(
                "the progress of group %s could not be committed (%s); the query goes on, "
                "its checkpoint is not concerned",
                self._group,
                reason,
            )
