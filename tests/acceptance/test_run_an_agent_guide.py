"""The guide to running an agent, typed as it stands against a whole local deployment."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_readme import Newcomer
from tests.rules.sources import ROOT
from tests.support.open_directory import open_directory
from tests.support.pages import Answers, follow, typed

PAGE = (ROOT / "docs/guides/run-an-agent.md").read_text(encoding="utf-8")


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    with open_directory() as clone:
        someone = Newcomer(clone)
        shutil.copytree(ROOT / "examples", clone / "examples")
        try:
            # What `make up` runs, without a terminal of its own.
            someone.type(".venv/bin/overnight up --detach")
            yield someone
        finally:
            someone.type(".venv/bin/overnight down")


@pytest.mark.timeout(300)
def test_the_guide_goes_as_it_says(newcomer: Newcomer) -> None:
    steps = typed(PAGE)
    began = time.monotonic()

    printed = follow(steps, where=newcomer.clone, env=newcomer.env, timeout=200)

    seconds = time.monotonic() - began
    print(f"the guide took {seconds:.1f} s after the start of the stack")  # noqa: T201 - a figure
    answers = Answers()
    assert sum(step.expected is not None for step in steps) == 5
    for step, answer in zip(steps, printed, strict=True):
        if step.expected is not None:
            answers.hold(step.expected, answer)
    assert "Hello" in (newcomer.clone / "my-site" / "greet.py").read_text()


@pytest.mark.timeout(300)
def test_a_repository_elsewhere_is_refused_until_it_is_allowed(
    newcomer: Newcomer, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "site"
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    for words in (
        ("init", "--quiet", str(elsewhere)),
        ("-C", str(elsewhere), *identity, "commit", "--quiet", "--allow-empty", "-m", "first"),
    ):
        subprocess.run(["git", *words], check=True)
    task = f"overnight add List --repo {elsewhere} --wait --json -- ls -A"
    newcomer.type(f'export PATH="$PWD/.venv/bin:$PATH"; {task} || true')
    setting = f"OVERNIGHT_ALLOWED_REPOSITORIES is {newcomer.clone}"
    assert f"this worker may not read {elsewhere}: {setting}" in newcomer.printed

    newcomer.type(".venv/bin/overnight down")
    newcomer.type(f".venv/bin/overnight up --detach --allow-repo {elsewhere.parent}")
    newcomer.type(f".venv/bin/{task}")

    assert '"state": "completed"' in newcomer.printed
