"""What is shipped: the wheel's contents, the container, the service, the errands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Mapping
from email import message_from_string
from importlib.util import find_spec
from pathlib import Path

import pytest

from ottla.testing.ports import free_port_of_workers, free_ports_in_a_row
from ottla.testing.topics import create_topic
from scenarios.polling import until

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 240
ERRANDS = (
    *("install", "run", "test", "lint", "unit", "scenarios", "clients"),
    *("bench", "compat", "docs", "dist", "tour", "demo", "clean"),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, so that parallel tests do not see half-built files."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", "dist"]
    if find_spec("hatchling"):
        command.append("--no-isolation")
    result = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = (source / "dist").glob("*.whl")
    return zipfile.ZipFile(built)


def read_member(wheel: zipfile.ZipFile, ending: str) -> str:
    (name,) = (name for name in wheel.namelist() if name.endswith(ending))
    return wheel.read(name).decode()


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "ottla/py.typed" in names
    assert "ottla/testing/plugin.py" in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} <= {"ottla", "pyspark_ottla"}
    assert not [name for name in names if name.endswith((".pyc", ".md"))]


def test_the_wheel_brings_the_command_and_the_pytest_plugin(wheel: zipfile.ZipFile) -> None:
    entry_points = read_member(wheel, "entry_points.txt")
    assert "ottla = ottla.cli.main:run" in entry_points
    assert "ottla = ottla.testing.plugin" in entry_points


def test_the_wheel_says_its_licence_and_its_python(wheel: zipfile.ZipFile) -> None:
    metadata = message_from_string(read_member(wheel, "METADATA"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Apache License" in read_member(wheel, "licenses/LICENSE")


def test_make_knows_its_errands() -> None:
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets.issuperset(ERRANDS)


def test_the_container_runs_as_nobody_special_and_is_probed() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    last_stage = lines[max(n for n, line in enumerate(lines) if line.startswith("FROM")) :]
    assert "USER ottla" in last_stage
    assert any(line.startswith("HEALTHCHECK") for line in last_stage)
    assert "/readyz" in "\n".join(last_stage)


@pytest.mark.parametrize("has_workers", [False, True], ids=["one", "workers"])
def test_the_service_file_is_one_that_systemd_reads(tmp_path: Path, has_workers: bool) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (package systemd)")
    service = tmp_path / "ottla.service"
    text = (ROOT / "packaging" / "ottla.service").read_text()
    service.write_text(text.replace("/opt/ottla/bin/ottla", "/bin/true"))
    if has_workers:
        addition = (ROOT / "packaging" / "ottla-workers.conf").read_text()
        (command,) = re.findall(r"^ExecStart=(.+)", addition, re.MULTILINE)
        assert command.endswith("/etc/ottla/ottla.properties --workers auto")
        (tmp_path / "ottla.service.d").mkdir()
        workers = tmp_path / "ottla.service.d" / "workers.conf"
        workers.write_text(addition.replace("/opt/ottla/bin/ottla", "/bin/true"))
    result = subprocess.run(
        ["systemd-analyze", "verify", service],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    complaints = [line for line in result.stderr.splitlines() if "ottla.service" in line]
    assert not complaints


@pytest.mark.parametrize("name", ["ottla.service", "ottla-workers.conf"])
def test_the_service_starts_as_its_file_says(tmp_path: Path, name: str) -> None:
    """Its own steps and its own command, with directories and ports of the test's."""
    kafka, http = free_port_of_workers(2), free_ports_in_a_row(2)
    here = {
        "/opt/ottla/bin/": f"{Path(sys.executable).parent}/",
        "/etc/": f"{tmp_path}/etc/",
        "/var/lib/": f"{tmp_path}/var/lib/",
        ":9092": f":{kafka}",
        ":9644": f":{http}",
    }
    unit = (ROOT / "packaging" / "ottla.service").read_text()
    steps = re.findall(r"^#   (install .*)", unit, re.MULTILINE)
    assert len(steps) == 2
    for step in steps:
        subprocess.run(shlex.split(moved(step, here)), cwd=ROOT, check=True, timeout=TIMEOUT_S)
    settings = tmp_path / "etc" / "ottla" / "ottla.properties"
    settings.write_text(moved(settings.read_text(), here))
    installed = (tmp_path / "etc" / "systemd" / "system" / "ottla.service").read_text()
    if name != "ottla.service":
        addition = (ROOT / "packaging" / name).read_text()
        (step,) = re.findall(r"^#   (install .*)", addition, re.MULTILINE)
        subprocess.run(shlex.split(moved(step, here)), cwd=ROOT, check=True, timeout=TIMEOUT_S)
        installed = (tmp_path / "etc/systemd/system/ottla.service.d/workers.conf").read_text()
        # As many as this machine has cores may be more than there are ports free.
        installed = installed.replace("--workers auto", "--workers 2")
    (command,) = re.findall(r"^ExecStart=(.+)", installed, re.MULTILINE)
    with subprocess.Popen(shlex.split(moved(command, here)), cwd=tmp_path) as service:
        try:
            until(lambda: is_ready(http), "it does not become ready")
            create_topic(f"127.0.0.1:{kafka}", "t", 1, {})
        finally:
            service.terminate()
    assert service.returncode == 0
    assert (tmp_path / "var" / "lib" / "ottla" / "data" / "meta.properties").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"etc", "var"}


def moved(text: str, places: Mapping[str, str]) -> str:
    for theirs, ours in places.items():
        text = text.replace(theirs, ours)
    return text


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_no_committed_file_names_a_package_registry() -> None:
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    ).stdout.splitlines()
    hosts = re.compile(rb"(pypi|files\.pythonhosted|repo1?\.maven|registry\.npmjs|proxy\.golang)\.")
    offenders = [
        name
        for name in files
        if (ROOT / name).is_file()
        and name != Path(__file__).relative_to(ROOT).as_posix()
        and hosts.search((ROOT / name).read_bytes())
    ]
    assert not offenders
