"""The checksum of record batches."""

import subprocess
import sys

import crc32c as package

from ottla.wire import checksum


def test_it_is_castagnoli_s():
    assert checksum.crc32c(b"123456789") == 0xE3069283
    assert checksum.crc32c(memoryview(b"__123456789")[2:]) == 0xE3069283


def test_it_is_found_in_the_package_when_the_extension_does_not_load_alone(monkeypatch):
    monkeypatch.setattr(checksum.PathFinder, "find_spec", lambda *_: None)
    assert checksum._load() is package.crc32c


def test_a_start_does_not_pay_for_the_package():
    look = "import sys, ottla.wire.records; print('importlib.metadata' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
