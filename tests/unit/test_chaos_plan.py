"""The plan of a chaos run: complete, and the same for the same seed."""

from dataclasses import replace

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.plan import (
    LINK,
    LINKS,
    OF_COMMITS,
    TARGETS,
    TO_POSTGRES,
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
def test_half_a_minute_has_a_link_fault_for_every_process(seed: int) -> None:
    links = [step.on for step in plan(seed, 30) if step.fault.startswith(LINK)]

    assert len(links) == len(set(links))
    assert {link.partition(" to ")[0] for link in links} >= {
        *("api", "dispatcher", "maintenance", "worker")
    }
    assert set(links) <= set(LINKS)


@pytest.mark.parametrize("seed", SEEDS)
def test_commit_faults_hit_only_links_to_postgres(seed: int) -> None:
    forgetful = {f"{LINK}{fault}" for fault in OF_COMMITS}

    links = [step.on for step in plan(seed, 60) if step.fault in forgetful]

    assert links
    assert all(link.endswith(TO_POSTGRES) for link in links)


def test_every_process_is_killed_before_any_is_killed_twice() -> None:
    targets = TARGETS["kill"]

    killed = [step.on for step in plan(7, 60) if step.fault == "kill"]

    assert sorted(killed[: len(targets)]) == sorted(targets)


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plan(47, 60) == plan(47, 60)
    assert plan(47, 60) != plan(48, 60)


def test_a_fault_without_a_target_tries_the_next_one() -> None:
    step = Step(1, "freeze worker", 7, WORKERS[0])
    tried = []
    for _ in WORKERS:
        tried.append(step.on)
        step = replace(step, on=another(step))

    assert tuple(tried) == WORKERS
    assert another(Step(1, "flush redis", 7)) == ""
