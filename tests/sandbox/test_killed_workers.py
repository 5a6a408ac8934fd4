"""A worker that is killed leaves nothing of its sandboxes, whenever it is killed."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from overnight_worker.sandbox import SandboxKind
from tests.sandbox.conftest import KINDS, TEST_USER

SEED = 47


def strike(
    sandbox_kind: SandboxKind, kind: str, *, instants: int, seconds: float
) -> dict[str, Any]:
    user = TEST_USER + 1 if kind == "user" and os.geteuid() == 0 else os.geteuid()
    words = [str(sandbox_kind), str(user), str(instants), str(seconds), str(SEED)]
    result = subprocess.run(
        [sys.executable, "-m", "tests.sandbox.killed_workers", *words],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(result.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_no_sandbox_survives_a_killed_worker(sandbox_kind: SandboxKind, kind: str) -> None:
    # A loaded machine takes longer to end a process; the proof allows one second.
    result = strike(sandbox_kind, kind, instants=10, seconds=20)

    assert result["survived"] == 0
    assert result["groups_left"] == 0


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_no_sandbox_lives_a_second_longer_than_its_worker(
    sandbox_kind: SandboxKind, kind: str
) -> None:
    result = strike(sandbox_kind, kind, instants=200, seconds=1)

    assert result["survived"] == 0, result
    assert result["groups_left"] == 0
