"""What is known of a request besides its body."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# In what is remembered of a connection: later ones have larger numbers.
CONNECTION_NUMBER: Final = "number"


class RequestContext(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    host: str
    listener: str
    memory: dict[Any, Any]
    """What handlers remember for the life of this connection."""
