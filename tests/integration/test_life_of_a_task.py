from datetime import timedelta

import pytest

from overnight_server.domain.results import Interrupted, Raised, Returned, TimedOut
from overnight_server.outcome.heartbeat import HeartbeatAnswer, heartbeat
from tests.support.deployment import LEASE, Deployment

pytestmark = pytest.mark.usefixtures("template")


def test_a_task_goes_from_submit_to_completed(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()

    run = deployment.running(user, payload={"hello": "world"})
    beat = heartbeat(deployment.dispatcher, run.claim, lease=LEASE)
    settled = deployment.settle(run, Returned({"hello": "world"}, summary="said hello"))

    row = deployment.row(run.claim.task_id)
    assert (beat, settled, row["state"]) == (HeartbeatAnswer.CONTINUE, True, "completed")
    assert row["output"] == {"hello": "world"}
    assert row["attempts"] == 1
    events = deployment.rows("SELECT to_state FROM events ORDER BY seq")
    assert [event["to_state"] for event in events] == ["ready", "claimed", "running", "completed"]
    assert deployment.one("SELECT status FROM graphs")["status"] == "completed"


def test_a_finished_task_frees_its_slot_and_settles_its_hours(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, timeout_seconds=600)
    before = deployment.lane(user)

    deployment.move_clock(timedelta(seconds=90))
    deployment.settle(run, Returned())

    after = deployment.lane(user)
    assert (before["active"], before["reserved_seconds"]) == (1, 600)
    assert (after["active"], after["reserved_seconds"], after["waiting"]) == (0, 0, 0)
    assert float(after["used_seconds"]) == pytest.approx(90, abs=2)
    [entry] = deployment.rows("SELECT kind, seconds FROM usage_ledger")
    assert entry["kind"] == "usage"
    assert entry["seconds"] == after["used_seconds"]


def test_a_failing_task_is_retried_and_then_dead_lettered(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, max_attempts=2)
    task_id = run.claim.task_id

    deployment.settle(run, Raised("error", "no luck", "ValueError", "traceback"))
    retrying = deployment.row(task_id)
    deployment.run("UPDATE tasks SET state = 'ready', retry_at = NULL WHERE id = :id", id=task_id)
    [claimed] = deployment.claim().claims
    again = deployment.start(claimed)
    assert again is not None
    deployment.settle(again, Raised("error", "no luck again", "ValueError", "traceback"))

    assert (retrying["state"], retrying["attempts"]) == ("retrying", 1)
    assert retrying["retry_at"] is not None
    assert deployment.state(task_id) == "dead_lettered"
    letter = deployment.one("SELECT * FROM dead_letters")
    assert [entry["error"] for entry in letter["failure_history"]] == ["no luck", "no luck again"]


def test_a_late_result_is_stored_apart_and_changes_nothing(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    deployment.settle(run, Returned("first"))
    before = deployment.row(run.claim.task_id)

    won = deployment.settle(run, Returned("late"))

    assert won is False
    assert deployment.row(run.claim.task_id) == before
    assert deployment.one("SELECT result FROM stale_results")["result"]["output"] == "late"


def test_a_released_run_spends_no_attempt_and_is_refunded(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    deployment.move_clock(timedelta(seconds=20))

    deployment.settle(run, Interrupted())

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["attempts"], row["epoch"]) == ("ready", 0, 1)
    assert deployment.lane(user)["used_seconds"] == 0
    kinds = [
        entry["kind"] for entry in deployment.rows("SELECT kind FROM usage_ledger ORDER BY kind")
    ]
    assert kinds == ["refund", "usage"]


def test_a_run_past_the_plan_limit_is_not_retried(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)

    deployment.settle(run, TimedOut(by_plan=run.plan_limited))

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["failure_reason"]) == ("dead_lettered", "plan_timeout")


def test_an_illegal_move_is_refused_by_the_database(deployment: Deployment) -> None:
    user = deployment.user()
    task_id = deployment.task(user)

    with pytest.raises(Exception, match="may not move from ready to completed"):
        deployment.run(
            "UPDATE tasks SET state = 'completed', finished_at = clock() WHERE id = :id", id=task_id
        )

    assert deployment.state(task_id) == "ready"
