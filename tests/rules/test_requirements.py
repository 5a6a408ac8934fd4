"""The pinned requirements: complete, hashed, in step with each other, and without an address."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.rules.sources import ROOT, as_lines, read

DEV, RUNTIME = Path("requirements/dev.txt"), Path("requirements/runtime.txt")
MCP = Path("requirements/mcp.txt")
PROJECT = tomllib.loads(read(Path("pyproject.toml")))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]


class Pin(NamedTuple):
    """One requirement, its exact version and the hashes of the files it may be."""

    name: str
    version: str
    hashes: list[str]


def pins(path: Path) -> dict[str, Pin]:
    """Read a requirement file; a line that is neither a pin nor a comment is a fault."""
    by_name = {}
    for entry in re.split(r"\n(?=\S)", read(path)):
        rows = [row.strip() for row in entry.splitlines() if not row.lstrip().startswith("#")]
        if not rows:
            continue
        stated = " ".join(row.removesuffix("\\").strip() for row in rows)
        pin = re.fullmatch(
            r"([a-z0-9-]+)(?:\[.+?\])?==(\S+)(?: ; .+?)?((?: --hash=sha256:[0-9a-f]{64})*)", stated
        )
        assert pin, f"{path}: {stated[:80]}"
        by_name[pin[1]] = Pin(pin[1], pin[2], pin[3].split())
    return by_name


@pytest.mark.parametrize("path", [DEV, RUNTIME, MCP], ids=str)
def test_every_pin_carries_hashes(path: Path) -> None:
    bare = [pin.name for pin in pins(path).values() if not pin.hashes]

    assert pins(path)
    assert not bare, as_lines(bare)


@pytest.mark.parametrize("path", [DEV, RUNTIME, MCP], ids=str)
def test_no_requirement_file_names_an_address_or_an_option(path: Path) -> None:
    lines = [
        row
        for row in read(path).splitlines()
        if "://" in row or re.match(r"\s*-(?!-hash=)", row) or "/" in row.partition("#")[0]
    ]

    assert not lines, as_lines(lines)


def test_development_runs_on_the_versions_that_are_shipped() -> None:
    dev = pins(DEV)

    for shipped in (pins(RUNTIME), pins(MCP)):
        assert {name: dev.get(name) for name in shipped} == shipped


def test_the_tools_for_agents_need_nothing_of_the_service() -> None:
    service = {_name(line) for line in EXTRAS["server"]} - {"pyjwt", "uvicorn"}  # mcp needs these

    assert "mcp" in pins(MCP)
    assert not service & pins(MCP).keys()


@pytest.mark.parametrize("path", [DEV, RUNTIME, MCP], ids=str)
def test_the_build_backend_is_pinned_with_the_rest(path: Path) -> None:
    [backend] = PROJECT["build-system"]["requires"]
    name, _, version = backend.partition("==")

    assert pins(path)[name].version == version


def test_every_dependency_of_the_project_is_pinned() -> None:
    small = {_name(line) for line in PROJECT["project"]["dependencies"]}
    service = {_name(line) for line in EXTRAS["server"]}
    optional = {_name(line) for lines in EXTRAS.values() for line in lines} - {"overnight"}

    assert small | service <= pins(RUNTIME).keys()
    assert small | optional <= pins(DEV).keys()
    assert small <= pins(MCP).keys()


def test_the_small_install_is_what_producers_and_users_commands_import() -> None:
    dependencies = {_name(line) for line in PROJECT["project"]["dependencies"]}

    assert dependencies == {"httpx2", "pydantic", "python-dotenv", "pyyaml", "rich", "typer"}


def test_all_is_the_sum_of_the_other_extras() -> None:
    [everything] = EXTRAS["all"]

    assert everything == "overnight[server,embedded,celery,mcp,notify,otel,s3]"
    assert "overnight[server]" in EXTRAS["embedded"], "the embedded servers serve the service"
    assert "overnight[all]" in EXTRAS["dev"]


def _name(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


# The first version without a fault that was worth a name; checked here, where no network is needed.
FIXED_IN = {
    "celery": "5.2.2",  # CVE-2021-23727
    "cryptography": "44.0.1",  # CVE-2024-12797
    "flower": "1.2.0",  # CVE-2022-30034
    "h11": "0.16.0",  # CVE-2025-43859
    "jinja2": "3.1.6",  # CVE-2025-27516
    "pyjwt": "2.4.0",  # CVE-2022-29217
    "redis": "4.5.5",  # CVE-2023-28858, CVE-2023-28859
    "starlette": "0.49.1",  # CVE-2025-54121, CVE-2025-62727
    "tornado": "6.5",  # CVE-2025-47287
}


def known_bad(installed: dict[str, Pin]) -> list[str]:
    """Return the pins that are older than the version in which a known fault was put right."""
    return [
        f"{name}=={installed[name].version}: use {fixed} or newer"
        for name, fixed in FIXED_IN.items()
        if name in installed and _number(installed[name].version) < _number(fixed)
    ]


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


@pytest.mark.parametrize("path", [DEV, RUNTIME], ids=str)
def test_no_pin_has_a_known_vulnerability(path: Path) -> None:
    assert not known_bad(pins(path)), as_lines(known_bad(pins(path)))


def test_a_pin_with_a_known_vulnerability_is_reported() -> None:
    planted = {**pins(RUNTIME), "celery": Pin("celery", "5.2.1", [])}

    assert known_bad(planted) == ["celery==5.2.1: use 5.2.2 or newer"]


def test_the_bill_of_materials_names_every_pin(tmp_path: Path) -> None:
    written = tmp_path / "sbom.json"
    for _ in range(2):
        before = written.read_text() if written.exists() else None
        subprocess.run(
            [sys.executable, ROOT / "scripts/sbom.py", written], check=True, capture_output=True
        )
    made = json.loads(written.read_text())

    assert written.read_text() == before, "the same pins make the same document"
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    components = {part["name"]: part for part in made["components"]}
    assert {name: part["version"] for name, part in components.items()} == {
        name: pin.version for name, pin in pins(RUNTIME).items()
    }
    assert all(part["hashes"] for part in components.values())
    refs = {one["bom-ref"] for one in made["components"]} | {made["metadata"]["component"]["purl"]}
    links = {one["ref"]: one["dependsOn"] for one in made["dependencies"]}
    assert links.keys() == refs
    assert all(target in refs for targets in links.values() for target in targets)
    assert components["celery"]["purl"] in links[made["metadata"]["component"]["purl"]]
