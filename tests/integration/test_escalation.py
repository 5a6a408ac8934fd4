"""Tasks that keep failing: told of, hurried or given up, by their own rule or the house's."""

import json
from collections.abc import Iterator

import pytest

from overnight_server.domain.results import Raised, Returned
from overnight_server.domain.retry import Escalation, RetryPolicy, Strategy
from overnight_server.insight.notices import list_notices
from overnight_server.maintenance.promote import promote
from overnight_server.store.run_rows import policy_of
from tests.support.door import Door, open_door
from tests.support.house import House

NOW = {"strategy": Strategy.IMMEDIATE, "jitter": False}


@pytest.fixture
def door(house: House, database_url: str) -> Iterator[Door]:
    with open_door(house, database_url) as door:
        yield door


def fail(house: House, times: int) -> None:
    """Run whatever is ready and let it fail, so many times."""
    for _ in range(times):
        promote(house.dispatcher)
        for claimed in house.claim().claims:
            run = house.start(claimed)
            assert run is not None
            house.settle(run, Raised("error", "no luck"))


def test_a_task_that_fails_again_is_told_of_once(house: House) -> None:
    user = house.user()
    house.agent()
    policy = RetryPolicy(escalate_after=2, **NOW)
    task = house.task(user, retry=policy, max_attempts=9, priority=70)

    fail(house, 4)

    [notice] = list_notices(house.app, user)
    assert notice.kind == "task.escalated"
    assert notice.detail["rule"] == "event"
    assert notice.detail["error"] == "no luck"
    assert (house.row(task)["priority"], house.row(task)["attempts"]) == (70, 4)


def test_a_task_that_is_to_be_hurried_moves_up_in_its_line(house: House) -> None:
    user = house.user(max_concurrent_agents=1)
    house.agent()
    policy = RetryPolicy(escalate_after=1, escalate=Escalation.PRIORITY, **NOW)
    task = house.task(user, retry=policy, priority=70)
    fail(house, 1)
    others = [house.task(user) for _ in range(3)]
    promote(house.dispatcher)

    [claimed] = house.claim().claims

    assert claimed.claim.task_id == task not in others
    assert house.row(task)["priority"] == 20
    assert [notice.detail["rule"] for notice in list_notices(house.app, user)] == ["priority"]


def test_a_critical_task_is_not_slowed_by_being_hurried(house: House) -> None:
    user = house.user()
    house.agent()
    policy = RetryPolicy(escalate_after=1, escalate=Escalation.PRIORITY, **NOW)
    task = house.task(user, retry=policy, priority=5)
    before = house.row(task)["sort_key"]

    fail(house, 1)

    assert (house.row(task)["priority"], house.row(task)["sort_key"]) == (5, before)


def test_a_task_that_is_to_be_given_up_has_its_dead_letter_early(house: House) -> None:
    user = house.user()
    house.agent()
    policy = RetryPolicy(escalate_after=2, escalate=Escalation.DEAD_LETTER, **NOW)
    task = house.task(user, retry=policy, max_attempts=9)

    fail(house, 2)

    assert house.state(task) == "dead_lettered"
    assert [notice.detail["rule"] for notice in list_notices(house.app, user)] == ["dead_letter"]


def test_the_houses_rules_reach_a_task_that_names_none(door: Door) -> None:
    plain = door.created()
    own = door.created(retry={"escalate_after": 5, "escalate": "priority"})
    never = door.created(retry={"escalate_after": None})

    def rule(task: dict[str, str]) -> tuple[int | None, str]:
        policy = policy_of(json.dumps(door.house.row(door.row_id(task["id"]))["retry"]))
        return policy.escalate_after, policy.escalate

    assert [rule(task) for task in (plain, own, never)] == [
        (2, "event"),
        (5, "priority"),
        (None, "event"),
    ]


def test_poison_is_judged_by_the_policy_the_task_came_with(house: House) -> None:
    user = house.user()
    house.agent()
    policy = RetryPolicy(poison_attempts=2, poison_distinct_agents=1, **NOW)
    task = house.task(user, retry=policy, max_attempts=9)

    fail(house, 2)

    assert house.state(task) == "dead_lettered"
    [letter] = house.rows("SELECT poison_pill FROM dead_letters")
    assert letter["poison_pill"]


def test_a_named_agent_is_a_capability_and_is_shown_as_named(door: Door) -> None:
    house = door.house
    house.agent(capabilities=["agent:other"])
    task = door.created(agent_name="FitmentAgent", task_type="generate_fitment")
    assert task["agent_name"] == "FitmentAgent"
    row = house.row(door.row_id(task["id"]))
    assert row["required_capabilities"] == ["agent:FitmentAgent"]
    assert not house.claim().claims

    house.agent(agent_id="fit", pool="fit", capabilities=["agent:FitmentAgent"])

    [claimed] = house.claim(pool="fit").claims
    run = house.start(claimed, agent="fit")
    assert run is not None
    assert house.settle(run, Returned())


def test_money_on_the_wire(door: Door) -> None:
    task = door.created(max_cost_usd=2, estimated_cost_usd=0.5)

    row = door.house.row(door.row_id(task["id"]))
    assert (float(row["max_cost_usd"]), float(row["estimated_cost_usd"])) == (2, 0.5)
    assert (task["max_cost_usd"], task["wait_reason"]) == (2, None)
    assert door.create(estimated_cost_usd=-1).status_code == 422
