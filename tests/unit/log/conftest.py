"""A disk in memory for every test, and on demand the real one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from ottla.testing.disks import MemoryDisk

settings.register_profile(
    "log",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("log")


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory("/data")
    return disk
