"""/metrics: what it counts, who may read it, and what it does not read."""

import re
import socket
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from overnight_server.control.agents import PullAgentDescription, register
from overnight_server.control.cancel import cancel
from overnight_server.control.edit import ANY, TaskEdit, edit
from overnight_server.control.keys import Caller, issue
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.priority import tier
from overnight_server.domain.results import Deferred, Lost, Raised, Returned, StoppedByBudget
from overnight_server.insight.metrics import METRICS
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.queue_metrics import count_new_events
from overnight_server.store.db import Db
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.metrics import Scrape, scrape


@pytest.fixture
def api(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as user:
        deployment.run("UPDATE users SET is_admin = true WHERE id = :id", id=user.user)
        yield user


def counted(deployment: Deployment, api: ApiUser) -> Scrape:
    """Count all events, and return what /metrics says then."""
    count_new_events(deployment.dispatcher)
    return scrape(api)


def set_priority(deployment: Deployment, user: UserId, task: TaskId, priority: int) -> None:
    edit(deployment.app, user, task, TaskEdit(priority=priority), editions=(ANY,), actor="test")


def depth_of_rows(deployment: Deployment) -> dict[tuple[str, str], float]:
    rows = deployment.rows(
        "SELECT state, priority, count(*) AS number"
        " FROM tasks WHERE finished_at IS NULL GROUP BY 1, 2"
    )
    depth: Counter[tuple[str, str]] = Counter()
    for row in rows:
        depth[row["state"], tier(row["priority"])] += row["number"]
    return dict(depth)


def test_every_name_is_served_with_its_labels_and_nothing_else(
    deployment: Deployment, api: ApiUser
) -> None:
    deployment.agent()
    run = deployment.running(api.user, type="resize", spec={"model": "opus"})
    deployment.settle(run, Returned(output=1, cost_usd=0.5))

    found = counted(deployment, api)

    assert set(found.help) == set(METRICS)
    for name, labels, _ in found.samples:
        assert set(labels) == set(METRICS[name].labels)


def test_runs_are_counted_by_type_reason_and_cost(deployment: Deployment, api: ApiUser) -> None:
    deployment.agent()
    user = api.user
    for _ in range(2):
        run = deployment.running(user, type="resize", spec={"model": "opus"})
        deployment.settle(run, Returned(cost_usd=0.25))
    deployment.settle(deployment.running(user, max_attempts=1), Raised("my_own_reason", "no"))
    deployment.settle(deployment.running(user, max_attempts=1), Raised("invalid_output", "no"))
    deployment.settle(deployment.running(user), Deferred(60))
    deployment.settle(deployment.running(user), Lost())
    cancel(deployment.app, user, deployment.task(user), actor="test")

    found = counted(deployment, api)

    assert found.value("tasks_completed_total", type="resize") == 2
    assert found.value("tasks_failed_total", reason="other") == 1
    assert found.value("tasks_failed_total", reason="invalid_output") == 1
    assert found.value("tasks_failed_total", reason="crash") == 1
    assert found.total("tasks_failed_total") == 3
    assert found.value("tasks_dead_lettered_total") == 2
    assert found.value("tasks_cancelled_total") == 1
    assert found.value("tasks_created_total") == 7
    assert found.value("overnight_claims_total") == 6
    assert found.value("overnight_runs_settled_total", outcome="completed") == 2
    assert found.value("task_cost_usd", type="resize", agent="test-host", model="opus") == 0.5
    assert found.value("daily_spend_usd") == 0.5
    assert found.value("agent_heartbeat_misses_total", agent_id="test-host") == 1
    assert found.value("agent_claim_success_rate", agent_id="test-host") == pytest.approx(2 / 6)


def test_a_budget_that_stops_a_run_counts_as_its_reason(
    deployment: Deployment, api: ApiUser
) -> None:
    deployment.agent()
    run = deployment.running(api.user, max_cost_usd=1)
    deployment.settle(run, StoppedByBudget(cost_usd=2))

    assert counted(deployment, api).value("tasks_failed_total", reason="budget") == 1


def test_the_depth_agrees_with_the_rows_whatever_changes(
    deployment: Deployment, api: ApiUser
) -> None:
    deployment.agent(slots=2)
    user = api.user
    tasks = [deployment.task(user, priority=priority) for priority in (5, 20, 50, 70, 90, 50)]
    deployment.claim(limit=2)
    set_priority(deployment, user, tasks[-1], 1)
    assert counted(deployment, api).depth() == depth_of_rows(deployment)

    set_priority(deployment, user, tasks[-1], 4)
    cancel(deployment.app, user, tasks[3], actor="test")
    deployment.move_clock(timedelta(minutes=5))
    promote(deployment.dispatcher)

    assert counted(deployment, api).depth() == depth_of_rows(deployment)
    assert sum(depth_of_rows(deployment).values()) == 5


def test_each_event_is_counted_once_by_any_number_of_passes(
    deployment: Deployment, api: ApiUser
) -> None:
    user = api.user
    deployment.task(user)

    assert count_new_events(deployment.dispatcher) == 1
    assert count_new_events(deployment.dispatcher) == 0
    deployment.task(user)
    assert counted(deployment, api).value("tasks_created_total") == 2


def test_an_event_that_commits_late_is_counted_when_it_is_visible(
    deployment: Deployment, api: ApiUser, connect: Callable[..., Db]
) -> None:
    deployment.task(api.user)
    task = deployment.task(api.user)
    count_new_events(deployment.dispatcher)
    with connect("slow").engine.begin() as slow:
        slow.execute(
            text("UPDATE tasks SET state = 'cancelled', finished_at = clock() WHERE id = :id"),
            {"id": task},
        )
        deployment.task(deployment.user())
        assert count_new_events(deployment.dispatcher) == 0

    assert counted(deployment, api).value("tasks_cancelled_total") == 1


def test_waits_are_those_of_claims_in_this_and_the_last_hour(
    deployment: Deployment, api: ApiUser
) -> None:
    deployment.agent()
    deployment.task(api.user)
    deployment.move_clock(timedelta(seconds=90))
    deployment.claim()

    found = counted(deployment, api)

    for label in ("p50", "p95", "p99"):
        assert found.value("task_queue_wait_seconds", quantile=label) == pytest.approx(90, rel=0.2)
    deployment.move_clock(timedelta(hours=3))
    assert counted(deployment, api).find("task_queue_wait_seconds") == {}


def test_types_beyond_the_limit_share_one_label(deployment: Deployment, api: ApiUser) -> None:
    deployment.agent(slots=1000)
    deployment.run(
        "INSERT INTO metric_totals SELECT 'completed', ARRAY['type-' || n], 1"
        " FROM generate_series(1, 200) n"
    )
    for name in ("one-more", "and-another", "type-7"):
        deployment.settle(deployment.running(api.user, type=name), Returned())

    found = counted(deployment, api)

    assert found.value("tasks_completed_total", type="other") == 2
    assert found.value("tasks_completed_total", type="type-7") == 2
    assert len(found.find("tasks_completed_total")) == 201


def test_only_an_admins_key_with_the_scope_may_read(deployment: Deployment, api: ApiUser) -> None:
    narrow = issue(deployment.app, api.user, name="prometheus", scopes=("metrics:read",))
    reader = issue(deployment.app, api.user, name="reader", scopes=("tasks:read",))
    somebody = api.new_user()

    def status(key: str | None) -> int:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return api.http.get("/metrics", headers=headers).status_code

    assert status(narrow) == 200
    assert [status(None), status(reader), status(somebody.key)] == [401, 403, 403]
    assert api.http.get("/api/v1/tasks", headers={"X-API-Key": narrow}).status_code == 403


def test_the_port_for_metrics_needs_no_key_and_serves_nothing_else(
    deployment: Deployment, database_url: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with serve_api(deployment, database_url, OVERNIGHT_METRICS_PORT=str(port)) as user:
        deployment.task(user.user)
        count_new_events(deployment.dispatcher)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/tasks")

    values = {sample.name: sample.value for family in families for sample in family.samples}
    assert values["tasks_created_total"] == 1


def test_two_api_processes_answer_alike(
    deployment: Deployment, database_url: str, api: ApiUser
) -> None:
    deployment.task(api.user)
    count_new_events(deployment.dispatcher)
    with serve_api(deployment, database_url) as other:
        deployment.run("UPDATE users SET is_admin = true WHERE id = :id", id=other.user)
        assert scrape(api).find("tasks_created_total") == scrape(other).find("tasks_created_total")


def test_live_figures_need_no_sweep(deployment: Deployment, api: ApiUser) -> None:
    deployment.agent(slots=2)
    user: UserId = api.user
    deployment.running(user)
    deployment.task(user)
    deployment.move_clock(timedelta(minutes=2))

    found = scrape(api)

    # A busy machine takes some seconds longer.
    assert 119 <= found.value("overnight_oldest_ready_seconds") < 240
    assert 89 <= found.value("overnight_lease_past_due_seconds") < 210
    assert found.value("overnight_slots_used") == 1
    assert found.value("agent_utilization", agent_id="test-host") == 0.5
    assert found.value("overnight_agent_silence_seconds", agent_id="test-host") > 110
    assert 0 < found.value("overnight_disk_free_ratio", place="temporary") <= 1


def test_agents_beyond_the_most_labels_are_one(deployment: Deployment, api: ApiUser) -> None:
    deployment.agent(slots=1)
    for _ in range(3):
        caller = Caller(deployment.user(), "", ())
        for number in range(70):
            name = f"{caller.user_id.hex[-12:]}-{number}"
            agent = PullAgentDescription(name, slots=1 + number % 2, budget_usd=1)
            register(deployment.dispatcher, caller, agent)
    deployment.running(api.user)

    found = scrape(api)

    names = found.find("overnight_agent_silence_seconds").keys()
    assert len(names) == 200
    assert {("test-host",), ("other",)} <= names
    # Those with the most slots have names of their own, and no budget is lost.
    assert found.total("budget_remaining_usd") == 210
    assert found.value("budget_remaining_usd", agent="other") == 12


def test_the_page_lists_every_metric_with_its_labels() -> None:
    page = Path(__file__).parents[2] / "docs/operations/metrics.md"
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| .+ \|$", page.read_text(), re.MULTILINE)

    documented = {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows}

    assert documented == {name: metric.labels for name, metric in METRICS.items()}
