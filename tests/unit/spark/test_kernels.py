"""Where machine code is kept, and what happens without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from zipfile import ZipFile

import pytest

import ottla
from ottla.spark import kernels

# A module with a kernel: it has to be a file for numba to keep its code.
KERNEL = """
from ottla.spark.kernels import READ_INT64S, kernel

@kernel(f"int64({READ_INT64S})")
def last(numbers):
    return numbers[-1] if len(numbers) else -1
"""
PROGRAM = """
import numpy as np
from last_numba import last
numbers = np.arange(5)
numbers.flags.writeable = False
print(last(numbers), len(last.signatures))
"""
RIGHT = "4 1"
CHOICE = """
import pyarrow as pa
from ottla.spark.encoding.encoder import ArrowEncoder
from ottla.wire.compression import Compression
rows = pa.record_batch({"value": ["a"]})
encoder = ArrowEncoder(
    rows.schema, topic="t", compression=Compression.NONE, partitions_of=lambda _: 1,
    now_ms=lambda: 0,
)
for one in encoder.encode(rows):
    print(one.count, encoder._kernels.__name__)
"""
PACKAGE = Path(ottla.__file__).parent
PLAIN = "1 ottla.spark.encoding.rows_numpy"


@pytest.fixture
def house(tmp_path: Path) -> Path:
    (tmp_path / "last_numba.py").write_text(KERNEL)
    return tmp_path


@pytest.fixture(autouse=True)
def forgetful():
    yield
    kernels.cache_directory.cache_clear()
    kernels.is_available.cache_clear()


def start(program: str, house: Path, **environment: str) -> subprocess.Popen[str]:
    places = os.pathsep.join(filter(None, [str(house), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", program],
        env={**os.environ, "NUMBA_CACHE_DIR": "", "PYTHONPATH": places, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(program: str, house: Path, **environment: str) -> str:
    return start(program, house, **environment).communicate(timeout=120)[0].strip()


def kept_in(place: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in place.glob("ottla/kernels-*/*/last*.nb?")}


def test_code_is_kept_in_the_users_cache(house: Path) -> None:
    cache = house / "cache"
    assert run(PROGRAM, house, XDG_CACHE_HOME=str(cache)) == RIGHT
    kept = kept_in(cache)
    assert sorted(path.suffix for path in kept) == [".nbc", ".nbi"]
    assert run(PROGRAM, house, XDG_CACHE_HOME=str(cache)) == RIGHT
    assert kept_in(cache) == kept


def test_numbas_own_setting_comes_first(house: Path) -> None:
    other, chosen = house / "other", house / "chosen"
    assert run(PROGRAM, house, XDG_CACHE_HOME=str(other), NUMBA_CACHE_DIR=str(chosen)) == RIGHT
    assert kept_in(chosen)
    assert not other.exists()


def test_numba_keeps_the_users_own_code_where_it_did(house: Path) -> None:
    program = PROGRAM + "import numba; print(repr(numba.config.CACHE_DIR))"
    assert run(program, house, XDG_CACHE_HOME=str(house / "cache")) == RIGHT + "\n''"


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_files_that_a_crash_left_empty_are_made_anew(house: Path, suffix: str) -> None:
    cache = house / "cache"
    assert run(PROGRAM, house, XDG_CACHE_HOME=str(cache)) == RIGHT
    for path in kept_in(cache):
        if path.suffix == suffix:
            path.write_bytes(b"")
    for _ in range(2):
        assert run(PROGRAM, house, XDG_CACHE_HOME=str(cache)) == RIGHT
    kept = kept_in(cache)
    assert len(kept) == 2
    assert all(path.stat().st_size for path in kept)


def test_processes_may_start_together(house: Path) -> None:
    started = [start(PROGRAM, house, XDG_CACHE_HOME=str(house / "cache")) for _ in range(4)]
    assert [one.communicate(timeout=120)[0].strip() for one in started] == [RIGHT] * 4


def archive(path: Path, changed: str | None = None) -> Path:
    """The package as `--py-files` sends it, perhaps with a line more in one of its files."""
    with ZipFile(path, "w") as file:
        for source in PACKAGE.rglob("*.py"):
            name = source.relative_to(PACKAGE.parent).as_posix()
            file.writestr(name, source.read_text() + ("# new\n" if name == changed else ""))
    return path


@pytest.mark.parametrize(
    "changed", ["decoding/contract", "encoding/partitioner", "formats/json_screen_numba"]
)
def test_code_is_kept_apart_when_what_it_was_made_of_has_changed(
    tmp_path: Path, changed: str
) -> None:
    """Constants of the files beside a kernel are in its machine code."""
    program = "from ottla.spark import kernels; print(kernels.kept_directory().name)"
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    installed = run(program, tmp_path, **cache)
    assert run(program, archive(tmp_path / "same.zip"), **cache) == installed
    other = archive(tmp_path / "other.zip", f"ottla/spark/{changed}.py")
    assert run(program, other, **cache) not in ("", installed)


def test_a_directory_that_others_can_write_is_not_used(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ottla").mkdir()
    (tmp_path / "ottla").chmod(0o777)
    kernels.cache_directory.cache_clear()
    found = kernels.cache_directory()
    assert found is not None
    assert tmp_path not in found.parents


def test_a_link_to_elsewhere_is_not_used(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "ottla").symlink_to(tmp_path / "elsewhere")
    kernels.cache_directory.cache_clear()
    found = kernels.cache_directory()
    assert found is not None
    assert tmp_path not in found.parents


def test_a_home_that_cannot_be_written_is_no_trouble(house: Path) -> None:
    """A file where the directory should be: root may write everything else."""
    blocked = house / "file"
    blocked.write_text("")
    assert run(PROGRAM, house, XDG_CACHE_HOME=str(blocked), TMPDIR=str(house)) == RIGHT
    assert list(house.glob(f"ottla-{os.getuid()}/kernels-*/*/last*.nbc"))


def test_a_package_that_lies_elsewhere_finds_its_code(house: Path) -> None:
    """As after Spark has unpacked an environment, or an archive, for another application."""
    cache, other, archive = house / "cache", house / "other", house / "archive.whl"
    other.mkdir()
    (other / "last_numba.py").write_text(KERNEL)
    with ZipFile(archive, "w") as file:
        file.writestr("last_numba.py", KERNEL)
    assert run(PROGRAM, archive, XDG_CACHE_HOME=str(cache)) == RIGHT
    kept = kept_in(cache)
    assert len(kept) == 2
    for place in (house, other, archive):
        assert run(PROGRAM, place, XDG_CACHE_HOME=str(cache)) == RIGHT
        assert kept_in(cache) == kept


def test_changed_kernels_are_compiled_anew_also_where_their_file_keeps_its_time(
    house: Path,
) -> None:
    kernel, cache = house / "last_numba.py", house / "cache"
    times = kernel.stat().st_atime_ns, kernel.stat().st_mtime_ns
    # Python's own cache would believe the time.
    settings = {"XDG_CACHE_HOME": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    assert run(PROGRAM, house, **settings) == RIGHT
    kernel.write_text(KERNEL.replace("numbers[-1]", "numbers[-2]"))
    os.utime(kernel, ns=times)
    assert run(PROGRAM, house, **settings) == "3 1"


def test_without_numba_one_warning_and_numpy(house: Path) -> None:
    hide = "import sys; sys.modules['numba'] = None\n"
    assert "NumbaMissing: numba cannot be used" in run(hide + CHOICE, house)
    tolerant = "import warnings; warnings.simplefilter('always')\n"
    said = run(hide + tolerant + CHOICE + CHOICE, house)
    assert said.count(PLAIN) == 2
    assert said.count("NumbaMissing: numba cannot be used") == 1
    assert "install ottla[spark]" in said


def test_a_compiler_that_is_switched_off_means_numpy(house: Path) -> None:
    assert run(CHOICE, house, NUMBA_DISABLE_JIT="1") == PLAIN


def test_with_numba_nothing_is_said() -> None:
    kernels.is_available.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.is_available()
