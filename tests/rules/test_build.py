"""The build: what it runs, what it packs, and what it says when Python is too old."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.rules.sources import ROOT, as_lines, files, read

# The tests themselves run under make, which would let an inner make speak of its directories.
OUTSIDE_MAKE = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}


def test_the_build_runs_exactly_the_command_of_the_readme() -> None:
    script = Path(".ci/run")
    steps = [line for line in read(script).splitlines() if line and not line.startswith("#")]

    assert os.access(ROOT / script, os.X_OK)
    assert steps[0] == "set -euo pipefail"
    assert steps[-1].endswith("make test")
    assert len(steps) == 3
    assert "make test" in read(Path("README.md"))


def test_make_test_ends_with_pytest_over_everything() -> None:
    planned = subprocess.run(
        ["make", "--dry-run", "test"],
        cwd=ROOT,
        env=OUTSIDE_MAKE,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    programs = [re.sub(r"^\S*\.venv/bin/", "", line) for line in planned]

    assert programs[-5:] == [
        "ruff check .",
        "ruff format --check .",
        "mypy",
        "lint-imports",
        "pytest -n 2",
    ]


@pytest.mark.parametrize("target", ["up", "test", "lint", "bench", "proof"])
def test_every_target_first_sets_up_what_it_needs(target: str) -> None:
    first, *_ = subprocess.run(
        ["make", "--dry-run", target],
        cwd=ROOT,
        env=OUTSIDE_MAKE,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()

    assert first.endswith("scripts/venv")


def test_a_benchmark_runs_without_peers_that_cannot_be_installed(tmp_path: Path) -> None:
    for place in ("Makefile", "benchmarks/peers/install"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place, tmp_path / place)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/peers.txt").write_text("nowhere==1 --hash=sha256:" + "0" * 64)
    (tmp_path / "benchmarks/__init__.py").touch()
    (tmp_path / "benchmarks/__main__.py").write_text("print('measured')")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)

    done = subprocess.run(
        ["make", "bench", "--assume-old=venv"],
        cwd=tmp_path,
        env=OUTSIDE_MAKE | {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("measured\n")
    assert "measuring this one and Celery alone" in done.stderr
    # What was half installed would be taken for installed.
    assert not (tmp_path / ".venv-peers").exists()


def test_make_alone_lists_every_target() -> None:
    listed = subprocess.run(
        ["make"], cwd=ROOT, env=OUTSIDE_MAKE, check=True, capture_output=True, text=True
    ).stdout.split()
    [declared] = re.findall(r"^\.PHONY: (.+)$", read(Path("Makefile")), flags=re.MULTILINE)

    assert set(declared.split()) <= set(listed)


def test_an_unsupported_python_is_refused_with_advice(tmp_path: Path) -> None:
    for part in ("scripts", "requirements"):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    refused = subprocess.run(
        [tmp_path / "scripts/venv"],
        env={**os.environ, "PYTHON": "no-such-python"},
        check=False,
        capture_output=True,
        text=True,
    )

    assert refused.returncode == 1
    assert "needs Python 3.11" in refused.stderr
    assert "make PYTHON=" in refused.stderr
    assert not (tmp_path / ".venv").exists()


def test_the_wheel_carries_everything_the_service_needs(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel] = tmp_path.glob("overnight-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())

    ours = {path.as_posix() for path in files("overnight")}
    for root in ("app", "workers"):
        ours |= {path.relative_to(root).as_posix() for path in files(root)}
    left_out, added = ours - packed, {name for name in packed - ours if ".dist-info/" not in name}

    assert not left_out, as_lines(left_out)
    assert not added, as_lines(added)
    assert {name.partition("/")[0] for name in ours} == {
        "overnight",
        "overnight_server",
        "overnight_worker",
    }
