"""The pinned requirements: complete, hashed, in step with each other, and without an address."""

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.rules.sources import read, told

DEV, RUNTIME = Path("requirements/dev.txt"), Path("requirements/runtime.txt")
MCP = Path("requirements/mcp.txt")
PROJECT = tomllib.loads(read(Path("pyproject.toml")))


class Pin(NamedTuple):
    """One requirement, its exact version and the hashes of the files it may be."""

    name: str
    version: str
    hashes: list[str]


def pins(path: Path) -> dict[str, Pin]:
    """Read a requirement file; a line that is neither a pin nor a comment is a fault."""
    found = {}
    for entry in re.split(r"\n(?=\S)", read(path)):
        rows = [row.strip() for row in entry.splitlines() if not row.lstrip().startswith("#")]
        if not rows:
            continue
        stated = " ".join(row.removesuffix("\\").strip() for row in rows)
        pin = re.fullmatch(
            r"([a-z0-9-]+)(?:\[.+?\])?==(\S+)(?: ; .+?)?((?: --hash=sha256:[0-9a-f]{64})*)", stated
        )
        assert pin, f"{path}: {stated[:80]}"
        found[pin[1]] = Pin(pin[1], pin[2], pin[3].split())
    return found


@pytest.mark.parametrize("path", [DEV, RUNTIME, MCP], ids=str)
def test_every_pin_carries_hashes(path: Path) -> None:
    bare = [pin.name for pin in pins(path).values() if not pin.hashes]

    assert pins(path)
    assert not bare, told(bare)


@pytest.mark.parametrize("path", [DEV, RUNTIME, MCP], ids=str)
def test_no_requirement_file_names_an_address_or_an_option(path: Path) -> None:
    named = [
        row
        for row in read(path).splitlines()
        if "://" in row or re.match(r"\s*-(?!-hash=)", row) or "/" in row.partition("#")[0]
    ]

    assert not named, told(named)


def test_development_runs_on_the_versions_that_are_shipped() -> None:
    dev = pins(DEV)

    for shipped in (pins(RUNTIME), pins(MCP)):
        assert {name: dev.get(name) for name in shipped} == shipped
    assert pins(RUNTIME).keys() | {"mcp"} <= pins(MCP).keys()


@pytest.mark.parametrize("path", [DEV, RUNTIME, MCP], ids=str)
def test_the_build_backend_is_pinned_with_the_rest(path: Path) -> None:
    [backend] = PROJECT["build-system"]["requires"]
    name, _, version = backend.partition("==")

    assert pins(path)[name].version == version


def test_every_dependency_of_the_project_is_pinned() -> None:
    runtime, dev = pins(RUNTIME), pins(DEV)
    extras = PROJECT["project"]["optional-dependencies"]
    needed = {_name(line) for line in PROJECT["project"]["dependencies"]}
    optional = {_name(line) for lines in extras.values() for line in lines} - {"overnight"}

    assert needed <= runtime.keys()
    assert needed | optional <= dev.keys()


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()
