"""Half a minute of everything that can go wrong, from one seed; `make chaos` takes longer."""

from pathlib import Path

import pytest

from tests.chaos.driver import Options, run

SEED = 20260


@pytest.mark.timeout(240)
def test_nothing_is_lost_or_doubled_whatever_breaks(tmp_path: Path) -> None:
    report = run(Options(seconds=30, seed=SEED, per_second=10, drain_seconds=45), tmp_path)

    assert report.passed, report.text()
    assert report.work["submissions acknowledged"] > 100
    assert report.faults["kill"] >= 5
    assert report.faults["crash postgres"] >= 1
    assert report.faults["flush redis"] >= 1
