"""Read the files of the project, for tests that check all of them."""

import ast
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
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
    """Yield every file in these folders (or with this path), relative to the root.

    Files that .gitignore lists are left out. Git itself is not used, because an unpacked archive
    has no repository.
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
    """Yield every Python module in the folders, with its syntax tree."""
    for path in files(*folders):
        if path.suffix == ".py":
            yield path, _parse(path)


@cache
def _parse(path: Path) -> ast.Module:
    """Parse a module once for all rules."""
    return ast.parse(read(path), filename=str(path))


def read(path: Path) -> str:
    """Return the text of a file, whose path is relative to the root."""
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def as_lines(faults: Iterable[str]) -> str:
    """Return the faults one per line, as the message of an assertion."""
    return "\n" + "\n".join(faults)
