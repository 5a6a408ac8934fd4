"""Write what a release is made of, as a CycloneDX document, from the pinned requirements alone.

Reads nothing but the pins, so it gives the same document on every machine: `make sbom`.
"""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).parents[1]
PINNED = ROOT / "requirements" / "runtime.txt"
PIN = re.compile(r"^([a-z0-9-]+)(?:\[[^]]*\])?==([^ ;\\]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
VIA = re.compile(r"#\s+(?:via\s+)?([A-Za-z0-9._-]+)")


def document(pinned: str, project: dict[str, Any]) -> dict[str, Any]:
    """Return the bill of materials of a project with these pins."""
    name, version = project["name"], project["version"]
    root = f"pkg:pypi/{name}@{version}"
    entries = [_entry(text) for text in re.split(r"\n(?=[a-z0-9])", pinned) if PIN.match(text)]
    refs = {entry["name"]: entry["purl"] for entry in entries} | {name: root}
    needs: dict[str, set[str]] = {ref: set() for ref in refs.values()}
    for entry in entries:
        for parent in entry.pop("via"):
            if parent in refs:
                needs[refs[parent]].add(entry["purl"])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, pinned)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": name,
                "version": version,
                "purl": root,
            }
        },
        "components": [{"type": "library", "bom-ref": one["purl"], **one} for one in entries],
        "dependencies": [{"ref": ref, "dependsOn": sorted(needs[ref])} for ref in sorted(needs)],
    }


def _entry(text: str) -> dict[str, Any]:
    found = PIN.match(text)
    if found is None:
        raise ValueError(f"no pin: {text[:60]}")
    name, version = found.groups()
    return {
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "hashes": [{"alg": "SHA-256", "content": one} for one in HASH.findall(text)],
        "via": [word for word in VIA.findall(text) if word != "via"],
    }


def main() -> None:
    """Write the document to the file that is named, or to dist/sbom.cdx.json."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "sbom.cdx.json"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    made = document(PINNED.read_text(), project)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(made, indent=2) + "\n")
    sys.stdout.write(f"{target}: {len(made['components'])} components\n")


if __name__ == "__main__":
    main()
