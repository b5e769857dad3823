"""The first example of docs/spark.md, run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.testing import Broker
from spark.kit.session import environment
from spark.kit.toolchain import require

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
TIMEOUT_S = 400


@pytest.mark.seconds(420)
def test_first_success_in_a_minute(broker: Broker, tmp_path: Path) -> None:
    require("java")
    blocks = re.findall(r"(<!-- not run -->\n)?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (code,) = [code for skipped, code in blocks if not skipped]
    broker.create_topic("numbers", 2, None)
    script = tmp_path / "example.py"
    script.write_text(code.replace("localhost:9092", broker.bootstrap))
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"\|\s*1000\|\s*499500\|", result.stdout), result.stdout
