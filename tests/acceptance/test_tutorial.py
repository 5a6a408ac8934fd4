"""The tutorial, typed as it stands with curl against a whole deployment."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_readme import Newcomer
from tests.rules.sources import ROOT
from tests.support import curl
from tests.support.pages import Answers, follow, typed

PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    someone = Newcomer(tmp_path)
    if shutil.which("curl") is None:
        someone.env["PATH"] = f"{curl.installed(tmp_path / 'bin')}:{someone.env['PATH']}"
    try:
        # What `make up` runs, without a terminal of its own.
        someone.type(".venv/bin/overnight up --detach")
        yield someone
    finally:
        someone.type(".venv/bin/overnight down")


@pytest.mark.timeout(300)
def test_the_tutorial_goes_as_it_says(newcomer: Newcomer) -> None:
    steps = typed(PAGE)

    printed = follow(steps, where=newcomer.clone, env=newcomer.env, timeout=200)

    answers = Answers()
    for step, answer in zip(steps, printed, strict=True):
        if step.expected is not None:
            answers.hold(step.expected, answer)


def test_every_step_of_the_tutorial_shows_its_answer() -> None:
    assert [step.block.text for step in typed(PAGE) if step.expected is None] == []
    assert sum("curl " in step.block.text for step in typed(PAGE)) > 30
