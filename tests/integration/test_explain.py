"""Explain: each reason in a real database."""

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner

from overnight.errors import TaskNotFound
from overnight.models.enums import AtClosing, PlanTier
from overnight.models.explain import Reason
from overnight_server.cli.main import app
from overnight_server.control.cancel import cancel
from overnight_server.control.pauses import EVERYTHING, PauseSubject, pause
from overnight_server.control.users import disable_user
from overnight_server.control.windows import set_window
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.reasons import ReasonCode
from overnight_server.domain.results import Raised, Returned
from overnight_server.domain.windows import NightWindow
from overnight_server.explain.audience import OPERATOR, OWNER, Audience
from overnight_server.explain.explain import explain
from overnight_server.gate.claim import BundleLimits, ClaimSettings
from overnight_server.insight.queue_status import queue_status
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from tests.rules.sources import read
from tests.rules.test_docs import FENCE
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import CLAIM_SETTINGS, CLAIM_TTL, LIVENESS, LOOSE, POOL, Deployment
from tests.support.stub_service import KEY, stub_service

PAGE = Path("docs/guides/explain.md")
NIGHT = NightWindow("Europe/Berlin", time(22), time(6))
# Noon and late evening in that zone.
NOON = datetime(2026, 11, 16, 11, 0, tzinfo=UTC)
EVENING = datetime(2026, 11, 16, 20, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url, OVERNIGHT_WORKER_LIVENESS="300") as opened:
        yield opened


def reasons(
    deployment: Deployment, user: UserId, task: UUID, claim_settings: ClaimSettings = CLAIM_SETTINGS
) -> dict[str, Reason]:
    listed_reasons = explain(deployment.app, user, TaskId(task), claim_settings).reasons
    return {reason.code: reason for reason in listed_reasons}


def only(
    deployment: Deployment, user: UserId, task: UUID, claim_settings: ClaimSettings = CLAIM_SETTINGS
) -> Reason:
    """Return the only reason."""
    [reason] = reasons(deployment, user, task, claim_settings).values()
    return reason


def test_a_task_without_reasons_is_claimed_next(
    deployment: Deployment,
) -> None:
    deployment.agent()
    user = deployment.user()
    task = deployment.task(user)

    view = explain(deployment.app, user, task, CLAIM_SETTINGS)

    assert (view.reasons, view.starts_next, view.queue_position) == ([], True, 1)
    assert [claimed.claim.task_id for claimed in deployment.claim().claims] == [task]


def test_another_users_task_is_not_found(deployment: Deployment) -> None:
    task = deployment.task(deployment.user())

    with pytest.raises(TaskNotFound):
        explain(deployment.app, deployment.user(), task, CLAIM_SETTINGS)


def test_a_dependency_names_the_tasks_it_waits_for(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    tasks = [NewTask(title="t", type="echo") for _ in range(3)]
    first, second, last = submit_graph(
        deployment.app, user, tasks, LOOSE, edges=[Edge(0, 2), Edge(1, 2)]
    )

    reason = only(deployment, user, last.task_id)

    assert reason.code == "dependency"
    assert reason.details["unmet"] == 2
    assert {task["id"] for task in reason.details["tasks"]} == {
        show_task(first.task_id),
        show_task(second.task_id),
    }
    assert "it waits for 2 other tasks" in reason.message


def test_a_retry_says_when_and_how_many_attempts_are_spent(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user)
    deployment.settle(run, Raised("error", "no luck"))

    reason = only(deployment, user, run.claim.task_id)

    assert reason.code == "retry_at"
    assert reason.details["retry_at"] == deployment.row(run.claim.task_id)["retry_at"]
    assert "1 of 3 attempts are spent" in reason.message


def test_a_deadline_that_passed_is_a_reason(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    now = deployment.one("SELECT clock() AS now")["now"]
    task = deployment.task(user, deadline_at=now + HOUR)
    deployment.move_clock(2 * HOUR)

    assert only(deployment, user, task).code == "deadline"


@pytest.mark.parametrize("scope", ["user", "pool", "all"])
def test_a_pause_says_since_when_and_why(deployment: Deployment, scope: str) -> None:
    deployment.agent()
    user = deployment.user(name="ada")
    task = deployment.task(user)
    target = {
        "user": PauseSubject(user_id=user),
        "pool": PauseSubject(pool=POOL),
        "all": EVERYTHING,
    }[scope]
    pause(deployment.app, target, actor="human:operator", note="new keys")

    reason = only(deployment, user, task)

    assert (reason.code, reason.details["scope"]) == ("paused", scope)
    assert reason.scope == ("user" if scope == "user" else "deployment")
    assert "(new keys)" in reason.message
    assert reason.message.endswith(": ask an operator to end the pause")
    to_operator = explain(deployment.app, user, task, CLAIM_SETTINGS, OPERATOR).reasons[0].message
    assert f": end the pause with `overnight resume --{scope}" in to_operator


def test_a_users_own_pause_names_the_command_that_ends_it(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(name="ada")
    task = deployment.task(user)
    pause(deployment.app, PauseSubject(user_id=user), actor=f"user:{user}")

    own = only(deployment, user, task).message
    pause(deployment.app, PauseSubject(user_id=user), actor="human:operator")

    assert own.startswith("your tasks are paused since")
    assert own.endswith("end the pause with `overnight resume --me`")
    assert "--me" not in only(deployment, user, task).message


def test_a_paused_pool_is_no_reason_if_another_pool_can_run_the_task(
    deployment: Deployment,
) -> None:
    deployment.agent()
    deployment.agent(agent_id="other", pool="other")
    user = deployment.user()
    task = deployment.task(user)

    pause(deployment.app, PauseSubject(pool=POOL), actor="human:operator")

    assert not reasons(deployment, user, task)


def test_a_closed_window_says_when_it_opens(deployment: Deployment) -> None:
    deployment.set_clock(NOON)
    deployment.agent()
    user = deployment.user()
    set_window(deployment.app, user, NIGHT)
    task = deployment.task(user)

    reason = only(deployment, user, task)

    assert reason.code == "window"
    assert reason.message == (
        "the night window 22:00-06:00 Europe/Berlin opens at 2026-11-16 21:00Z: wait, or set"
        " another window with `overnight window`"
    )
    assert reason.details["opens_at"] == datetime(2026, 11, 16, 21, 0, tzinfo=UTC)


def test_a_window_that_has_just_opened_is_no_reason(deployment: Deployment) -> None:
    deployment.set_clock(NOON)
    deployment.agent()
    user = deployment.user()
    set_window(deployment.app, user, NIGHT)
    task = deployment.task(user)

    deployment.set_clock(EVENING + 2 * HOUR)

    assert not reasons(deployment, user, task)


def test_with_continue_only_tasks_created_after_closing_wait(deployment: Deployment) -> None:
    deployment.set_clock(NOON - 7 * HOUR)
    deployment.agent()
    user = deployment.user()
    set_window(
        deployment.app, user, NightWindow("Europe/Berlin", time(22), time(6), AtClosing.CONTINUE)
    )
    early = deployment.task(user)
    deployment.set_clock(NOON)
    late = deployment.task(user)

    assert not reasons(deployment, user, early)
    assert only(deployment, user, late).code == "window"


def test_an_unknown_time_zone_is_reported(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(window_zone="Mars/Base", window_from=time(22), window_to=time(6))
    task = deployment.task(user)

    reason = only(deployment, user, task)

    assert reason.code == "window"
    assert "does not know its time zone" in reason.message
    assert reason.details["opens_at"] is None


def test_a_disabled_user_gets_another_message_than_a_limit_of_zero(deployment: Deployment) -> None:
    deployment.agent()
    user, none = deployment.user(), deployment.user(max_concurrent_agents=0)
    disable_user(deployment.app, user)

    assert "to enable the user" in only(deployment, user, deployment.task(user)).message
    assert "to raise the limit" in only(deployment, none, deployment.task(none)).message


def test_a_full_plan_reports_running_and_allowed_tasks(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(max_concurrent_agents=1)
    deployment.running(user)

    reason = only(deployment, user, deployment.task(user))

    assert (reason.code, dict(reason.details)) == (
        "plan_concurrency",
        {"active": 1, "max_active": 1},
    )


def test_hours_report_need_rest_and_advice(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(PlanTier.PRO, monthly_agent_hours_limit=1)
    deployment.run(
        "INSERT INTO usage_ledger (user_id, period_started_at, kind, seconds)"
        " SELECT user_id, cycle_started_at, 'adjustment', 2400 FROM lanes WHERE user_id = :id",
        id=user,
    )
    task = deployment.task(user, timeout_seconds=1800)
    small = deployment.task(user, timeout_seconds=1200)

    reason = only(deployment, user, task)

    resets = deployment.lane(user)["resets_at"]
    assert reason.message == (
        f"needs 30 min, 20 min left until {resets:%Y-%m-%d %H:%MZ}: wait, or lower its timeout with"
        " `overnight edit --timeout`"
    )
    assert reason.details["left_seconds"] == 1200
    assert not reasons(deployment, user, small)


def test_a_timeout_longer_than_the_month_is_reported(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(PlanTier.PRO, monthly_agent_hours_limit=1)
    task = deployment.task(user, timeout_seconds=7200)

    assert "more than the 1 h of a whole month" in only(deployment, user, task).message


def test_used_up_hours_and_a_limit_of_zero_are_reported(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(monthly_agent_hours_limit=1)
    task = deployment.task(user, timeout_seconds=60)
    deployment.run("UPDATE lanes SET used_seconds = 3600")
    assert only(deployment, user, task).message.startswith(
        "the month's 1 h are used up: the next month begins at"
    )

    deployment.run("UPDATE users SET monthly_agent_hours_limit = 0")
    assert only(deployment, user, task).message.startswith(
        "your limit is 0 hours a month: ask an operator to raise the limit"
    )


def test_a_limit_of_zero_tasks_is_reported(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(max_concurrent_agents=0)

    assert only(deployment, user, deployment.task(user)).message.startswith(
        "your limit is 0 tasks at once"
    )


def test_hours_reserved_for_a_run_are_reported(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(PlanTier.PRO, monthly_agent_hours_limit=1)
    deployment.running(user, timeout_seconds=1800)
    task = deployment.task(user, timeout_seconds=3000)

    assert "reserved for running tasks" in only(deployment, user, task).message


def test_a_lock_names_its_holder_and_since_when(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, locks=["path:src"])
    task = deployment.task(user, locks=["path:src/a", "repo:site"])

    reason = only(deployment, user, task)

    assert reason.code == "lock"
    assert reason.details["key"] == "path:src"
    assert reason.details["held_by"] == show_task(run.claim.task_id)
    assert reason.details["since"] == deployment.row(run.claim.task_id)["claimed_at"]


def test_a_later_task_is_behind_for_a_slot(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    user = deployment.user()
    first, second = deployment.task(user), deployment.task(user)

    reason = only(deployment, user, second)

    assert not reasons(deployment, user, first)
    assert (reason.code, reason.details["for"]) == ("behind", "slots")
    assert reason.details["own_tasks_first"] == [show_task(first)]
    assert reason.message == (
        f"1 slot is free in the pool default for all users, and of your tasks {show_task(first)}"
        " goes first"
    )


def test_another_user_who_waited_longer_goes_first(deployment: Deployment) -> None:
    deployment.agent(slots=2)
    greedy, other = deployment.user(), deployment.user()
    deployment.running(greedy)
    mine, theirs = deployment.task(greedy), deployment.task(other)

    reason = only(deployment, greedy, mine)

    assert not reasons(deployment, other, theirs)
    assert (reason.code, reason.details["for"], reason.details["place"]) == ("behind", "slots", 2)
    assert "1 slot is free in the pool default and the task is number 2" in reason.message


def test_the_last_place_of_the_plan_goes_to_the_higher_priority(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(max_concurrent_agents=1)
    urgent, calm = deployment.task(user, priority=5), deployment.task(user)

    reason = only(deployment, user, calm)

    assert reason.details["for"] == "room"
    assert reason.message == (
        f"your plan has room for 1 more at once, and {show_task(urgent)} goes first: wait, or make"
        " this task more urgent with `overnight edit --priority`"
    )


def test_a_lock_taken_by_another_task_in_the_same_pass_is_reported(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    first, second = (deployment.task(user, locks=["repo:site"]) for _ in range(2))

    assert not reasons(deployment, user, first)
    assert only(deployment, user, second).details["for"] == "lock"


def test_hours_reserved_by_another_task_in_the_same_pass_are_reported(
    deployment: Deployment,
) -> None:
    deployment.agent()
    user = deployment.user(PlanTier.PRO, monthly_agent_hours_limit=1)
    first, second = (deployment.task(user, timeout_seconds=2400) for _ in range(2))

    assert not reasons(deployment, user, first)
    assert only(deployment, user, second).details["for"] == "hours"


def test_lanes_without_a_task_for_the_pool_are_not_counted_ahead(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    for _ in range(15):
        deployment.task(deployment.user(), required_capabilities=["gpu"])
    late = deployment.user()
    deployment.run("UPDATE lanes SET last_served_at = clock() WHERE user_id = :id", id=late)
    task = deployment.task(late)

    assert not reasons(deployment, late, task)
    assert [claimed.claim.task_id for claimed in deployment.claim().claims] == [task]


def test_a_lane_that_the_pool_skips_is_reported(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    task = deployment.task(user)
    deployment.run(
        "UPDATE lanes SET skipped_by_pools = ARRAY[:pool] WHERE user_id = :id", pool=POOL, id=user
    )

    reason = only(deployment, user, task)

    assert reason.details["for"] == "lane"
    assert "found nothing to start in your queue" in reason.message
    assert not deployment.claim().claims


def test_quick_tasks_that_share_a_slot_are_not_behind_each_other(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    deployment.run("INSERT INTO type_durations (type, seconds) VALUES ('quick', 0.05)")
    user = deployment.user()
    tasks = [deployment.task(user, type="quick") for _ in range(6)]
    claim_settings = ClaimSettings(CLAIM_TTL, LIVENESS, bundle_limits=BundleLimits(0.25, 100))

    held = [task for task in tasks if reasons(deployment, user, task, claim_settings)]

    assert held == tasks[5:]


def test_running_and_ended_tasks_report_their_state(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user)
    running = only(deployment, user, run.claim.task_id)
    cancel(deployment.app, user, run.claim.task_id, actor="user")
    stopping = only(deployment, user, run.claim.task_id)
    deployment.settle(run, Returned())
    ended = only(deployment, user, run.claim.task_id)

    assert {running.code, stopping.code, ended.code} == {"state"}
    assert "it is running since" in running.message
    assert "it was requested to stop at" in stopping.message
    assert "it completed at" in ended.message


def test_every_reason_is_reported_from_the_narrowest_to_the_widest(deployment: Deployment) -> None:
    user = deployment.user(max_concurrent_agents=1, night_budget_usd=0)
    deployment.agent(slots=1)
    held = deployment.row(deployment.task(user, locks=["repo:site"]))["id"]
    deployment.run("UPDATE users SET night_budget_usd = NULL")
    assert [claimed.claim.task_id for claimed in deployment.claim().claims] == [held]
    task = deployment.task(user, locks=["repo:site"])
    deployment.run("UPDATE users SET night_budget_usd = 0")
    pause(deployment.app, EVERYTHING, actor="human:operator")
    pause(deployment.app, PauseSubject(user_id=user), actor="human:operator")

    explained = explain(deployment.app, user, task, CLAIM_SETTINGS).reasons

    assert [(reason.scope, reason.code) for reason in explained] == [
        ("task", "lock"),
        ("user", "budget"),
        ("user", "plan_concurrency"),
        ("user", "paused"),
        ("deployment", "slots"),
        ("deployment", "paused"),
    ]
    status = queue_status(deployment.app, user, CLAIM_SETTINGS)
    assert [block.code for block in status.held_by] == [
        reason.code for reason in explained if reason.scope != "task"
    ]


def test_an_operator_and_an_owner_are_told_what_each_can_do(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    user = deployment.user(max_concurrent_agents=1, name="ada")
    failed = deployment.running(user, max_attempts=1)
    waiting = deployment.task(user)

    def advice(task: TaskId, audience: Audience) -> list[str]:
        explained = explain(deployment.app, user, task, CLAIM_SETTINGS, audience)
        return [reason.message for reason in explained.reasons]

    plan, slots = advice(waiting, OWNER)
    assert plan.startswith("1 of the 1 task your plan allows at once is running")
    assert plan.endswith("or ask an operator to raise the limit")
    assert slots.endswith("or ask an operator to start another worker")
    plan, slots = advice(waiting, OPERATOR)
    assert plan.startswith("1 of the 1 task the user's plan allows at once is running")
    assert plan.endswith("or raise the limit with `overnight user limits`")
    assert slots.endswith("or start another worker with `overnight worker`")

    deployment.settle(failed, Raised("error", "no luck"))
    [own] = advice(failed.claim.task_id, OWNER)
    assert own.endswith(": run it again with `overnight retry`")
    [other] = advice(failed.claim.task_id, OPERATOR)
    assert other.endswith(": run it again with `overnight dead retry`")


def test_the_advice_depends_on_the_caller(admin_cli: ApiUser, deployment: Deployment) -> None:
    """An admin may explain an own task, and one of somebody else; an owner only own ones."""
    other = admin_cli.new_user()
    task, own = other.created()["id"], admin_cli.created()["id"]

    def advice(caller: ApiUser, path: str) -> str:
        return str(caller.request("GET", path).json()["reasons"][0]["message"])

    ask = "no worker is alive: ask an operator to start one"
    start = "no worker is alive: start one with `overnight worker`"
    assert advice(other, f"{TASKS}/{task}/explain") == ask
    assert advice(admin_cli, f"{TASKS}/{own}/explain") == start
    assert advice(admin_cli, f"/api/v1/admin/tasks/{task}/explain") == start


def test_only_the_owner_gets_an_explanation(api_user: ApiUser) -> None:
    task = api_user.created()
    path = f"{TASKS}/{task['id']}/explain"

    reported = api_user.request("GET", path)
    refused = api_user.new_user().request("GET", path)
    unknown = api_user.request("GET", f"{TASKS}/{show_task(uuid4())}/explain")

    assert reported.status_code == 200
    assert reported.json()["starts_next"] is False
    assert [reason["code"] for reason in reported.json()["reasons"]] == ["no_worker"]
    assert (refused.status_code, unknown.status_code) == (404, 404)
    assert api_user.client().tasks.explain(task["id"]).reasons[0].code == "no_worker"


def test_the_example_of_the_page_is_what_the_command_prints(
    api_user: ApiUser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_user.deployment.set_clock(EVENING)
    api_user.deployment.agent()
    ada = api_user.new_user(**_free_plan())
    holder = ada.created(project_id="site")["id"]
    assert api_user.deployment.claim().claims
    task = ada.created(project_id="site")["id"]
    answer = ada.request("GET", f"{TASKS}/{task}/explain").json()

    with stub_service() as service:
        service.on(f"GET /api/v1/tasks/{task}/explain", (200, answer))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OVERNIGHT_URL", service.url)
        monkeypatch.setenv("OVERNIGHT_API_KEY", KEY)
        printed = CliRunner().invoke(app, ["explain", task], prog_name="overnight")

    [shown] = [text for kind, text in FENCE.findall(read(PAGE)) if not kind]
    assert printed.stdout == shown.replace("<TASK>", task).replace("<HOLDER>", holder)


def test_the_page_has_every_reason_and_no_other() -> None:
    rows = [line.split("|")[1].strip() for line in read(PAGE).splitlines() if line[:3] == "| `"]

    assert rows == [f"`{code}`" for code in ReasonCode]


def _free_plan() -> dict[str, Any]:
    return {"max_concurrent_agents": 1, "monthly_agent_hours_limit": 10}
