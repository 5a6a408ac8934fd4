"""Execute a page of the docs: run every command and compare what it prints with the page."""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
ID = re.compile(r"\b(?:task|dag|artifact|trigger)_[0-9A-Z]{26}\b")
INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z")
# Measured values: the page shows an example.
MEASURED = frozenset(
    {
        "hours_used",
        "seconds",
        "oldest_age_seconds",
        "monthly_hours_used",
        "monthly_agent_hours_used",
    }
)
MORE = "…"


class Block(NamedTuple):
    """One fenced block: something to type or something to expect."""

    language: str
    text: str


class Typed(NamedTuple):
    """One command or program of a page, and the output that the page shows for it."""

    block: Block
    expected: Block | None


def typed(page: str) -> list[Typed]:
    """Return the commands and programs of a page in order, each with the answer shown after it."""
    steps: list[Typed] = []
    for language, text in FENCE.findall(page):
        block = Block(language, text)
        if block.language in ("sh", "py"):
            steps.append(Typed(block, None))
        elif block.language in ("json", "text"):
            assert steps, f"output without a command:\n{block.text}"
            assert steps[-1].expected is None, f"a second output of one command:\n{block.text}"
            steps[-1] = Typed(steps[-1].block, block)
        else:
            raise AssertionError(f"blocks of {block.language} cannot be executed")
    return steps


def follow(
    steps: Sequence[Typed], *, where: Path, env: Mapping[str, str], timeout: float
) -> list[str]:
    """Execute all steps in one shell; return what each step printed."""
    printed = where / "printed"
    printed.mkdir()
    script = ["set -euo pipefail"]
    for number, step in enumerate(steps):
        text = step.block.text
        if step.block.language == "py":
            text = f"python -W error - <<'END_OF_PROGRAM'\n{text}END_OF_PROGRAM\n"
        script.append(f"{{\n{text}}} >{printed}/{number}\n")
    ran = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=where,
        env=dict(env),
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    done = sorted(printed.iterdir(), key=lambda path: int(path.name))
    assert ran.returncode == 0, f"{steps[len(done) - 1].block.text}\n{ran.stdout}\n{ran.stderr}"
    return [path.read_text(encoding="utf-8") for path in done]


@dataclass
class Answers:
    """Compares shown with real output; ids that the page repeats must be repeated as well."""

    real_ids: dict[str, str] = field(default_factory=dict)

    def hold(self, shown: Block, printed: str) -> None:
        """Fail unless the output matches what the page shows.

        An object must have the shown fields, a list the shown items (and more only if the last is
        `…`), a text the shown lines in their order.
        """
        if shown.language == "json":
            self._alike(json.loads(shown.text), json.loads(printed), "answer")
            return
        lines = iter(printed.splitlines())
        for line in shown.text.splitlines():
            assert any(self._same_text(line, real) for real in lines), (
                f"{line!r} is not in {printed}"
            )

    def _alike(self, shown: Any, real: Any, place: str) -> None:
        name = place.rpartition(".")[2]
        match shown:
            case dict():
                assert isinstance(real, dict), f"{place}: {real!r}"
                for key, value in shown.items():
                    assert key in real, f"{place} has no {key}: {real}"
                    self._alike(value, real[key], f"{place}.{key}")
            case list():
                expected = shown[:-1] if shown[-1:] == [MORE] else shown
                assert isinstance(real, list), f"{place}: {real!r}"
                assert len(real) == len(shown) or expected is not shown, f"{place}: {real}"
                for number, value in enumerate(expected):
                    self._alike(value, real[number], f"{place}[{number}]")
            case str():
                assert isinstance(real, str), f"{place}: {real!r}"
                assert self._same_text(shown, real), f"{place}: {real!r}, not {shown!r}"
            case int() | float() if name in MEASURED and not isinstance(shown, bool):
                assert isinstance(real, int | float), f"{place}: {real!r}"
                assert real >= 0, f"{place}: {real!r}"
            case _:
                assert real == shown, f"{place}: {real!r}, not {shown!r}"

    def _same_text(self, shown: str, real: str) -> bool:
        if _plain(shown) != _plain(real):
            return False
        pairs = zip(ID.findall(shown), ID.findall(real), strict=True)
        return all(
            self.real_ids.setdefault(page_id, real_id) == real_id for page_id, real_id in pairs
        )


def _plain(text: str) -> str:
    """Replace ids by their kind and instants by a placeholder."""
    return INSTANT.sub("<instant>", ID.sub(lambda match: match[0].partition("_")[0], text))
