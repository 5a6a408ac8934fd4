"""The deployment struck at every point where dying hurts."""

from pathlib import Path

import pytest

from tests.chaos.points import strike


@pytest.mark.timeout(240)
def test_a_kill_at_any_point_loses_and_doubles_nothing(tmp_path: Path) -> None:
    report = strike("kill", tmp_path)

    assert report.passed, report.text()


@pytest.mark.proof
@pytest.mark.parametrize("mode", ["raise", "drop", "delay:6"])
def test_any_other_fault_at_any_point_does_no_harm_either(tmp_path: Path, mode: str) -> None:
    report = strike(mode, tmp_path, strike_seconds=180, drain_seconds=120)

    assert report.passed, report.text()
