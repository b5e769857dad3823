"""How much memory the machine can still give, as Linux says it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/proc/meminfo")
AVAILABLE: Final = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)


def available_bytes() -> int:
    """None is what is left where nobody knows."""
    try:
        found = AVAILABLE.search(MEMORY.read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
