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
from tests.support.installation import build_source_archive, build_wheel, unpack

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


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_source_archive(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(archive, tmp_path_factory.mktemp("unpacked"))


def in_wheel(wheel: Path) -> set[str]:
    """Return the names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def test_the_wheel_carries_everything_the_service_needs(tmp_path: Path) -> None:
    packed = in_wheel(build_wheel(tmp_path))

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
    kinds = {Path(name).suffix for name in ours}
    assert {".py", ".sql", ".html", ".css", ".js", ".svg", ".lua", ".mako", ".typed"} <= kinds
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in packed)


def test_the_source_archive_has_the_sources_and_pages_and_no_tests(unpacked: Path) -> None:
    packed = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*")}
    packed = {name for name in packed if (unpacked / name).is_file()}

    folders = ("overnight", "app", "workers", "docs", "examples")
    ours = {path.as_posix() for path in files(*folders)}
    # What every source archive has, and which files the build left out.
    ours |= {"README.md", "SECURITY.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    left_out, added = ours - packed, packed - ours

    assert not left_out, as_lines(left_out)
    assert not added, as_lines(added)


def test_the_source_archive_makes_the_same_wheel(unpacked: Path, tmp_path: Path) -> None:
    from_archive = build_wheel(tmp_path / "archive", source=unpacked)
    from_repository = build_wheel(tmp_path / "repository")

    assert from_archive.name == from_repository.name
    assert in_wheel(from_archive) == in_wheel(from_repository)


def test_nothing_that_is_packed_looks_like_a_secret(unpacked: Path) -> None:
    private = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\n\w|\b(sk-ant-|ghp_|AKIA)\w{12}")
    found = [
        str(path.relative_to(unpacked))
        for path in unpacked.rglob("*")
        if path.is_file() and private.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    named = [str(path) for path in unpacked.rglob("*") if path.name in (".env", "credentials.json")]

    assert not found + named, as_lines(found + named)
