"""What stories about real processes in trouble share."""

from __future__ import annotations

import sys
from pathlib import Path

# The clients' programs and their toolchains.
sys.path.insert(0, str(Path(__file__).parents[1] / "clients"))
