"""Every requirement file installs with pip alone, also with the pip that Python 3.11 brings."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.rules.sources import ROOT

FILES = sorted((ROOT / "requirements").glob("*.txt"))
# The other files are pinned from pyproject.toml, and .venv holds all that they name.
OF_THEIR_OWN = [path for path in FILES if path.with_suffix(".in").exists()]
OF_THE_PROJECT = [path for path in FILES if path not in OF_THEIR_OWN]
SMALL = [path for path in OF_THEIR_OWN if path.name != "peers.txt"]
PIN = re.compile(
    r"(?P<name>[a-z0-9-]+(?:\[[a-z0-9-]+\])?)==(?P<version>\S+)(?: ; [^\\]+?)?"
    r"(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})+)"
)


class Pin(NamedTuple):
    """The exact version of a package, and the files it may be."""

    version: str
    hashes: frozenset[str]


def pins(path: Path) -> dict[str, Pin]:
    """Read a requirement file; what is not pinned with hashes is a fault."""
    pinned = {}
    for entry in re.split(r"\n(?=\S)", path.read_text(encoding="utf-8")):
        lines = [line.strip() for line in entry.splitlines() if not line.lstrip().startswith("#")]
        if not lines:
            continue
        stated = " ".join(line.removesuffix("\\").strip() for line in lines)
        pin = PIN.fullmatch(stated)
        assert pin, f"{path.name}: {stated[:80]}"
        pinned[pin["name"]] = Pin(pin["version"], frozenset(pin["hashes"].split()))
    return pinned


def unpinned_extras(pinned: Mapping[str, Pin], requirements: Iterable[str]) -> list[str]:
    """Return the requirements with extras that pip before 23.3 would refuse as not pinned.

    It takes NAME[EXTRA] for another package than NAME, so that each needs a pin.
    """
    return [
        text
        for text in requirements
        for asked in [Requirement(text)]
        if asked.extras and (asked.marker is None or asked.marker.evaluate({"extra": ""}))
        if f"{canonicalize_name(asked.name)}[{','.join(sorted(asked.extras))}]" not in pinned
    ]


def asked_by(pinned: Mapping[str, Pin]) -> Iterator[str]:
    """Yield what the pinned packages themselves require, as their installed metadata says."""
    for package in distributions():
        pin = pinned.get(canonicalize_name(package.name))
        if pin is not None and pin.version == package.version:
            yield from package.requires or ()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_extra_has_the_pin_of_its_package(path: Path) -> None:
    pinned = pins(path)

    assert pinned
    assert [name for name, pin in pinned.items() if pin != pinned[name.partition("[")[0]]] == []


@pytest.mark.parametrize("path", OF_THE_PROJECT, ids=lambda path: path.name)
def test_every_extra_that_a_package_asks_for_is_pinned(path: Path) -> None:
    pinned = pins(path)

    assert unpinned_extras(pinned, asked_by(pinned)) == []


def test_a_planted_extra_without_a_pin_is_found() -> None:
    pinned = {"psycopg": Pin("3.3.8", frozenset()), "psycopg[pool]": Pin("3.3.8", frozenset())}

    asked = ["psycopg[pool]", "Psycopg[binary]>=3.1", "psycopg>=3", "psycopg[c]; extra == 'c'"]

    assert unpinned_extras(pinned, asked) == ["Psycopg[binary]>=3.1"]


def pip() -> list[str | Path]:
    """Return the pip of this environment, else the one that a new environment would start with.

    uv makes environments without pip; ensurepip then has its wheel, which runs as it is.
    """
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    bundle = find_spec("ensurepip")
    if bundle is None or bundle.origin is None:  # Debian without python3-venv
        return [sys._base_executable, "-m", "pip"]
    [wheel] = Path(bundle.origin).parent.glob("_bundled/pip-*.whl")
    return [sys.executable, wheel / "pip"]


@pytest.mark.parametrize(
    "path",
    [
        # pip resolves and fetches for a minute or more; the small files are enough for a build.
        path if path in SMALL else pytest.param(path, marks=pytest.mark.proof)
        for path in FILES
    ],
    ids=lambda path: path.name,
)
def test_pip_alone_installs_the_file(path: Path) -> None:
    done = subprocess.run(
        [
            *(*pip(), "install", "--quiet", "--disable-pip-version-check", "--retries=1"),
            *("--dry-run", "--ignore-installed", "--report", os.devnull),
            *("--require-hashes", "--requirement", path),
        ],
        check=False,
        capture_output=True,
        text=True,
    )

    # An index that does not answer proves nothing about the file.
    is_offline = "(from versions: none)" in done.stderr
    assert done.returncode == 0 or is_offline, done.stderr
