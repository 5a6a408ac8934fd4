"""Improvement rules: bad figures file one task, until that task has ended."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from overnight import errors
from overnight_server.control.cancel import cancel
from overnight_server.control.rules import MAX_RULES
from overnight_server.domain.ids import TaskId, UserId, parse_rule, parse_task, show_task
from overnight_server.domain.results import Raised, Returned
from overnight_server.intake.rules import apply_rule
from overnight_server.maintenance.rules import apply_rules
from overnight_server.settings import Settings, load
from overnight_server.store.db import Db
from tests.support.api_user import NO_FILE, ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.rivals import Rival, meet_at_lane
from tests.support.workers import ROOT

RULES = "/api/v1/rules"


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    deployment.agent()
    with serve_api(deployment, database_url) as api_user:
        deployment.run("UPDATE users SET max_concurrent_agents = 100, max_pending = 1000")
        yield api_user


@pytest.fixture
def settings(database_url: str) -> Settings:
    return load({"OVERNIGHT_DATABASE_URL": database_url}, dotenv=NO_FILE)


def add(api_user: ApiUser, **fields: Any) -> dict[str, Any]:
    wanted = {"name": "rule", "figure": "failure_rate", "above": 0.4, "min_tasks": 2} | fields
    response = api_user.request("POST", RULES, json=wanted)
    assert response.status_code == 201, response.text
    rule: dict[str, Any] = response.json()
    return rule


def end(api_user: ApiUser, failures: int, *, completes: bool = True, **fields: Any) -> TaskId:
    """Let a task fail so often, and then complete or be dead-lettered."""
    deployment = api_user.deployment
    attempts = failures + completes
    task_id = deployment.task(api_user.user, max_attempts=max(attempts, 1), **fields)
    for n in range(attempts):
        deployment.run("UPDATE tasks SET retry_at = clock() WHERE state = 'retrying'")
        deployment.run("UPDATE tasks SET state = 'ready', retry_at = NULL WHERE state = 'retrying'")
        [claimed] = [one for one in deployment.claim().claims if one.claim.task_id == task_id]
        begun = deployment.start(claimed)
        assert begun is not None
        deployment.settle(begun, Raised("error", "no disk") if n < failures else Returned())
    return task_id


def filed(api_user: ApiUser) -> list[dict[str, Any]]:
    rows = api_user.deployment.rows(
        "SELECT id, title, payload, created_by, state, tags FROM tasks WHERE source = 'rule'"
        " ORDER BY id"
    )
    return [dict(row) for row in rows]


def figures(api_user: ApiUser, rule: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api_user.request("GET", f"{RULES}/{rule['id']}/figures").json()
    return found


def test_a_bad_figure_files_one_task_with_the_evidence(
    api_user: ApiUser, settings: Settings
) -> None:
    rule, db = add(api_user), api_user.deployment.dispatcher
    end(api_user, 0)
    assert apply_rules(db, settings) == 0
    worst = end(api_user, 2, completes=False)

    assert [figure["is_bad"] for figure in figures(api_user, rule)] == [True]
    assert [apply_rules(db, settings) for _ in range(3)] == [1, 0, 0]

    [task] = filed(api_user)
    assert task["title"] == "Improve type echo: failure_rate is 0.666667"
    assert (task["created_by"], task["tags"]) == ("rule:rule", ["self-improvement"])
    evidence = task["payload"]["evidence"]
    assert evidence["examples"][0] == show_task(worst)
    assert {name: evidence[name] for name in ("value", "tasks", "runs", "failures", "errors")} == {
        "value": 0.666667,
        "tasks": 2,
        "runs": 3,
        "failures": 2,
        "errors": ["no disk"],
    }
    [figure] = figures(api_user, rule)
    assert parse_task(figure["open_task_id"]) == task["id"]
    assert api_user.request("GET", RULES).json()[0]["last_task_id"] == figure["open_task_id"]


def test_the_next_task_is_filed_for_what_ends_after_the_last_one(
    api_user: ApiUser, settings: Settings
) -> None:
    add(api_user)
    db, deployment = api_user.deployment.dispatcher, api_user.deployment
    for _ in range(2):
        end(api_user, 1, completes=False)
    assert apply_rules(db, settings) == 1

    for _ in range(2):
        end(api_user, 1, completes=False)
    assert apply_rules(db, settings) == 0
    cancel(deployment.app, api_user.user, filed(api_user)[0]["id"], actor="human:me")
    # The failures until then have been dealt with.
    assert apply_rules(db, settings) == 0
    deployment.move_clock(timedelta(seconds=1))
    end(api_user, 1, completes=False)
    assert apply_rules(db, settings) == 0
    end(api_user, 1, completes=False)
    assert apply_rules(db, settings) == 1
    assert len(filed(api_user)) == 2


def test_a_filed_task_that_was_dead_lettered_is_open_until_it_is_resolved(
    api_user: ApiUser, settings: Settings
) -> None:
    add(api_user, task={"type": "fix", "max_attempts": 1})
    db, deployment = api_user.deployment.dispatcher, api_user.deployment
    for _ in range(2):
        end(api_user, 1, completes=False)
    assert apply_rules(db, settings) == 1
    [claimed] = deployment.claim().claims
    begun = deployment.start(claimed)
    assert begun is not None
    deployment.settle(begun, Raised("error", "no"))
    assert filed(api_user)[0]["state"] == "dead_lettered"
    deployment.move_clock(timedelta(seconds=1))
    for _ in range(2):
        end(api_user, 1, completes=False)

    assert apply_rules(db, settings) == 0
    with api_user.client() as client:
        client.dead_letters.cancel(show_task(filed(api_user)[0]["id"]))
    deployment.move_clock(timedelta(seconds=1))
    for _ in range(2):
        end(api_user, 1, completes=False)
    assert apply_rules(db, settings) == 1


@pytest.mark.parametrize(
    ("figure", "above", "value"),
    [("retries", 0.4, 0.5), ("cost_usd", 1.0, 1.5), ("duration_seconds", 25.0, 30.0)],
)
def test_each_figure_is_an_average_over_tasks(
    api_user: ApiUser, settings: Settings, figure: str, above: float, value: float
) -> None:
    rule = add(api_user, figure=figure, above=above)
    for failures in (0, 1):
        end(api_user, failures)
    api_user.deployment.run(
        "UPDATE tasks SET cost_usd = 1 + attempts - 1;"
        "UPDATE attempts SET ended_at = started_at + interval '20 seconds'"
    )

    [found] = figures(api_user, rule)

    assert (found["value"], found["is_bad"]) == (value, True)
    assert apply_rules(api_user.deployment.dispatcher, settings) == 1


def test_subjects_are_types_tags_or_agents(api_user: ApiUser, settings: Settings) -> None:
    by_tag = add(api_user, name="tags", by="tag", min_tasks=1)
    by_agent = add(api_user, name="agents", by="agent", min_tasks=1)
    one_type = add(api_user, name="type", by="type", subject="other", min_tasks=1)
    end(api_user, 1, completes=False, tags=("a", "b"))
    end(api_user, 0, tags=("b",))
    end(api_user, 0, type="other")
    api_user.deployment.run(
        "UPDATE tasks SET required_capabilities = '{agent:scribe}' WHERE 'a' = ANY (tags)"
    )

    seen = [
        [(each["subject"], each["value"]) for each in figures(api_user, rule)]
        for rule in (by_tag, by_agent, one_type)
    ]

    assert seen == [[("a", 1.0), ("b", 0.5)], [("scribe", 1.0)], [("other", 0.0)]]
    assert apply_rules(api_user.deployment.dispatcher, settings) == 3
    assert [task["payload"]["evidence"]["subject"] for task in filed(api_user)] == [
        "scribe",
        "a",
        "b",
    ]


def test_old_cancelled_and_foreign_tasks_do_not_count(
    api_user: ApiUser, settings: Settings
) -> None:
    rule = add(api_user, min_tasks=1, window_seconds=3600)
    deployment = api_user.deployment
    end(api_user, 1, completes=False)
    deployment.move_clock(timedelta(hours=2))
    other = api_user.new_user(max_concurrent_agents=100)
    end(other, 1, completes=False)
    cancel(deployment.app, api_user.user, deployment.task(api_user.user), actor="human:me")

    assert figures(api_user, rule) == []
    assert apply_rules(deployment.dispatcher, settings) == 0


def test_two_passes_at_once_file_one_task(
    api_user: ApiUser, settings: Settings, connect: Callable[..., Db]
) -> None:
    rule_id = parse_rule(add(api_user, min_tasks=1)["id"])
    end(api_user, 1, completes=False)
    user: UserId = api_user.user
    rivals = [
        Rival(connect, name, apply_rule, user, rule_id, settings) for name in ("first", "second")
    ]

    assert sorted(meet_at_lane(connect, user, *rivals)) == [0, 1]
    assert len(filed(api_user)) == 1


def test_a_rule_that_cannot_file_keeps_the_reason_and_stops_no_other(
    api_user: ApiUser, settings: Settings
) -> None:
    add(api_user, name="a-full", min_tasks=1, task={"title": "needs {{ /nothing }}"})
    add(api_user, name="b-good", min_tasks=1)
    end(api_user, 1, completes=False)

    assert apply_rules(api_user.deployment.dispatcher, settings) == 1

    problems = [rule["problem"] for rule in api_user.request("GET", RULES).json()]
    assert problems == ["task.title: the event has no /nothing", None]
    api_user.deployment.run("UPDATE users SET disabled_at = clock()")
    assert apply_rules(api_user.deployment.dispatcher, settings) == 0


def test_a_pass_that_stops_early_starves_nobody(
    api_user: ApiUser, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overnight_server.store.pass_limit.PASS_SECONDS", 0)
    users = [api_user, *(api_user.new_user() for _ in range(2))]
    api_user.deployment.run("UPDATE users SET max_concurrent_agents = 100, max_pending = 1000")
    for user in users:
        add(user, name="a", min_tasks=1)
        add(user, name="b", min_tasks=1, above=0.5)
        end(user, 1, completes=False)

    # Each pass applies one rule.
    passes = [apply_rules(api_user.deployment.dispatcher, settings) for _ in range(6)]

    assert passes == [1] * 6
    assert len(filed(api_user)) == 6


def test_a_wrong_rule_is_refused(api_user: ApiUser) -> None:
    add(api_user, name="taken")
    for fields, code in (
        ({"figure": "mood"}, "INVALID_REQUEST"),
        ({"above": -1}, "INVALID_REQUEST"),
        ({"by": "user"}, "INVALID_REQUEST"),
        ({"window_seconds": 1}, "INVALID_REQUEST"),
        ({"task": {"priorty": 1}}, "INVALID_TEMPLATE"),
        ({"task": {"title": "{{ subject }}"}}, "INVALID_TEMPLATE"),
        ({"name": "taken"}, "RULE_EXISTS"),
    ):
        wanted = {"name": "new", "figure": "retries", "above": 1} | fields
        assert api_user.request("POST", RULES, json=wanted).json()["code"] == code
    api_user.deployment.run(
        "INSERT INTO improvement_rules (id, user_id, name, figure, grouped_by, threshold,"
        " window_seconds, min_tasks, template, created_by)"
        " SELECT gen_random_uuid(), :u, 'r' || n, 'retries', 'type', 1, 1, 1, '{}', 'x'"
        "   FROM generate_series(2, :n) n",
        u=api_user.user,
        n=MAX_RULES,
    )
    more = {"name": "more", "figure": "retries", "above": 1}
    assert "50 rules already" in api_user.request("POST", RULES, json=more).text


def test_the_command_adds_checks_and_removes_rules(
    admin_cli: ApiUser, settings: Settings, tmp_path: Path
) -> None:
    admin_cli.deployment.agent()
    page = (ROOT / "docs/guides/rules.md").read_text()
    described = tmp_path / "task.yaml"
    described.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    limit = ("--figure", "failure_rate", "--above", "0.4", "--min-tasks", "1")

    added = run("rule", "add", "failing", str(described), *limit, "--window", "2d")
    assert added.exit_code == 0, added.output
    assert "failure_rate is above 0.4 in 48h00m" in added.stderr
    assert "No task has ended" in run("rule", "check", "failing").output
    end(admin_cli, 1, completes=False)
    assert "a task will be filed" in run("rule", "check", "failing").stdout
    assert apply_rules(admin_cli.deployment.dispatcher, settings) == 1
    assert "filed" in run("rule", "check", "failing").stdout
    assert filed(admin_cli)[0]["title"] == "echo fails in 1 of 1 runs"
    [listed] = json.loads(run("rule", "list", "--json").stdout)
    assert listed["task"]["payload"] == {"evidence": "{{ /evidence }}"}
    assert run("rule", "remove", listed["id"]).stdout == "failing removed\n"
    assert "No rules." in run("rule", "list").output
    with admin_cli.client() as client, pytest.raises(errors.RuleNotFound):
        client.rules.get(listed["id"])
