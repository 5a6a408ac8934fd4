"""Escalation of failing tasks: notice, priority or dead letter, by rule of task or deployment."""

import json
from collections.abc import Iterator

import pytest

from overnight_server.control.dead_letters import retry
from overnight_server.domain.results import Raised, Returned
from overnight_server.domain.retry import Escalation, RetryRules, Strategy
from overnight_server.insight.notices import list_notices
from overnight_server.maintenance.promote import promote
from overnight_server.store.run_rows import policy_of
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment

NOW = {"strategy": Strategy.IMMEDIATE, "jitter": False}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def fail(deployment: Deployment, times: int) -> None:
    """Run whatever is ready and let it fail, so many times."""
    for _ in range(times):
        promote(deployment.dispatcher)
        for claimed in deployment.claim().claims:
            run = deployment.start(claimed)
            assert run is not None
            deployment.settle(run, Raised("error", "no luck"))


def test_repeated_failures_of_a_task_write_one_notice(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    policy = RetryRules(escalate_after=2, **NOW)
    task = deployment.task(user, retry=policy, max_attempts=9, priority=70)

    fail(deployment, 4)

    [notice] = list_notices(deployment.app, user)
    assert notice.kind == "task.escalated"
    assert notice.detail["rule"] == "event"
    assert notice.detail["error"] == "no luck"
    assert (deployment.row(task)["priority"], deployment.row(task)["attempts"]) == (70, 4)


def test_the_rule_priority_raises_a_failing_tasks_priority(deployment: Deployment) -> None:
    user = deployment.user(max_concurrent_agents=1)
    deployment.agent()
    policy = RetryRules(escalate_after=1, escalate=Escalation.PRIORITY, **NOW)
    task = deployment.task(user, retry=policy, priority=70)
    fail(deployment, 1)
    others = [deployment.task(user) for _ in range(3)]
    promote(deployment.dispatcher)

    [claimed] = deployment.claim().claims

    assert claimed.claim.task_id == task not in others
    assert deployment.row(task)["priority"] == 20
    assert [notice.detail["rule"] for notice in list_notices(deployment.app, user)] == ["priority"]


def test_the_rule_priority_does_not_lower_a_critical_task(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    policy = RetryRules(escalate_after=1, escalate=Escalation.PRIORITY, **NOW)
    task = deployment.task(user, retry=policy, priority=5)
    before = deployment.row(task)["sort_key"]

    fail(deployment, 1)

    assert (deployment.row(task)["priority"], deployment.row(task)["sort_key"]) == (5, before)


def test_the_rule_dead_letter_ends_a_failing_task_early(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    policy = RetryRules(escalate_after=2, escalate=Escalation.DEAD_LETTER, **NOW)
    task = deployment.task(user, retry=policy, max_attempts=9)

    fail(deployment, 2)

    assert deployment.state(task) == "dead_lettered"
    assert [notice.detail["rule"] for notice in list_notices(deployment.app, user)] == [
        "dead_letter"
    ]


def test_the_rule_dead_letter_counts_from_the_revival(deployment: Deployment) -> None:
    deployment.agent()
    policy = RetryRules(escalate_after=2, escalate=Escalation.DEAD_LETTER, **NOW)
    task = deployment.task(deployment.user(), retry=policy, max_attempts=9)
    fail(deployment, 2)
    retry(deployment.dispatcher, task, actor="operator:ada", attempts=5)

    fail(deployment, 1)
    after_one = deployment.state(task)
    fail(deployment, 1)

    assert (after_one, deployment.state(task)) == ("retrying", "dead_lettered")


def test_the_default_rules_apply_to_a_task_without_rules(api_user: ApiUser) -> None:
    plain = api_user.created()
    own = api_user.created(retry={"escalate_after": 5, "escalate": "priority"})
    never = api_user.created(retry={"escalate_after": None})

    def rule(task: dict[str, str]) -> tuple[int | None, str]:
        policy = policy_of(
            json.dumps(api_user.deployment.row(api_user.row_id(task["id"]))["retry"])
        )
        return policy.escalate_after, policy.escalate

    assert [rule(task) for task in (plain, own, never)] == [
        (2, "event"),
        (5, "priority"),
        (None, "event"),
    ]


def test_poison_follows_the_policy_of_the_task(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    policy = RetryRules(poison_attempts=2, poison_distinct_agents=1, **NOW)
    task = deployment.task(user, retry=policy, max_attempts=9)

    fail(deployment, 2)

    assert deployment.state(task) == "dead_lettered"
    [letter] = deployment.rows("SELECT poison_pill FROM dead_letters")
    assert letter["poison_pill"]


def test_a_requested_agent_is_stored_as_a_capability_and_shown_by_name(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent(capabilities=["agent:other"])
    task = api_user.created(agent_name="FitmentAgent", task_type="generate_fitment")
    assert task["agent_name"] == "FitmentAgent"
    row = deployment.row(api_user.row_id(task["id"]))
    assert row["required_capabilities"] == ["agent:FitmentAgent"]
    assert not deployment.claim().claims

    deployment.agent(agent_id="fit", pool="fit", capabilities=["agent:FitmentAgent"])

    [claimed] = deployment.claim(pool="fit").claims
    run = deployment.start(claimed, agent="fit")
    assert run is not None
    assert deployment.settle(run, Returned())


def test_cost_fields_of_a_task_are_stored_and_returned(api_user: ApiUser) -> None:
    task = api_user.created(max_cost_usd=2, estimated_cost_usd=0.5)

    row = api_user.deployment.row(api_user.row_id(task["id"]))
    assert (float(row["max_cost_usd"]), float(row["estimated_cost_usd"])) == (2, 0.5)
    assert (task["max_cost_usd"], task["wait_reason"]) == (2, None)
    assert api_user.create(estimated_cost_usd=-1).status_code == 422
