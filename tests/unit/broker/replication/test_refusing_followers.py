"""A follower whose disk takes nothing: its leader need not wait for it."""

from __future__ import annotations

import errno
from typing import Any

from ottla.broker.clock import SystemClock
from unit.broker.replication.test_fetcher import FOLLOWER, LEADER, Pair, live, until


def test_who_cannot_write_tells_its_leader_not_to_wait_for_it(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        epoch = pair.lead()
        pair.follower.follow(epoch)
        await pair.produce("one")
        follower = pair.follower.partition
        await until(lambda: follower.high_watermark.offset == 1)
        pair.follower.disk.fail("write", errno.ENOSPC, times=10**6)
        acknowledged = pair.produce("two")
        await until(lambda: bool(pair.joining))
        assert pair.leader.wanted_isr(SystemClock().now().steady_ms, 10**6) == {LEADER}
        assert not acknowledged.done(), "it is in sync until the controller says otherwise"
        pair.lead(isr=(LEADER,))
        await acknowledged
        # The metadata has come here: nothing more is to be told.
        follower.follow(epoch, LEADER, is_in_sync=False)
        pair.follower.disk.heal()
        pair.follower.flusher.probe(follower)
        await until(lambda: pair.leader.wanted_isr(0, 10**6) == {LEADER, FOLLOWER})
        assert pair.bytes_of(follower) == pair.bytes_of(pair.leader)

    live(tmp_path, story)
