"""HTTP agents that misbehave, and a driver that serves them: no task is started twice or lost."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from overnight_server.control import agents
from overnight_server.control.cancel import cancel
from overnight_server.control.claim_tokens import token_of
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId, show_task
from overnight_server.local.redis import EmbeddedRedis
from tests.support.agent_driver import SHORT, DrivenFleet
from tests.support.deployment import Deployment
from tests.support.live_api import LiveApi, serve
from tests.support.scripted_agent import (
    DO_AND_FAIL,
    DO_AND_HANG,
    FORGETFUL,
    GARBAGE,
    HANG,
    LARGE,
    NORMAL,
    REDIRECT,
)
from tests.support.wait import wait_until
from tests.support.workers import worker_settings


@pytest.fixture
def fleet(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis, tmp_path: Path
) -> Iterator[DrivenFleet]:
    settings = worker_settings(database_url, redis.url, **SHORT)
    made = DrivenFleet(deployment, settings, tmp_path, deployment.user())
    try:
        yield made
    finally:
        made.stop()
        # Shown only if the test fails.
        print(made.log_text())  # noqa: T201


def test_a_task_runs_at_an_idle_agent_and_its_result_is_recorded(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    task = fleet.task()
    fleet.drive()

    row = fleet.wait_for(task)

    assert row["state"] == "completed"
    assert row["output"] == {"text": "HELLO"}
    assert agent.starts() == [f"{show_task(task)}:1"]
    log = fleet.log_text()
    shown = show_task(task)
    assert f"INFO queue=dispatch queue_id={shown} agent={agent.url}" in log
    assert f"INFO queue=dispatch_success queue_id={shown} task_id={shown}" in log


def attempts(fleet: DrivenFleet, task: TaskId) -> int:
    return int(fleet.deployment.row(task)["attempts"])


def hours_spent(fleet: DrivenFleet) -> float:
    sql = "SELECT coalesce(sum(seconds), 0) AS seconds FROM usage_ledger"
    return float(fleet.deployment.one(sql)["seconds"])


def test_an_agent_that_refuses_the_connection_costs_one_attempt(fleet: DrivenFleet) -> None:
    fleet.settings = fleet.with_polls_every(3)
    agent = fleet.agent()
    fleet.drive()
    fleet.healthy(1)

    agent.kill()
    task = fleet.task()
    wait_until(lambda: attempts(fleet, task) == 1, what="the failed attempt")
    agent.start()

    assert fleet.wait_for(task)["state"] == "completed"
    assert fleet.outcomes(task) == ["failed", "completed"]
    assert len(agent.starts()) == 1


def test_a_frozen_agent_does_not_start_a_task_that_another_one_runs(fleet: DrivenFleet) -> None:
    fleet.settings = fleet.with_polls_every(3)
    frozen = fleet.agent(max_age_seconds=2)
    fleet.drive()
    fleet.healthy(1)

    frozen.freeze()
    task = fleet.task()
    fleet.wait_for(task, "running")
    other = fleet.agent()
    row = fleet.wait_for(task)
    frozen.thaw()
    frozen.saw("post")

    assert row["state"] == "completed"
    assert fleet.outcomes(task)[-1] == "completed"
    assert len(other.starts()) == 1
    assert frozen.starts() == []


def test_a_task_that_was_taken_without_an_answer_is_found_and_not_sent_again(
    fleet: DrivenFleet,
) -> None:
    agent = fleet.agent()
    agent.script(post=[DO_AND_HANG, FORGETFUL])
    task = fleet.task()
    fleet.drive()

    assert fleet.wait_for(task)["state"] == "completed"
    assert agent.journal("post") == agent.starts() == [f"{show_task(task)}:1"]
    assert fleet.outcomes(task) == ["completed"]


def test_a_task_that_was_not_taken_is_withdrawn_before_it_is_sent_again(
    fleet: DrivenFleet,
) -> None:
    agent = fleet.agent()
    agent.script(post=[HANG, NORMAL])
    task = fleet.task()
    fleet.drive()

    assert fleet.wait_for(task)["state"] == "completed"
    assert fleet.outcomes(task) == ["failed", "completed"]
    assert agent.journal("delete")[0] == f"{show_task(task)}:1"
    assert agent.starts() == [f"{show_task(task)}:2"]
    assert re.search(r'queue=dispatch_failed .*error="?timeout"? attempt=1/3', fleet.log_text())


def test_a_busy_agent_costs_nothing_however_often_it_refuses(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    agent.script(post=409)
    task = fleet.task(max_attempts=1)
    fleet.drive()

    agent.saw("post", 3)
    assert hours_spent(fleet) == 0
    agent.script()
    row = fleet.wait_for(task)

    assert (row["state"], row["attempts"]) == ("completed", 1)
    assert set(fleet.outcomes(task)[:-1]) == {"busy"}
    busy = [line for line in fleet.log_text().splitlines() if "dispatch_failed" in line]
    assert 'error="agent busy" attempt=1/1' in busy[0]
    assert not [line for line in busy if "final" in line]


def test_a_task_whose_agent_was_busy_goes_to_the_back_of_the_queue(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    agent.script(post=[409, NORMAL])
    first, second = fleet.task(), fleet.task()
    fleet.drive()

    fleet.wait_for(first)
    fleet.wait_for(second)

    assert agent.journal("post") == [
        f"{show_task(first)}:1",
        f"{show_task(second)}:1",
        f"{show_task(first)}:2",
    ]
    assert fleet.outcomes(first) == ["busy", "completed"]


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "agent_refused"), (401, "auth_failure"), (422, "agent_refused")]
)
def test_a_request_that_the_agent_calls_wrong_ends_the_task(
    fleet: DrivenFleet, status: int, reason: str
) -> None:
    agent = fleet.agent()
    agent.script(post=status)
    task = fleet.task()
    fleet.drive()

    row = fleet.wait_for(task)

    assert (row["state"], row["failure_reason"]) == ("dead_lettered", reason)
    assert len(agent.journal("post")) == 1
    assert agent.starts() == []
    log = fleet.wait_for_log("final=true")
    assert re.search(r"queue=dispatch_failed .*attempt=1/3 final=true", log)


def test_two_errors_of_the_agent_are_retried_and_counted(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    agent.script(post=[500, 503, NORMAL])
    task = fleet.task()
    fleet.drive()

    row = fleet.wait_for(task)

    assert (row["state"], row["attempts"]) == ("completed", 3)
    assert fleet.outcomes(task) == ["failed", "failed", "completed"]
    assert agent.starts() == [f"{show_task(task)}:3"]


def test_three_errors_of_the_agent_are_final(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    agent.script(post=500)
    task = fleet.task()
    fleet.drive()

    row = fleet.wait_for(task)

    assert (row["state"], row["failure_reason"]) == ("dead_lettered", "agent_error")
    log = fleet.wait_for_log("final=true")
    failures = re.findall(r"queue=dispatch_failed .*attempt=(.*)", log)
    assert failures == ["1/3", "2/3", "3/3 final=true"]
    assert agent.starts() == []


def test_a_task_that_began_behind_an_error_is_withdrawn_before_the_next_run(
    fleet: DrivenFleet,
) -> None:
    agent = fleet.agent(slots=2)
    agent.script(post=[DO_AND_FAIL, NORMAL])
    task = fleet.task(payload={"seconds": 1})
    fleet.drive()

    assert fleet.wait_for(task)["state"] == "completed"
    first, second = f"{show_task(task)}:1", f"{show_task(task)}:2"
    assert agent.starts() == [first, second]
    lines = (agent.folder / "journal").read_text().splitlines()
    assert lines.index(f"delete {first}") < lines.index(f"start {second}")


def test_a_redirect_is_not_followed(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    agent.script(post=REDIRECT)
    task = fleet.task()
    fleet.drive()

    row = fleet.wait_for(task)

    assert (row["state"], row["failure_reason"]) == ("dead_lettered", "agent_refused")
    assert "the agent answered 307" in row["error"]


def test_an_agent_that_forgets_its_task_in_a_restart_has_crashed(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    task = fleet.task(payload={"seconds": 2})
    fleet.drive()
    agent.saw("start")

    agent.kill()
    agent.start()

    assert fleet.wait_for(task)["state"] == "completed"
    assert fleet.outcomes(task) == ["crash", "completed"]
    assert agent.starts() == [f"{show_task(task)}:1", f"{show_task(task)}:2"]


def test_a_task_that_ends_while_no_driver_runs_is_recorded_by_the_next_one(
    fleet: DrivenFleet,
) -> None:
    agent = fleet.agent(stale_after=timedelta(seconds=60))
    task = fleet.task(payload={"seconds": 1})
    driver = fleet.drive()
    agent.saw("start")

    driver.kill()
    agent.saw("end")
    fleet.drive()

    assert fleet.wait_for(task)["state"] == "completed"
    assert agent.starts() == [f"{show_task(task)}:1"]


def test_an_answer_of_fifty_megabytes_ends_the_task(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    agent.script(get=LARGE)
    task = fleet.task()
    fleet.drive()

    row = fleet.wait_for(task)

    assert (row["state"], row["failure_reason"]) == ("dead_lettered", "invalid_output")
    assert "larger than 1048576 bytes" in row["error"]
    assert row["attempts"] == 1
    assert len(agent.starts()) == 1


def test_answers_that_are_no_json_end_the_run_and_the_next_one_succeeds(
    fleet: DrivenFleet,
) -> None:
    agent = fleet.agent()
    agent.script(get=[GARBAGE, GARBAGE, GARBAGE, NORMAL])
    task = fleet.task()
    fleet.drive()

    row = fleet.wait_for(task)

    assert row["state"] == "completed"
    assert fleet.outcomes(task) == ["failed", "completed"]
    assert agent.journal("delete")[0] == f"{show_task(task)}:1"


def report(served: LiveApi, task: TaskId, token: str) -> int:
    """Report a task as completed, as an agent does, and return the status of the answer."""
    url = f"{served.url}/api/v1/tasks/{show_task(task)}/complete"
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.post(url, headers=headers, json={"output": "reported"}).status_code


def claim_token(fleet: DrivenFleet, task: TaskId) -> str:
    """Return the token of a task's claim, which the agent has got with the task."""
    row = fleet.deployment.row(task)
    return token_of(Claim(task, row["epoch"], row["token"]))


@pytest.fixture
def served(deployment: Deployment, database_url: str) -> Iterator[LiveApi]:
    with serve(deployment, database_url) as served:
        yield served


def test_an_agent_may_report_the_end_itself(fleet: DrivenFleet, served: LiveApi) -> None:
    agent = fleet.agent()
    task = fleet.task(payload={"seconds": 60})
    fleet.drive()
    agent.saw("start")

    assert report(served, task, claim_token(fleet, task)) == 200

    row = fleet.wait_for(task)
    assert (row["state"], row["output"]) == ("completed", "reported")
    assert agent.journal("delete") == []


def test_a_wrong_token_and_a_report_after_a_cancel_change_nothing(
    fleet: DrivenFleet, served: LiveApi
) -> None:
    agent = fleet.agent()
    task = fleet.task(payload={"seconds": 60})
    fleet.drive()
    agent.saw("start")
    token = claim_token(fleet, task)

    wrong = report(served, task, token[:-1] + ("0" if token[-1] != "0" else "1"))
    cancel(fleet.deployment.app, fleet.user, task, actor="user:test")
    fleet.wait_for(task)
    late = report(served, task, token)

    assert (wrong, late) == (401, 409)
    row = fleet.deployment.row(task)
    assert (row["state"], row["output"]) == ("cancelled", None)


def test_a_cancelled_task_is_stopped_at_its_agent(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    task = fleet.task(payload={"seconds": 60})
    fleet.drive()
    agent.saw("start")

    cancel(fleet.deployment.app, fleet.user, task, actor="user:test")

    assert fleet.wait_for(task)["state"] == "cancelled"
    assert agent.journal("delete") == [f"{show_task(task)}:1"]
    wait_until(lambda: agent.journal("end"), what="the agent to stop")


def test_a_task_that_exceeds_its_time_is_stopped_at_its_agent(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    task = fleet.task(payload={"seconds": 60}, timeout_seconds=2, max_attempts=1)
    fleet.drive()

    row = fleet.wait_for(task)

    assert (row["state"], row["failure_reason"]) == ("dead_lettered", "timeout")
    assert agent.journal("delete") == [f"{show_task(task)}:1"]


def test_a_removed_agent_gives_its_task_to_another_one(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    task = fleet.task(payload={"seconds": 2})
    fleet.drive()
    agent.saw("start")

    [row] = fleet.deployment.rows("SELECT id FROM agents")
    agents.leave(fleet.deployment.owner, fleet.user, row["id"])
    other = fleet.agent()

    assert fleet.wait_for(task)["state"] == "completed"
    assert fleet.outcomes(task) == ["interrupted", "completed"]
    assert len(other.starts()) == 1
    assert agent.journal("delete") == [f"{show_task(task)}:1"]


def test_a_draining_agent_finishes_its_task_and_gets_no_other(fleet: DrivenFleet) -> None:
    agent = fleet.agent()
    task = fleet.task(payload={"seconds": 1})
    fleet.drive()
    agent.saw("start")

    [row] = fleet.deployment.rows("SELECT id FROM agents")
    agents.drain(fleet.deployment.owner, fleet.user, row["id"])
    waiting = fleet.task()
    fleet.wait_for(task)
    other = fleet.agent()

    assert fleet.wait_for(waiting)["state"] == "completed"
    assert len(agent.starts()) == 1
    assert len(other.starts()) == 1


@pytest.mark.parametrize(
    "point",
    [
        "claim.before_commit",
        "start.before_commit",
        "start.after_commit",
        "heartbeat.before_commit",
        "heartbeat.after_commit",
        "settle.before_commit",
        "settle.after_commit",
    ],
)
def test_a_driver_killed_at_a_fault_point_is_continued_by_the_next(
    fleet: DrivenFleet, point: str
) -> None:
    agent = fleet.agent(stale_after=timedelta(seconds=60))
    task = fleet.task(payload={"seconds": 1})
    driver = fleet.drive(OVERNIGHT_FAULT=f"{point}=kill@{fleet.folder / 'struck'}")
    assert driver.wait(60) != 0

    fleet.drive()

    assert fleet.wait_for(task)["state"] == "completed"
    assert len(agent.starts()) == 1
    assert len(set(agent.journal("post"))) == 1


def test_a_driver_killed_while_it_sends_a_task_is_continued_by_the_next(
    fleet: DrivenFleet,
) -> None:
    agent = fleet.agent(stale_after=timedelta(seconds=60))
    agent.script(post=[DO_AND_HANG, FORGETFUL])
    task = fleet.task(payload={"seconds": 1})
    driver = fleet.drive()
    agent.saw("start")

    driver.kill()
    fleet.drive()

    assert fleet.wait_for(task)["state"] == "completed"
    assert agent.starts() == [f"{show_task(task)}:1"]


def test_a_driver_that_is_told_to_stop_leaves_its_runs_to_the_next(fleet: DrivenFleet) -> None:
    agent = fleet.agent(stale_after=timedelta(seconds=60))
    task = fleet.task(payload={"seconds": 1})
    driver = fleet.drive()
    agent.saw("start")

    driver.terminate()
    assert driver.wait(20) == 0
    fleet.drive()

    assert fleet.wait_for(task)["state"] == "completed"
    assert fleet.outcomes(task) == ["completed"]
    assert agent.starts() == [f"{show_task(task)}:1"]


def test_an_agent_in_a_silent_network_is_lost_and_later_told_to_stop(fleet: DrivenFleet) -> None:
    agent = fleet.agent(slots=2)
    task = fleet.task(payload={"seconds": 30})
    fleet.drive()
    agent.saw("start")

    agent.script(get=HANG, delete=HANG, health=HANG)
    other = fleet.agent()
    wait_until(lambda: fleet.state(task) and other.starts(), what="the run at the other agent")
    agent.script()

    wait_until(lambda: agent.journal("end"), what="the first run to be stopped", timeout=60)
    cancel(fleet.deployment.app, fleet.user, task, actor="user:test")
    fleet.wait_for(task)
