"""Installs what `make dist` built into clean environments outside the repository and tries it out.

The wheel must start, take messages and give them back; the sdist must build and say its version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

TIMEOUT_S = 600
MESSAGES = "one\ntwo\nthree\n"

# Runs inside the clean environment, so it may use only what the package brings along.
SMOKE = """
import subprocess, sys
from ottla.testing import Broker

with Broker() as broker:
    def ottla(*arguments, text=""):
        command = [sys.executable, "-m", "ottla", *arguments, "--bootstrap", broker.bootstrap]
        result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        return result.stdout

    ottla("topics", "create", "greetings", "--partitions", "1")
    ottla("produce", "greetings", text=sys.argv[1])
    read = ottla("consume", "greetings", "--from-beginning", "--max", "3")
    assert read == sys.argv[1], read
    exit_code = broker.stop()
    assert exit_code == 0, exit_code
print("started, produced, consumed, stopped")
"""


def main() -> None:
    dist = Path(sys.argv[1]).resolve()
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="ottla-dist-") as home:
        python = clean_environment(Path(home, "wheel"), wheel)
        print(wheel.name, run(home, python, "-c", SMOKE, MESSAGES), version(home, python))
        python = clean_environment(Path(home, "sdist"), sdist)
        print(sdist.name, version(home, python))


def clean_environment(directory: Path, package: Path) -> Path:
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    run(directory, python, "-m", "pip", "install", "-q", "--disable-pip-version-check", package)
    return python


def version(home: str | Path, python: Path) -> str:
    text = run(home, python.parent / "ottla", "version", "--json")
    return str(json.loads(text)["ottla"])


def run(home: str | Path, *command: str | Path) -> str:
    """Far from the repository and without its environment, so that nothing of it can leak in."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "SSL_CERT_FILE")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    if result.returncode:
        sys.exit(f"{command[0]} failed:\n{result.stdout}{result.stderr}")
    return result.stdout.strip()


if __name__ == "__main__":
    main()
