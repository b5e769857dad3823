"""Jars from Maven, fetched once for each POM."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from bench.librdkafka import LoadFailed

RESOLVE_TIMEOUT_S: Final = 600.0


def resolve(home: Path, text: str, whose: str) -> Path:
    """The directory with the jars of a POM; `whose` they are is told when Maven fails."""
    jars, pom, complete = home / "lib", home / "pom.xml", home / "complete"
    if complete.exists() and complete.read_text() == text:
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise LoadFailed(f"{whose} jars come from Maven: install mvn")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    pom.write_text(text)
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
    done = subprocess.run(command, capture_output=True, timeout=RESOLVE_TIMEOUT_S, check=False)
    if done.returncode:
        raise LoadFailed(f"Maven did not resolve {whose} jars:\n{done.stdout.decode()[-2000:]}")
    complete.write_text(text)
    return jars
