"""How long the quorum waits for what; each is one of Kafka's settings."""

from __future__ import annotations

from typing import Final

from ottla.config import BrokerConfig
from ottla.quorum.values import Value

FIRST_ELECTION_SHARE: Final = 10


class Times(Value):
    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_max_ms: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    # A voter of a new quorum stands after so long, and up to as long again; None: as always.
    first_election_ms: int | None = None

    @staticmethod
    def from_config(config: BrokerConfig) -> Times:
        return Times(
            election_timeout_ms=config.controller_quorum_election_timeout_ms,
            fetch_timeout_ms=config.controller_quorum_fetch_timeout_ms,
            election_backoff_max_ms=config.controller_quorum_election_backoff_max_ms,
            request_timeout_ms=config.controller_quorum_request_timeout_ms,
            retry_backoff_ms=config.controller_quorum_retry_backoff_ms,
            first_election_ms=config.controller_quorum_election_timeout_ms // FIRST_ELECTION_SHARE,
        )

    @property
    def check_quorum_ms(self) -> int:
        """A leader waits longer than a follower does, so that it hears of a new one first."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def doubt_ms(self) -> int:
        """A follower that cannot reach its leader waits up to so long before it asks the others."""
        return self.fetch_timeout_ms // 10

    @property
    def announce_ms(self) -> int:
        """A voter that has not fetched for so long is told of the leader again."""
        return self.fetch_timeout_ms // 2
