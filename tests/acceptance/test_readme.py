"""The README's first minute, typed as it stands there, against a whole deployment."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from overnight_server.local.up import FIRST_TASK

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"\A# (\w+\.py)\n")


class Block(NamedTuple):
    """One fenced block: something to type, to save, or to expect."""

    language: str
    text: str


def first_minute() -> list[Block]:
    """The blocks of the section that a newcomer types through."""
    _, _, after = README.partition("\n## The first minute\n")
    section, _, _ = after.partition("\n## ")
    return [Block(*found) for found in FENCE.findall(section)]


class Newcomer:
    """Someone in a fresh clone, with a deployment that runs and the README open."""

    def __init__(self, clone: Path) -> None:
        self.clone = clone
        (clone / ".venv").symlink_to(sys.prefix)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("OVERNIGHT_")}
        self.env["OVERNIGHT_HOME"] = str(clone / ".overnight")
        self.exports: list[str] = []
        self.printed = ""

    def follow(self, block: Block) -> None:
        """Do what a block is there for."""
        match block.language:
            case "sh":
                for line in block.text.splitlines():
                    self.type(line)
            case "python" if name := FILE_NAME.match(block.text):
                (self.clone / name[1]).write_text(block.text, encoding="utf-8")
            case "python":
                self.type("python -W error -", typed=block.text)
            case "json":
                printed = json.loads(self.printed)
                expected = json.loads(block.text)
                assert {name: printed[name] for name in expected} == expected
            case "text":
                assert self.printed == block.text
            case other:
                raise AssertionError(f"nobody knows what to do with a block of {other}")

    def type(self, line: str, typed: str | None = None) -> None:
        """Run one line as the same shell would; keep what it printed."""
        if line.startswith("export "):
            self.exports.append(line)
        ran = subprocess.run(
            ["bash", "-euc", "\n".join([*self.exports, line])],
            cwd=self.clone,
            env=self.env,
            input=typed,
            check=False,
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
        self.printed = ran.stdout


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    someone = Newcomer(tmp_path)
    try:
        # What `make up` runs, without a terminal of its own.
        someone.type(".venv/bin/overnight up --detach")
        yield someone
    finally:
        someone.type(".venv/bin/overnight down")


@pytest.mark.timeout(400)  # two whole starts and stops of nine processes
def test_the_first_minute_goes_as_the_readme_says(newcomer: Newcomer) -> None:
    for block in first_minute():
        newcomer.follow(block)

    newcomer.type("overnight list")
    for title in ("say hello", "read the papers", "count words"):
        assert re.search(rf"completed .*{title}", newcomer.printed)


def test_the_first_minute_begins_with_the_task_that_up_proposes() -> None:
    first, answer, *_ = first_minute()

    assert first.text.splitlines()[-1] == f"overnight {FIRST_TASK} --json"
    assert json.loads(answer.text)["state"] == "completed"


def test_the_first_minute_shows_a_producer_and_a_handler() -> None:
    programs = [block.text for block in first_minute() if block.language == "python"]

    assert [bool(FILE_NAME.match(program)) for program in programs] == [False, True]
    assert "from overnight import Client" in programs[0]
    assert "@handler(" in programs[1]
