"""Check the documentation: complete, linked, with the glossary's terms, and true to the code."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight_server.domain.audit_rules import AUDIT_RULES
from overnight_server.domain.retention import RULES
from overnight_server.maintenance.sweeps import SWEEPS
from overnight_server.settings import Settings
from overnight_worker.runners.command import FEEDBACK_VARIABLE
from tests.rules.sources import ROOT, as_lines, files, modules, read

README = Path("README.md")
INDEX = Path("docs/README.md")
DECISIONS = Path("docs/decisions/README.md")
PAGES = sorted(path for path in files("docs") if path.suffix == ".md")
ALL = [README, *PAGES]
# The changelog is read from the top by people who upgrade, so it has no such opening.
CHANGELOG = Path("docs/changelog.md")
OPENING = re.compile(r"# .+\n\nAfter this page you (can|know) ")
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def blocks(path: Path, language: str) -> list[str]:
    """Return the text of every fenced block of this language."""
    return [text for kind, text in FENCE.findall(read(path)) if kind == language]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", read(path)), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> Iterator[tuple[Path, str]]:
    """Yield every link with the page that contains it."""
    for path in ALL:
        for target in LINK.findall(FENCE.sub("", read(path))):
            yield path, target


@pytest.mark.parametrize("path", [page for page in PAGES if page != CHANGELOG], ids=str)
def test_a_page_opens_with_what_the_reader_can_do_after_it(path: Path) -> None:
    assert OPENING.match(read(path))


def test_the_index_links_to_every_page() -> None:
    linked = {
        (ROOT / page.parent / target).resolve().relative_to(ROOT)
        for page, target in links()
        if page in (INDEX, DECISIONS)
    }

    assert linked >= {*ALL} - {INDEX}


def test_every_link_has_a_target() -> None:
    broken = []
    for page, target in links():
        name, _, anchor = target.partition("#")
        linked = (ROOT / page.parent / name).resolve() if name else ROOT / page
        if "://" in target or not linked.exists():
            broken.append(f"{page}: {target}")
        elif anchor and anchor not in anchors(linked.relative_to(ROOT)):
            broken.append(f"{page}: {target}: no such heading")

    assert not broken, as_lines(broken)


def test_every_file_a_page_names_exists() -> None:
    file_name = re.compile(r"`((?:app|workers|overnight|tests|docs|benchmarks|scripts)/[\w./-]*)`")
    missing = [
        f"{page}: {name}"
        for page in ALL
        if page != CHANGELOG
        for name in file_name.findall(read(page))
        if not (ROOT / name).exists()
    ]

    assert not missing, as_lines(missing)


def test_every_command_a_page_shows_exists() -> None:
    reference = read(Path("docs/reference/cli.md"))
    known = set(re.findall(r"^## overnight ([a-z-]+)", reference, flags=re.MULTILINE))
    shown = re.compile(r"(?:`|^ {4}(?:\w+=\S+ )*|^)overnight ([a-z][a-z-]*)", flags=re.MULTILINE)
    unknown = [
        f"{page}: overnight {name}"
        for page in ALL
        for text in _code(page)
        for name in shown.findall(text)
        if name not in known
    ]

    assert {"add", "up", "down", "doctor"} <= known
    assert not unknown, as_lines(unknown)


def test_every_setting_a_page_names_exists() -> None:
    known = {
        *re.findall(r"OVERNIGHT_\w+", read(Path("docs/reference/settings.md"))),
        FEEDBACK_VARIABLE,
    }
    unknown = [
        f"{page}: {name}"
        for page in ALL
        for name in re.findall(r"OVERNIGHT_[A-Z_]+[A-Z]", read(page))
        if name not in known
    ]

    assert not unknown, as_lines(unknown)


def test_the_page_of_the_audit_says_what_to_do_for_each_rule() -> None:
    page = read(Path("docs/operations/audit.md"))
    missing = [
        name
        for name, rule in AUDIT_RULES.items()
        if f"| `{name}` | {rule.kind} | {rule.problem} | {rule.advice} |" not in page
    ]

    assert not missing, as_lines(missing)


def test_the_architecture_has_a_paragraph_for_each_folder() -> None:
    page = read(Path("docs/architecture.md"))
    folders = {Path("overnight"), Path("workers/overnight_worker")} | {
        path.parent
        for path, _ in modules("app")
        if path.name == "__init__.py" and len(path.parts) == 4
    }
    missing = [str(folder) for folder in sorted(folders) if f"**`{folder}/`**" not in page]

    assert not missing, as_lines(missing)


def test_the_architecture_names_each_process_and_sweep() -> None:
    page = read(Path("docs/architecture.md"))
    processes = [line.partition(":")[0] for line in read(Path("Procfile")).splitlines()]

    assert not [name for name in processes if f"| `{name}` |" not in page]
    assert not [name for name in SWEEPS if not re.search(rf"\b{name}\b", page)]


def test_the_intervals_of_the_architecture_are_the_defaults() -> None:
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    expected_text = (
        f"heartbeat every {defaults['heartbeat_interval']:g} s, "
        f"lease {defaults['lease_seconds']:g} s, "
        f"reaper every {defaults['lease_check_interval']:g} s, "
        f"claim {defaults['claim_ttl']:g} s"
    )

    assert expected_text in read(Path("docs/architecture.md")).replace("\n", " ")


def test_the_readme_gives_the_two_commands() -> None:
    commands = re.findall(r"^ {4}(make \w+)$", read(README), flags=re.MULTILINE)

    assert commands == ["make up", "make test"]


def test_the_readme_is_read_in_three_minutes() -> None:
    read_aloud = re.sub(r"\]\([^)]+\)", "]", FENCE.sub("", read(README)))

    assert len(re.findall(r"\w[\w'.-]*", read_aloud)) <= 750


def test_the_page_for_contributors_lists_the_repository() -> None:
    page = read(Path("CONTRIBUTING.md"))
    table, _, _ = page.partition("## The repository\n")[2].partition("\n## ")
    first_cells = re.findall(r"^\| (`.+?`) \|", table, flags=re.MULTILINE)
    listed = {name.rstrip("/") for cell in first_cells for name in re.findall(r"`(.+?)`", cell)}
    folders = {path.parts[0] for path in files() if len(path.parts) > 1}

    assert not [name for name in listed if not (ROOT / name).exists()]
    assert {name for name in folders if not name.startswith(".")} <= listed


@pytest.mark.parametrize("path", [page for page in PAGES if blocks(page, "python")], ids=str)
def test_the_python_of_a_page_runs(path: Path, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(path, "python")), encoding="utf-8")

    ran = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ran.returncode == 0, ran.stderr


def test_every_example_in_a_docstring_is_true() -> None:
    with_examples = [
        str(path) for path, _ in modules("app", "overnight", "workers") if ">>> " in read(path)
    ]

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--doctest-modules", *with_examples],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert "app/overnight_server/domain/lifecycle.py" in with_examples
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _code(path: Path) -> Iterator[str]:
    """Yield the code of a page: fenced, indented or in backticks."""
    text = read(path)
    for _, block in FENCE.findall(text):
        yield block
    prose = FENCE.sub("", text)
    yield from re.findall(r"`[^`\n]+`", prose)
    yield from re.findall(r"^ {4}.+$", prose, flags=re.MULTILINE)


def test_the_page_of_retention_lists_every_rule() -> None:
    row = re.compile(
        r"^\| `(\w+)` \| (.+?) \| (\d+|kept) \| (?:`OVERNIGHT_(\w+)` )?\|$", re.MULTILINE
    )
    listed = row.findall(read(Path("docs/operations/retention.md")))

    assert listed == [
        (
            rule.name,
            rule.what,
            "kept" if rule.days is None else str(rule.days),
            (rule.setting or "").upper(),
        )
        for rule in RULES
    ]
