"""What doctor and a worker say about the sandboxes of a machine, and about a machine without."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overnight_server.local.doctor import Check, run_checks
from overnight_server.settings import load
from overnight_worker.sandbox import SandboxKind, remedies, sandbox_user
from tests.sandbox.conftest import ROOT, SANDBOX_KINDS

REPORT = """
from overnight_server.settings import load
from overnight_server.telemetry import configure
from overnight_worker.sandbox_report import report_sandbox
configure("logfmt", "info", "worker")
report_sandbox(load({}))
"""


def sandbox_check(home: Path) -> Check:
    checks = run_checks(load({"OVERNIGHT_HOME": str(home)}))
    return next(check for check in checks if check.name == "sandbox")


def probe_without_namespaces(*arguments: str) -> tuple[dict[str, Any], str]:
    """Return what is found in a namespace that allows no further ones, and the log."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.sandbox.without_namespaces", *arguments],
        capture_output=True,
        check=True,
        text=True,
    )
    answer, _, log = result.stdout.partition("\n")
    return json.loads(answer), log + result.stderr


def test_doctor_names_the_sandboxes_that_work(tmp_path: Path) -> None:
    check = sandbox_check(tmp_path)

    assert check.ok
    assert all(f"{sandbox_kind} (memory: " in check.detail for sandbox_kind in SANDBOX_KINDS)


def test_doctor_says_that_bubblewrap_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    check = sandbox_check(tmp_path)

    assert check.ok
    assert check.detail.startswith("own (memory: ")
    assert check.detail.endswith("not bwrap: bubblewrap is not installed")


def test_a_worker_logs_its_kind_of_sandbox() -> None:
    result = subprocess.run(
        [sys.executable, "-c", REPORT], capture_output=True, check=True, text=True
    )

    assert "queue=sandbox_found worker=" in result.stdout + result.stderr
    assert f"sandbox={SANDBOX_KINDS[0]} memory=" in result.stdout + result.stderr


def test_a_machine_that_can_make_none_is_told_what_to_do() -> None:
    answer, log = probe_without_namespaces()

    assert not any(probe["usable"] for probe in answer["probes"])
    _, remedy = remedies.KERNEL_SETTINGS[remedies.COUNT]
    assert answer["probes"][-1]["remedy"] == remedy
    assert answer["strict"]["class"] == "no_sandbox"
    assert remedy in answer["strict"]["remedy"]
    assert answer["permissive"] == "none"
    assert "queue=sandbox_missing" in log
    assert "policy=permissive" in log


if ROOT:

    def test_a_root_worker_without_another_user_is_told_what_to_do() -> None:
        answer, _ = probe_without_namespaces("single")

        assert [probe["remedy"] for probe in answer["probes"]][-1] == sandbox_user.REMEDY
        assert "no other user" in answer["strict"]["reason"]


def test_both_kinds_are_tested_where_bubblewrap_is_installed() -> None:
    assert SandboxKind.OWN in SANDBOX_KINDS
