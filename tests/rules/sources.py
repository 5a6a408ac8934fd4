"""The project's own files, for tests that hold all of them to one rule."""

import ast
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
IGNORED = [
    ".git",
    *(
        line.rstrip("/")
        for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ),
]


def files(*tops: str) -> Iterator[Path]:
    """Every file of ours below these folders (or of this name), as a path below the root.

    What .gitignore names is left out; git is not asked, because an unpacked archive has none.
    """
    for top in tops or (".",):
        yield from _below(ROOT / top)


def _below(path: Path) -> Iterator[Path]:
    if any(fnmatch(path.name, pattern) for pattern in IGNORED):
        return
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            yield from _below(entry)
    elif path.is_file():
        yield path.relative_to(ROOT)


def modules(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    """Every Python module below the folders, read and parsed."""
    for path in files(*folders):
        if path.suffix == ".py":
            yield path, ast.parse(read(path), filename=str(path))


def read(path: Path) -> str:
    """The text of one file below the root."""
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def told(faults: Iterable[str]) -> str:
    """The faults one below the other, as an assertion's message."""
    return "\n" + "\n".join(faults)
