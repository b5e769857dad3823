"""The packed virtual environment of docs/spark.md, made without a network.

A person runs `pip install "ottla[spark]"` and `venv-pack`. Here the wheel is built from the tree,
what it asks for is linked from the environment of the tests, and the same `venv-pack` packs it.
Made once per content of the sources, under .cache.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import venv_pack
from packaging.requirements import Requirement

from spark.kit.toolchain import CACHE, ROOT, locked

TIMEOUT_S = 240
# For commands and brokers: an executor only speaks the protocol.
NEEDLESS = {"uvloop", "typer", "rich", "confluent-kafka"}
LEFT_OUT = ["*/include/*", "*/tests/*", "*libarrow_flight*", "*/numpy/f2py/*"]


def environment() -> tuple[Path, Path]:
    """The environment as a directory, and packed."""
    directory = CACHE / f"environment-{_key()}"
    packed = directory / "environment.tar.gz"
    with locked(CACHE / "environment.lock"):
        if not packed.exists():
            for old in CACHE.glob("environment-*"):
                shutil.rmtree(old)
            directory.mkdir(parents=True)
            _make(directory / "environment")
            pack = venv_pack.Env(str(directory / "environment"))
            for pattern in LEFT_OUT:
                pack = pack.exclude(pattern)
            half = directory / "half.tar.gz"
            # Spark unpacks a plain .tar with code of its own that trips over links. Not squeezed:
            # that takes longer than sending it within a machine.
            pack.pack(output=str(half), compress_level=0)
            half.rename(packed)
    return directory / "environment", packed


def site_packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def linked(target: Path, original: Path) -> Path:
    """An environment with the packages of another one, by their path."""
    _run(sys.executable, "-m", "venv", "--without-pip", str(target))
    (site_packages(target) / "original.pth").write_text(f"{site_packages(original)}\n")
    return target


def as_archive(directory: Path) -> Path:
    """A small environment, packed as it is."""
    target = directory.with_suffix(".tar.gz")
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        archive.add(directory, ".")
    return target


def zipped(target: Path) -> Path:
    """Ottla as one file for `--py-files`."""
    with zipfile.ZipFile(target, "w") as archive:
        for package in ("ottla", "pyspark_ottla"):
            for path in sorted((ROOT / "src" / package).rglob("*.py")):
                archive.write(path, path.relative_to(ROOT / "src"))
    return target


def _key() -> str:
    digest = hashlib.sha256(sys.version.encode() + Path(__file__).read_bytes())
    sources = sorted((ROOT / "src").rglob("*.py"))
    for path in [ROOT / "pyproject.toml", *sources]:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _make(target: Path) -> None:
    _run(sys.executable, "-m", "venv", "--without-pip", str(target))
    wheels = target.parent / "wheel"
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels))
    (wheel,) = wheels.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site_packages(target))
    compileall.compile_dir(site_packages(target), quiet=1)
    (ottla,) = distributions(name="ottla", path=[str(site_packages(target))])
    for name in _needed(ottla, {"spark"}):
        _link(name, site_packages(target))


def _needed(asking: Distribution, extras: set[str]) -> set[str]:
    """The distributions that one asks for, and those that they ask for."""
    found: set[str] = set()
    for text in asking.requires or []:
        wanted = Requirement(text)
        chosen = any(
            wanted.marker is None or wanted.marker.evaluate({"extra": extra})
            for extra in extras or {""}
        )
        if chosen and wanted.name not in NEEDLESS:
            found |= {wanted.name} | _needed(distribution(wanted.name), wanted.extras)
    return found


def _link(name: str, target: Path) -> None:
    """Links the files of an installed distribution, as far as they are packages and metadata."""
    for file in distribution(name).files or []:
        # Compiled modules too, as pip leaves them: else every process compiles what it imports.
        placed, found = target / file, Path(str(file.locate()))
        if file.parts[0] == ".." or not found.exists():
            continue
        placed.parent.mkdir(parents=True, exist_ok=True)
        if not placed.exists():
            os.link(found, placed)


def _run(*command: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{(done.stdout + done.stderr)[-3000:]}")
