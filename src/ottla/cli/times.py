"""Points in time on a command line."""

from __future__ import annotations

from datetime import datetime

from ottla.cli.failures import WrongUsage


def parse_time_ms(text: str, option: str) -> int:
    """Milliseconds since 1970, or a date and time in ISO form (local without a zone)."""
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise WrongUsage(
            f"{option} {text} is no time; write 2025-01-31T12:00:00Z or milliseconds since 1970."
        ) from None
