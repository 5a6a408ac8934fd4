"""The rows of the list of tasks: each says its own narrowest reason, and all are read together."""

import re
from collections.abc import Callable, Iterator
from datetime import time, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import Engine, event

from overnight.models.explain import Reason
from overnight_server.control.pauses import EVERYTHING, PauseSubject, pause
from overnight_server.control.windows import set_window
from overnight_server.dashboard.clocks import Clock
from overnight_server.dashboard.row_sentences import waiting_sentence
from overnight_server.domain.ids import TaskId, show_task
from overnight_server.domain.lifecycle import WAITING
from overnight_server.domain.reasons import ReasonCode
from overnight_server.domain.windows import NightWindow
from overnight_server.explain.audience import Audience
from overnight_server.explain.explain import explain, explain_many
from overnight_server.insight.tasks import get_tasks
from overnight_server.store import batched_statements
from tests.support.browser import Browser
from tests.support.deployment import CLAIM_SETTINGS
from tests.support.night import TYPES, Night

HOUR = timedelta(hours=1)
#: The night's user is an admin.
READER = Audience(is_operator=True)
ROW = re.compile(
    r'<tr id="row:(task_\w+)~[^"]*".*?<td class="why"><span class="clip">(.*?)</span></td>'
    r'\s*<td class="c-life">(.*?)</td>',
    re.DOTALL,
)
OF_TASKS = {
    ReasonCode.DEPENDENCY,
    ReasonCode.START_AT,
    ReasonCode.RETRY_AT,
    ReasonCode.APPROVAL,
    ReasonCode.DEADLINE,
    ReasonCode.LOCK,
}


def window_closed(night: Night) -> None:
    now = night.deployment.one("SELECT clock() AT TIME ZONE 'UTC' AS now")["now"]
    opens, closes = now + 3 * HOUR, now + 4 * HOUR
    window = NightWindow("UTC", time(opens.hour), time(closes.hour))
    set_window(night.deployment.app, night.user, window)


def paused(night: Night) -> None:
    pause(night.deployment.app, PauseSubject(user_id=night.user), actor=f"user:{night.user}")


def all_paused(night: Night) -> None:
    pause(night.deployment.app, EVERYTHING, actor="human:operator")


def run(sql: str) -> Callable[[Night], None]:
    return lambda night: night.deployment.run(sql)


# What holds tasks that have no reason of their own, and how it comes to be.
CAUSES: list[tuple[set[ReasonCode], Callable[[Night], None]]] = [
    ({ReasonCode.HANDLER, ReasonCode.NO_CAPABLE_AGENT}, lambda _: None),
    ({ReasonCode.WINDOW}, window_closed),
    ({ReasonCode.PAUSED}, paused),
    ({ReasonCode.PAUSED, ReasonCode.HANDLER, ReasonCode.NO_CAPABLE_AGENT}, all_paused),
    ({ReasonCode.MONTHLY_HOURS}, run("UPDATE users SET monthly_agent_hours_limit = 0")),
    ({ReasonCode.PLAN_CONCURRENCY}, run("UPDATE users SET max_concurrent_agents = 1")),
    ({ReasonCode.BUDGET}, run("UPDATE users SET night_budget_usd = 0")),
    ({ReasonCode.NO_WORKER}, run("UPDATE agents SET status = 'offline'")),
    (
        {ReasonCode.SLOTS, ReasonCode.HANDLER, ReasonCode.NO_CAPABLE_AGENT},
        run("UPDATE agents SET slots = 1"),
    ),
]


def add_tasks(night: Night) -> None:
    """Add tasks that wait for what no task of the night waits for."""
    deployment, user = night.deployment, night.user
    wanted: dict[str, dict[str, Any]] = {
        "plain": {"type": "code"},
        "timed": {
            "type": "code",
            "start_at": deployment.one("SELECT clock() AS now")["now"] + HOUR,
        },
        "late": {
            "type": "code",
            "deadline_at": deployment.one("SELECT clock() AS now")["now"] + HOUR / 60,
        },
        "needy": {"type": "code", "required_capabilities": ["gpu"]},
    }
    night.tasks = dict(night.tasks)
    for name, fields in wanted.items():
        night.tasks[name] = deployment.task(user, title=name, **fields)
    deployment.move_clock(HOUR / 30)
    deployment.agent(slots=4, types=TYPES)


@pytest.mark.parametrize(
    ("codes", "cause"), CAUSES, ids=["-".join(sorted(codes)) for codes, _ in CAUSES]
)
def test_each_row_says_the_narrowest_reason_of_explain(
    browser: Browser, night: Night, codes: set[ReasonCode], cause: Callable[[Night], None]
) -> None:
    add_tasks(night)
    cause(night)
    deployment, user = night.deployment, night.user
    ids = [task for task in night.tasks.values() if deployment.state(task) in WAITING]

    rows = {task: why for task, why, _ in ROW.findall(browser.open("/tasks?tab=waiting").source)}

    expected: dict[TaskId, list[Reason]] = {}
    for task in ids:
        found = explain(deployment.app, user, task, CLAIM_SETTINGS, READER).reasons
        expected[task] = [one for one in found if one.code != ReasonCode.BEHIND]
    many = explain_many(deployment.app, user, ids, CLAIM_SETTINGS, READER)
    assert many == expected
    assert {one.code for reasons in expected.values() for one in reasons[:1]} == OF_TASKS | codes
    tasks = get_tasks(deployment.app, user, ids)
    titles = {show_task(row["id"]): row["title"] for row in deployment.rows("SELECT * FROM tasks")}
    clock = Clock(deployment.one("SELECT clock() AS now")["now"], "UTC")
    assert rows == {
        show_task(task): str(waiting_sentence(tasks[show_task(task)], reasons, titles, clock))
        for task, reasons in expected.items()
    }


def test_the_search_for_a_cause_finds_the_tasks_that_it_holds_back(
    browser: Browser, night: Night
) -> None:
    add_tasks(night)
    wanted = {"handler": "waiting", "no_capable_agent": "needy", "deadline": "late"}

    found = {
        code: {task for task, _, _ in ROW.findall(browser.open(f"/tasks?q=waits:{code}").source)}
        for code in [*wanted, "window", "lock"]
    }

    assert {code: {night.id(name)} for code, name in wanted.items()} == {
        code: found[code] for code in wanted
    }
    assert (found["window"], found["lock"]) == (set(), {night.id("locked")})


def test_the_search_for_a_cause_looks_beyond_the_first_page(browser: Browser, night: Night) -> None:
    for _ in range(60):
        night.deployment.task(night.user, type="code")

    page = browser.open("/tasks?q=waits:handler")

    assert [task for task, _, _ in ROW.findall(page.source)] == [night.id("waiting")]


def test_tasks_that_do_not_wait_and_tasks_of_others_have_no_reasons(night: Night) -> None:
    stranger = night.deployment.user()
    ids = list(night.tasks.values())

    found = explain_many(night.deployment.app, night.user, ids, CLAIM_SETTINGS)

    assert night.tasks["port"] not in found
    assert night.tasks["waiting"] in found
    assert explain_many(night.deployment.app, stranger, ids, CLAIM_SETTINGS) == {}
    assert explain_many(night.deployment.app, night.user, [], CLAIM_SETTINGS) == {}


def test_a_life_line_paints_each_wait_with_its_cause(browser: Browser, night: Night) -> None:
    lives = {task: life for task, _, life in ROW.findall(browser.open("/tasks").source)}

    painted = {
        name: set(re.findall(r'<rect class="(w-\w+)"', lives[night.id(name)]))
        for name in ("drop", "locked", "asks", "limited", "waiting", "port")
    }

    assert {"w-dep"} == painted["drop"]
    assert {"w-lock"} == painted["locked"]
    assert "w-budget" in painted["asks"]
    assert "w-dep" in painted["port"]
    assert "w-queue" in painted["waiting"]
    assert re.search(
        r'aria-label="Drop the old tables: waited [^"]*\(other tasks ', lives[night.id("drop")]
    )
    assert re.search(r'<rect class="b b-run"', lives[night.id("port")])


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The statements that are sent to Postgres; a batch is one."""
    sent: list[str] = []
    send = batched_statements._send

    def send_and_note(*arguments: Any) -> Any:
        sent.append("batch")
        return send(*arguments)

    def note(_connection: object, _cursor: object, sql: str, *_: object) -> None:
        sent.append(sql)

    monkeypatch.setattr(batched_statements, "_send", send_and_note)
    event.listen(Engine, "before_cursor_execute", note)
    yield sent
    event.remove(Engine, "before_cursor_execute", note)


def test_the_number_of_rows_does_not_change_the_number_of_statements(
    browser: Browser, night: Night, statements: list[str]
) -> None:
    def count(path: str, fields: list[tuple[str, str]]) -> int:
        response = browser.http.get(f"{path}?{urlencode(fields)}")
        assert response.status_code == 200
        assert all(value in response.text for _, value in fields[1:])
        statements.clear()
        browser.http.get(f"{path}?{urlencode(fields)}")
        return len(statements)

    some = {night.id(name) for name in ("drop", "locked", "waiting", "port")}
    rows = [("for", one) for one in browser.open("/tasks").ids if one.startswith("row:")]
    ids = [("id", show_task(task)) for task in night.tasks.values()]
    pick = ("act", "cancel")

    assert len(rows) == len(ids) > 10
    assert count("/parts", rows) == count("/parts", [one for one in rows if one[1][4:35] in some])
    assert count("/tasks/selected", [pick, *ids]) == count("/tasks/selected", [pick, *ids[:2]])
