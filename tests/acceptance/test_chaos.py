"""Half a minute of everything that can go wrong, from one seed; `make chaos` takes longer."""

from pathlib import Path
from typing import Final

import pytest

from tests.chaos.driver import Options, run
from tests.chaos.plan import LINK, SPOILED

SEED: Final = 20260
# Every kind of thing that must have happened before the run proves anything.
HAPPENED: Final = {
    "kill": 5,
    **dict.fromkeys(
        [
            *("kill main", "kill child", "term", "freeze", "freeze worker", "freeze child"),
            *("crash postgres", "flush redis", "restart redis", "empty redis", "hang redis"),
            *(f"{LINK}{fault}" for fault in SPOILED),
            *("burst", "change plan", "revive", "repeat messages"),
            *("graphs", "poison that ran", "cancels answered cancelled"),
            *("attempts in a bundle", "billing months begun"),
        ],
        1,
    ),
    "submissions acknowledged": 200,
}


@pytest.mark.timeout(240)
def test_nothing_is_lost_or_doubled_whatever_breaks(tmp_path: Path) -> None:
    options = Options(seconds=30, seed=SEED, per_second=10, drain_seconds=45, at_least=HAPPENED)

    report = run(options, tmp_path)

    assert report.passed, report.text()
