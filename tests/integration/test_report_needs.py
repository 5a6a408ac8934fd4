"""What needs a person: counted to the last, with acts and commands that an owner can use."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from overnight.models.nights import NightReport
from overnight_server.control.budgets import set_dag_budget
from overnight_server.control.keys import issue
from overnight_server.domain.ids import DagId, TaskId, UserId, show_task
from overnight_server.domain.report_mail import render_report_mail
from overnight_server.domain.report_text import report_markdown, report_text
from overnight_server.domain.results import Raised, StoppedByBudget
from overnight_server.insight.report import MAX_NEEDS, night_report
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance.bulk import run_bulks
from tests.support.api_user import ApiUser, serve_api
from tests.support.browser import Browser, serve_dashboard
from tests.support.command import run
from tests.support.costs import beat, start_all
from tests.support.deployment import LIVENESS, LOOSE, Deployment
from tests.support.night import Night


@pytest.fixture
def owner(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    """A user who is no admin, with an API."""
    deployment.agent()
    with serve_api(deployment, database_url) as user:
        yield user


@pytest.fixture
def dashboard(owner: ApiUser, deployment: Deployment, database_url: str) -> Iterator[Browser]:
    """The dashboard of that user."""
    with serve_dashboard(database_url) as opened:
        opened.sign_in(issue(deployment.app, owner.user, name="laptop"))
        yield opened


def fail(deployment: Deployment, user: UserId, error: str = "no", **fields: object) -> TaskId:
    """Let a task fail for good."""
    one = deployment.running(user, max_attempts=1, **fields)
    assert deployment.settle(one, Raised("auth_failure", error, retryable=False))
    return one.claim.task_id


def report_of(deployment: Deployment, user: UserId) -> NightReport:
    return night_report(deployment.app, user, liveness=LIVENESS)


def test_the_commands_of_needs_work_for_their_owner_and_touch_nothing_else(
    owner: ApiUser, deployment: Deployment, empty_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.take_commands(monkeypatch)
    alike = [fail(deployment, owner.user, "the key is wrong") for _ in range(3)]
    other = fail(deployment, owner.user, "the account is locked", title="Read the papers")
    several, one = report_of(deployment, owner.user).needs

    assert one.title == "“Read the papers” was refused by a service"
    assert several.title == "3 tasks were refused by a service"
    assert one.act.command == f"overnight retry {show_task(other)}"
    retried = run(*one.act.command.split()[1:])
    assert retried.exit_code == 0, retried.stderr
    assert [deployment.state(task) for task in (*alike, other)] == ["dead_lettered"] * 3 + ["ready"]

    started = run(*several.act.command.split()[1:], "--yes", "--no-wait")
    assert started.exit_code == 0, started.stderr
    run_bulks(deployment.dispatcher)

    assert [deployment.state(task) for task in alike] == ["ready"] * 3


def test_a_list_can_be_limited_to_a_group_of_dead_letters(
    owner: ApiUser, deployment: Deployment
) -> None:
    wanted = fail(deployment, owner.user, "the key is wrong")
    fail(deployment, owner.user, "the account is locked")
    group = next(
        need.act.path.rpartition("/")[2]
        for need in report_of(deployment, owner.user).needs
        if need.task_ids == [show_task(wanted)]
    )

    found = owner.request("GET", f"/api/v1/tasks?fingerprint={group}").json()

    assert [task["id"] for task in found] == [show_task(wanted)]


def test_every_need_is_counted_although_few_are_listed(
    owner: ApiUser, deployment: Deployment
) -> None:
    kinds = [f"{chr(97 + number)} is wrong" for number in range(14)]
    for kind in kinds:
        fail(deployment, owner.user, kind)

    report = report_of(deployment, owner.user)
    _, text, html = render_report_mail(report)

    assert len(report.needs) == MAX_NEEDS
    assert report.needs_more == 4
    assert report.headline.endswith("14 things need you.")
    for rendering in (text, html, report_markdown(report)):
        assert "and 4 more needs" in rendering


def test_mail_and_markdown_say_how_many_entries_they_leave_out(
    owner: ApiUser, deployment: Deployment
) -> None:
    fail(deployment, owner.user)
    whole = report_of(deployment, owner.user)
    waiting = deployment.task(owner.user, title="Wait")
    postponed = report_of(deployment, owner.user).postponed
    cut = whole.model_copy(
        update={"postponed": postponed, "postponed_more": 7, "groups_more": 1, "needs_more": 2}
    )

    for rendering in (report_text(cut), report_markdown(cut), render_report_mail(cut)[2]):
        assert "and 7 more open tasks" in rendering
        assert "and 1 more ended task" in rendering
        assert "and 2 more needs" in rendering
    assert [task.id for task in postponed] == [show_task(waiting)]


def test_tasks_that_no_worker_can_run_are_not_counted_too_low(
    owner: ApiUser, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.agent(types=["echo"])
    for number in range(3):
        deployment.task(owner.user, title=f"task {number}", type="survey")
    [whole] = report_of(deployment, owner.user).needs
    monkeypatch.setattr("overnight_server.insight.night.MAX_TASKS", 2)

    [cut] = report_of(deployment, owner.user).needs

    assert whole.title == "3 tasks cannot start: no worker has a handler for the type"
    assert cut.title == "At least 2 tasks cannot start: no worker has a handler for the type"


def test_of_a_night_with_too_many_open_tasks_as_many_are_read_as_the_plan_has_slots(
    owner: ApiUser, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.agent(types=["echo"])
    for number in range(15):
        deployment.task(owner.user, title=f"task {number}", type="survey")
    monkeypatch.setattr("overnight_server.insight.night.MAX_TASKS", 12)
    monkeypatch.setattr("overnight_server.insight.night.SOME_OPEN", 1)

    report = report_of(deployment, owner.user)

    [need] = report.needs
    assert need.title == "At least 10 tasks cannot start: no worker has a handler for the type"
    assert report.night.is_partial
    assert report.night.tally.waiting == 15


def test_dependents_of_all_tasks_of_a_group_are_counted(
    owner: ApiUser, deployment: Deployment
) -> None:
    for _ in range(12):
        drafts = [NewTask("parent", "echo", max_attempts=1), NewTask("child", "echo")]
        submit_graph(deployment.app, owner.user, drafts, LOOSE, edges=[Edge(0, 1)])
    # The plan lets ten run at once.
    for _ in range(2):
        for one in start_all(deployment):
            deployment.settle(one, Raised("auth_failure", "no", retryable=False))

    [need] = report_of(deployment, owner.user).needs

    assert need.act.label == "Retry 12 tasks"
    assert need.if_ignored == "12 tasks that depend on them did not run and will not"


def test_a_single_dependent_is_told_in_the_singular(owner: ApiUser, deployment: Deployment) -> None:
    drafts = [NewTask("parent", "echo", max_attempts=1), NewTask("child", "echo")]
    submit_graph(deployment.app, owner.user, drafts, LOOSE, edges=[Edge(0, 1)])
    [one] = start_all(deployment)
    deployment.settle(one, Raised("auth_failure", "no", retryable=False))

    [need] = report_of(deployment, owner.user).needs

    assert need.if_ignored == "1 task that depends on it did not run and will not"


def test_the_page_of_dead_letters_counts_all_and_retries_many_with_an_operation(
    dashboard: Browser,
    owner: ApiUser,
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overnight_server.dashboard.screens.dead.MOST_GROUPS", 1)
    monkeypatch.setattr("overnight_server.dashboard.screens.dead.MOST_RESOLVED", 1)
    alike = [fail(deployment, owner.user, "the key is wrong") for _ in range(3)]
    other = fail(deployment, owner.user, "the account is locked")

    page = dashboard.open("/dead")
    assert "4 dead letters, 2 causes." in page.text
    assert "1 more cause when these are decided." in page.text
    [address] = {form["action"] for form in page.forms if form["action"].endswith("/retry")}
    page = dashboard.press(page, address)
    assert dashboard.toast().startswith("3 tasks will be retried")
    assert "Retry 3 tasks" in page.text
    run_bulks(deployment.dispatcher)

    assert [deployment.state(task) for task in alike] == ["ready"] * 3
    assert deployment.state(other) == "dead_lettered"
    # The page of a group finds it, however many larger groups there are.
    fail(deployment, owner.user, "the account is locked")
    assert "Retry 2 tasks" in dashboard.open("/dead").text


def test_more_letters_than_one_press_closes_are_closed_press_by_press(
    dashboard: Browser,
    owner: ApiUser,
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overnight_server.dashboard.screens.dead.MOST_RESOLVED", 2)
    for _ in range(3):
        fail(deployment, owner.user)
    address = report_of(deployment, owner.user).needs[0].act.path + "/rest"

    page = dashboard.open(address)
    assert "Close the newest 2 of 3" in page.text
    page = dashboard.press(page, address, note="not needed")
    assert dashboard.toast() == "2 dead letters closed. 1 more is left: close it next."
    dashboard.press(page, address, note="not needed")

    assert dashboard.toast() == "1 dead letter closed."


def asks_for_graph_money(deployment: Deployment, user: UserId) -> TaskId:
    """Let a task, whose runs cost about $2.40, use up the budget of its graph."""
    drafts = [NewTask(f"t{n}", "echo", estimated_cost_usd=2.4) for n in range(2)]
    submit_graph(deployment.app, user, drafts, LOOSE, budget_usd=3.0)
    [one] = start_all(deployment)
    beat(deployment, one, 3.0)
    deployment.settle(one, StoppedByBudget(cost_usd=3.0))
    return one.claim.task_id


def test_page_report_and_approvals_offer_what_the_next_run_needs(
    dashboard: Browser, owner: ApiUser, deployment: Deployment
) -> None:
    task = asks_for_graph_money(deployment, owner.user)
    way = f"/approvals/{show_task(task)}/approve"
    need = next(
        one for one in report_of(deployment, owner.user).needs if one.task_ids == [show_task(task)]
    )

    page = dashboard.open(f"/tasks/{show_task(task)}")

    assert need.act.label == "Allow $2.40 more"
    assert need.act.command == f"overnight approve {show_task(task)} --usd 2.4"
    assert "Allow $2.40 more" in page.text
    assert page.form(way)["usd"] == "2.40"
    assert dashboard.open("/approvals").form(way)["usd"] == "2.40"
    dashboard.press(dashboard.open("/"), way)
    assert dashboard.toast().startswith("$2.40 more are allowed")
    assert dashboard.last is not None
    assert dashboard.last.request.url.path == "/"


def test_a_budget_of_an_operator_has_no_button_and_says_who_can_raise_it(
    dashboard: Browser, owner: ApiUser, deployment: Deployment
) -> None:
    task = asks_for_graph_money(deployment, owner.user)
    dag: UUID = deployment.row(task)["dag_id"]
    set_dag_budget(deployment.app, DagId(dag), 2.0, actor="user:root")
    way = f"/approvals/{show_task(task)}/approve"

    page, home = dashboard.open(f"/tasks/{show_task(task)}"), dashboard.open("/")

    for shown in (page, home, dashboard.open("/approvals")):
        assert way not in [form["action"] for form in shown.forms]
    assert "an operator" in page.text
    assert "an operator set this budget and can raise it" in home.text


def test_needs_are_answered_on_the_home_page_itself(browser: Browser, night: Night) -> None:
    page = browser.open("/")
    assert "2 tasks are longer than the model can read" in page.text
    assert "context_overflow" not in page.text
    marks = {name: count_of(page.source, name) for name in ("morning", "approvals", "dead")}
    assert marks == {"morning": "2", "approvals": "1", "dead": "2"}
    [retry] = {form["action"] for form in page.forms if form["action"].startswith("/dead/")}

    page = browser.press(page, retry)

    assert browser.toast() == "2 tasks wait to run again."
    assert night.deployment.state(night.tasks["chapter 4"]) == "ready"
    assert count_of(page.source, "dead") == ""
    assert count_of(page.source, "morning") == "1"


def count_of(source: str, name: str) -> str:
    """Return the number beside a place of the navigation."""
    return source.split(f'id="mark:{name}"', 1)[1].split(">", 1)[1].split("<", 1)[0]
