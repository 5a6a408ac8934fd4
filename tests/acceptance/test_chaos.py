"""Thirty seconds of every kind of fault, from one seed; `make chaos` takes longer."""

from pathlib import Path
from typing import Final

import pytest

from tests.chaos.driver import Options, run
from tests.chaos.plan import LINK, LINK_FAULTS

SEED: Final = 20260
# The run proves nothing unless each of these has happened.
MINIMUM_COUNTS: Final = {
    "kill": 5,
    **dict.fromkeys(
        [
            *("kill main", "kill child", "term", "freeze", "freeze worker", "freeze child"),
            *("crash postgres", "hang postgres", "flush redis", "restart redis", "empty redis"),
            *("hang redis", "fill redis", "fill disk", "areas audited"),
            *(f"{LINK}{fault}" for fault in LINK_FAULTS),
            *("burst", "change plan", "revive", "repeat messages"),
            *("graphs", "poison that ran", "cancels answered cancelled"),
            *("attempts in a bundle", "billing months started"),
            *("commands completed", "tasks of HTTP agents completed"),
            *("restarts of agent-driver", "restarts of http-agents"),
        ],
        1,
    ),
    "submissions acknowledged": 200,
}


@pytest.mark.timeout(420)
def test_no_task_is_lost_or_run_twice_under_faults(tmp_path: Path) -> None:
    options = Options(
        seconds=30, seed=SEED, per_second=10, drain_seconds=120, at_least=MINIMUM_COUNTS
    )

    report = run(options, tmp_path)

    assert report.passed, report.text()
