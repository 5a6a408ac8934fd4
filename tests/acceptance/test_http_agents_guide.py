"""The guide to HTTP agents, typed as it stands against a whole local deployment."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from overnight_server.local.ports import free_port
from tests.acceptance.test_readme import Newcomer
from tests.rules.sources import ROOT
from tests.support.pages import Answers, follow, typed

PAGE = (ROOT / "docs/guides/http-agents.md").read_text(encoding="utf-8")


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    someone = Newcomer(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    try:
        # What `make up` runs, without a terminal of its own.
        someone.type(".venv/bin/overnight up --detach")
        yield someone
    finally:
        # The page ends the agent; if it did not come so far, this does.
        with suppress(FileNotFoundError, psutil.NoSuchProcess):
            agent = psutil.Process(int((tmp_path / "scribe.pid").read_text()))
            if "examples/agents/http_agent.py" in agent.cmdline():
                agent.kill()
        someone.type(".venv/bin/overnight down")


@pytest.mark.timeout(300)
def test_the_guide_goes_as_it_says(newcomer: Newcomer) -> None:
    # The page's port may be in use on this machine.
    steps = typed(PAGE.replace("9000", str(free_port())))

    printed = follow(steps, where=newcomer.clone, env=newcomer.env, timeout=200)

    answers = Answers()
    shown = [step for step in steps if step.expected is not None]
    assert len(shown) >= 4
    for step, answer in zip(steps, printed, strict=True):
        if step.expected is not None:
            answers.hold(step.expected, answer)
