"""Virtual environments with the built wheel in them, made without a package index."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
KEPT = ("HOME", "LANG", "TMPDIR")
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))


def build_wheel(directory: Path, *, source: Path = ROOT) -> Path:
    """Build the wheel of the project in `source` into a directory and return its path."""
    return _build("wheel", directory, source, "overnight-*.whl")


def build_source_archive(directory: Path) -> Path:
    """Build the source archive of this repository into a directory and return its path."""
    return _build("sdist", directory, ROOT, "overnight-*.tar.gz")


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack a source archive into a directory and return the project in it."""
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")
    [project] = directory.iterdir()
    return project


def _build(target: str, directory: Path, source: Path, name: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", directory],
        cwd=source,
        check=True,
        capture_output=True,
    )
    [built] = directory.glob(name)
    return built


class Installation:
    """One virtual environment with the wheel installed and chosen third-party packages visible."""

    def __init__(self, directory: Path, wheel: Path, third_party: Path) -> None:
        self.bin = directory / "bin"
        self.python = self.bin / "python"
        make = [sys.executable, "-m", "venv", "--without-pip", str(directory)]
        subprocess.run(make, check=True, capture_output=True)
        subprocess.run([*_installer(self.python), wheel], check=True, capture_output=True)
        # A line in a .pth file extends the import path. The .pth files in the added directory are
        # not read, so the editable install of the repository stays out.
        (site_packages,) = directory.glob("lib/python*/site-packages")
        (site_packages / "third_party.pth").write_text(f"{third_party}\n")

    def run(
        self, program: str, *arguments: str, cwd: Path, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment as a user would, with no setting of ours."""
        done = subprocess.run(
            [self.bin / program, *arguments],
            cwd=cwd,
            env={
                name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ
            }
            | {"PATH": f"{self.bin}:{os.environ['PATH']}"},
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert not check or done.returncode == 0, (
            f"{program} {arguments}\n{done.stdout}{done.stderr}"
        )
        return done


def _installer(python: Path) -> list[str | Path]:
    """Return a command that installs a wheel; environments made by uv have no pip of their own."""
    for base in (sys.executable, getattr(sys, "_base_executable", sys.executable)):
        if not subprocess.run(
            [base, "-m", "pip", "--version"], check=False, capture_output=True
        ).returncode:
            return [base, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    uv = shutil.which("uv")
    assert uv, "installing a wheel needs pip or uv"
    return [uv, "pip", "install", "--python", python, "--no-deps", "--no-index"]


def expose(directory: Path, requirements: Iterable[str]) -> Path:
    """Fill a directory with links to the distributions that these requirements lead to."""
    directory.mkdir()
    for name in _closure(requirements):
        for file in distribution(name).files or ():
            top = file.parts[0]
            link = directory / top
            if top not in {"..", "__pycache__"} and not link.exists():
                link.symlink_to(SITE_PACKAGES / top)
    return directory


def _closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of all distributions that these requirements lead to on this machine."""
    names: set[str] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in names:
            continue
        names.add(name)
        for line in distribution(name).requires or ():
            needed = Requirement(line)
            contexts = [{"extra": extra} for extra in ("", *requirement.extras)]
            if needed.marker is None or any(map(needed.marker.evaluate, contexts)):
                waiting.append(needed)
    return names
