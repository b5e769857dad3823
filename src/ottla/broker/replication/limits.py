"""How much a follower asks for at once, and how long its leader may wait."""

from __future__ import annotations

from typing import NamedTuple


class FetchLimits(NamedTuple):
    wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_bytes_max: int
