"""A standalone master and worker with a packed environment: the recipe of docs/spark.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ottla.testing import Broker
from ottla.testing.plugin import BrokerFactory
from spark.kit import packed
from spark.kit.children import Child
from spark.kit.filling import put_numbers, values_of
from spark.kit.results import results
from spark.kit.standalone import standalone
from spark.kit.toolchain import require

OTHER_VERSION = "99.0.0"
JOB_TIMEOUT_S = 400


def other_environment(target: Path, original: Path) -> Path:
    """The same packages under another version of Ottla."""
    site = packed.site_packages(packed.linked(target, original))
    metadata = site / f"ottla-{OTHER_VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.4\nName: ottla\nVersion: {OTHER_VERSION}\n")
    return target


def bare_environment(target: Path, original: Path) -> Path:
    """What Ottla needs, without Ottla."""
    site = bare(target)
    for path in packed.site_packages(original).iterdir():
        if not path.name.startswith(("ottla", "pyspark_ottla")):
            (site / path.name).symlink_to(path)
    return target


def bare(target: Path) -> Path:
    command = [sys.executable, "-m", "venv", "--without-pip", str(target)]
    subprocess.run(command, check=True, timeout=60)
    return packed.site_packages(target)


@pytest.mark.seconds(1200)
def test_a_packed_environment_on_a_standalone_cluster(
    tmp_path: Path, ottla_broker_factory: BrokerFactory
) -> None:
    require("java")
    broker: Broker = ottla_broker_factory()
    for name in ("source", "written", "streamed"):
        broker.create_topic(name, 2)
    put_numbers(broker.bootstrap, "source", range(100), partitions=2)
    directory, archive = packed.environment()
    (tmp_path / "environment").symlink_to(directory)
    with standalone(tmp_path) as cluster:
        job = {
            "master": cluster.url,
            "bootstrap": broker.bootstrap,
            "directory": str(tmp_path),
            "packed": str(archive),
            "linked": str(packed.as_archive(packed.linked(tmp_path / "linked", directory))),
            "other_environment": str(other_environment(tmp_path / "other", directory)),
            "bare_environment": str(bare_environment(tmp_path / "bare", directory)),
            "zip": str(packed.zipped(tmp_path / "ottla.zip")),
        }
        found = {}
        # Each in a JVM of its own: Spark looks for sources once in the life of one.
        for stage in ("packed", "other version", "sent"):
            with Child("spark.kit.cluster_job", {**job, "stage": stage}, tmp_path) as child:
                found |= results(child.wait(JOB_TIMEOUT_S))
    assert found["read"] == list(range(100))
    assert values_of(broker.bootstrap, "written", 2) == list(range(50))
    assert values_of(broker.bootstrap, "streamed", 2) == list(range(100))
    versions = found["versions"]
    assert f"the driver runs Ottla {OTHER_VERSION}" in versions
    assert "install the same version" in versions
    assert "DATA_SOURCE_NOT_FOUND" in found["unregistered"]
    assert found["registered"] == list(range(100))
