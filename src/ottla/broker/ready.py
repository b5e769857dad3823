"""What a start ends with."""

from __future__ import annotations

from typing import NamedTuple


class ReadyInfo(NamedTuple):
    """What a person, or a test, wants to know of a broker that has just started."""

    kafka: str
    serves_clients: bool
    http: str | None
    data_dir: str
    was_clean: bool
    seconds: float
