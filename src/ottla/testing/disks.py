"""The disks of tests: one in memory that can lose power, and one that adds trouble to another."""

from ottla.testing.faulty_disk import FaultyDisk, FaultyFile
from ottla.testing.memory_disk import SECTOR_BYTES, MemoryDisk, MemoryFile, PowerLoss

__all__ = ["SECTOR_BYTES", "FaultyDisk", "FaultyFile", "MemoryDisk", "MemoryFile", "PowerLoss"]
