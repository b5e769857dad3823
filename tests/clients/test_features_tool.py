"""Kafka's own kafka-features.sh works on Ottla: it describes, raises and lowers levels."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path

import pytest
from clientkit.toolchains import JAVA, ROOT, require

from ottla.testing import Broker

TIMEOUT_S = 120


@pytest.fixture(scope="module")
def jars() -> Path:
    """Kafka's, brought by Maven as for the benchmarks."""
    require(JAVA)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        patch.chdir(ROOT)
        found: Path = importlib.import_module("bench.peers").resolve_jars()
    return found


def test_the_tool_describes_raises_and_lowers(jars: Path) -> None:
    with Broker() as broker:

        def tool(*arguments: str) -> tuple[int, str]:
            command = ["java", "-cp", f"{jars}/*", "org.apache.kafka.tools.FeatureCommand"]
            command += ["--bootstrap-server", broker.bootstrap, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
            return done.returncode, done.stdout.strip()

        code, described = tool("describe")
        assert code == 0
        of_quorum, of_metadata, of_transactions = described.splitlines()
        assert of_quorum.split("\t")[:4] == [
            "Feature: kraft.version",
            "SupportedMinVersion: 0",
            "SupportedMaxVersion: 1",
            "FinalizedVersionLevel: 1",
        ]
        assert of_metadata.split("\t")[:4] == [
            "Feature: metadata.version",
            "SupportedMinVersion: 3.9-IV0",
            "SupportedMaxVersion: 4.0-IV1",
            "FinalizedVersionLevel: 3.9-IV0",
        ]
        assert of_transactions.split("\t")[:4] == [
            "Feature: transaction.version",
            "SupportedMinVersion: 0",
            "SupportedMaxVersion: 2",
            "FinalizedVersionLevel: 2",
        ]
        for arguments, said in (
            (
                ("upgrade", "--feature", "metadata.version=22", "--dry-run"),
                "can be upgraded to 22.",
            ),
            (("upgrade", "--feature", "metadata.version=22"), "was upgraded to 22."),
            (("downgrade", "--feature", "metadata.version=21"), "was downgraded to 21."),
        ):
            assert tool(*arguments) == (0, f"metadata.version {said}")
        code, said = tool("upgrade", "--feature", "metadata.version=24")
        assert code == 1
        assert "can be raised to 23, not set to 24" in said
