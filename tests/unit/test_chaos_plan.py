"""What a chaos run will do is known before it begins, and leaves nothing out."""

from dataclasses import replace

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.plan import (
    LINK,
    OF_COMMITS,
    TARGETS,
    TO_POSTGRES,
    WAYS,
    WORKERS,
    Step,
    another,
    plan,
)

SEEDS = range(50)


@pytest.mark.parametrize("seed", SEEDS)
def test_half_a_minute_has_every_kind_of_fault(seed: int) -> None:
    steps = plan(seed, 30)

    assert {step.fault for step in steps} == set(FAULTS)
    assert all(0 <= step.at < 30 for step in steps)


@pytest.mark.parametrize("seed", SEEDS)
def test_half_a_minute_spoils_the_links_of_everybody(seed: int) -> None:
    ways = [step.on for step in plan(seed, 30) if step.fault.startswith(LINK)]

    assert len(ways) == len(set(ways))
    assert {way.partition(" to ")[0] for way in ways} >= {
        *("api", "dispatcher", "maintenance", "worker")
    }
    assert set(ways) <= set(WAYS)


@pytest.mark.parametrize("seed", SEEDS)
def test_commits_are_forgotten_only_where_there_are_any(seed: int) -> None:
    forgetful = {f"{LINK}{fault}" for fault in OF_COMMITS}

    ways = [step.on for step in plan(seed, 60) if step.fault in forgetful]

    assert ways
    assert all(way.endswith(TO_POSTGRES) for way in ways)


def test_everybody_is_killed_before_anybody_is_killed_twice() -> None:
    everybody = TARGETS["kill"]

    killed = [step.on for step in plan(7, 60) if step.fault == "kill"]

    assert sorted(killed[: len(everybody)]) == sorted(everybody)


def test_the_same_seed_plans_the_same() -> None:
    assert plan(47, 60) == plan(47, 60)
    assert plan(47, 60) != plan(48, 60)


def test_a_fault_that_met_nobody_goes_round_all_it_may_hit() -> None:
    step = Step(1, "freeze worker", 7, WORKERS[0])
    met = []
    for _ in WORKERS:
        met.append(step.on)
        step = replace(step, on=another(step))

    assert tuple(met) == WORKERS
    assert another(Step(1, "flush redis", 7)) == ""
