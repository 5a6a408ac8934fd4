"""The deployment struck at every point where dying hurts."""

from pathlib import Path

import pytest

from tests.chaos.points import CHECK_SECONDS, DRAIN_SECONDS, STRIKE_SECONDS, strike

# Longer than all parts together may take: a slow part reports what it waited for.
LIMIT = pytest.mark.timeout(STRIKE_SECONDS + DRAIN_SECONDS + CHECK_SECONDS)


@LIMIT
def test_a_kill_at_any_point_loses_and_doubles_nothing(tmp_path: Path) -> None:
    report = strike("kill", tmp_path)

    assert report.passed, report.text()


@pytest.mark.proof
@pytest.mark.parametrize("mode", ["raise", "drop", "delay:6"])
def test_any_other_fault_at_any_point_does_no_harm_either(tmp_path: Path, mode: str) -> None:
    report = strike(mode, tmp_path)

    assert report.passed, report.text()
