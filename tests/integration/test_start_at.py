"""A task with `start_at` waits until then, says so, and starts afterwards."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from overnight.errors import InvalidRequest
from overnight_server.domain.ids import parse_task
from overnight_server.domain.results import Returned
from overnight_server.explain.explain import explain
from overnight_server.forecast.forecast import forecast_task
from overnight_server.forecast.plan import plan
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance.promote import promote
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import CLAIM_SETTINGS, LOOSE, Deployment
from tests.support.invariants import describe_violations, violations

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user
    broken = violations(deployment.owner)
    assert not broken, describe_violations(broken)


def in_an_hour(deployment: Deployment) -> datetime:
    now: datetime = deployment.one("SELECT clock() AS now")["now"]
    return now + HOUR


@pytest.mark.parametrize("name", ["start_at", "available_at"])
def test_a_task_waits_until_its_start_and_then_runs(api_user: ApiUser, name: str) -> None:
    deployment = api_user.deployment
    deployment.agent()
    start_at = in_an_hour(deployment)
    made = api_user.created(**{name: start_at.isoformat()})
    task_id = parse_task(made["id"])

    assert (made["state"], made["status"]) == ("pending", "pending")
    assert datetime.fromisoformat(made["start_at"]) == start_at
    assert (promote(deployment.dispatcher), list(deployment.claim().claims)) == (0, [])
    [reason] = explain(deployment.app, api_user.user, task_id, CLAIM_SETTINGS).reasons
    assert (reason.code, reason.details["start_at"]) == ("start_at", start_at)
    forecast = forecast_task(deployment.app, api_user.user, task_id, CLAIM_SETTINGS)
    assert forecast.start.p10_at is not None
    assert abs(forecast.start.p10_at - start_at) < SECOND
    assert any("may not start before" in note for note in forecast.notes)

    deployment.move_clock(HOUR)

    assert promote(deployment.dispatcher) == 1
    assert [claimed.claim.task_id for claimed in deployment.claim().claims] == [task_id]


def test_a_start_that_has_passed_has_no_effect(api_user: ApiUser) -> None:
    made = api_user.created(start_at=(in_an_hour(api_user.deployment) - 2 * HOUR).isoformat())

    assert made["state"] == "ready"


def test_a_task_waits_for_its_parents_and_for_its_start(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    start_at = in_an_hour(deployment)
    tasks = [NewTask("first", "echo"), NewTask("then", "echo", start_at=start_at)]
    _, child = submit_graph(deployment.app, user, tasks, LOOSE, edges=[Edge(0, 1)])
    [claimed] = deployment.claim().claims
    run = deployment.start(claimed)
    assert run is not None

    deployment.settle(run, Returned("done"))

    row = deployment.row(child.task_id)
    assert (row["state"], row["unmet"], row["awaits_start"]) == ("pending", 0, True)
    assert not deployment.claim().claims
    deployment.move_clock(HOUR)
    assert promote(deployment.dispatcher) == 1
    assert len(deployment.claim().claims) == 1


def test_a_parent_that_ends_after_the_start_releases_the_task_at_once(
    deployment: Deployment,
) -> None:
    user = deployment.user()
    deployment.agent()
    tasks = [NewTask("first", "echo"), NewTask("then", "echo", start_at=in_an_hour(deployment))]
    _, child = submit_graph(deployment.app, user, tasks, LOOSE, edges=[Edge(0, 1)])
    deployment.move_clock(HOUR)
    assert promote(deployment.dispatcher) == 0
    [claimed] = deployment.claim().claims
    run = deployment.start(claimed)
    assert run is not None

    deployment.settle(run, Returned("done"))

    assert deployment.state(child.task_id) == "ready"


def test_a_task_that_waits_for_its_start_can_be_cancelled(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    made = api_user.created(start_at=in_an_hour(deployment).isoformat())

    api_user.request("DELETE", f"{TASKS}/{made['id']}")

    deployment.move_clock(HOUR)
    assert promote(deployment.dispatcher) == 0
    assert deployment.state(parse_task(made["id"])) == "cancelled"


def test_a_start_after_the_deadline_is_refused(deployment: Deployment) -> None:
    start_at = in_an_hour(deployment)
    task = NewTask("late", "echo", start_at=start_at, deadline_at=start_at)

    with pytest.raises(InvalidRequest, match="is not before the deadline"):
        submit_graph(deployment.app, deployment.user(), [task], LOOSE)


def test_a_plan_counts_from_the_start(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    start_at = in_an_hour(deployment)

    planned = plan(
        deployment.app, user, [NewTask("t", "echo", start_at=start_at)], LOOSE, CLAIM_SETTINGS
    )

    first = planned.steps[0].start.p10_at
    assert first is not None
    assert abs(first - start_at) < SECOND
