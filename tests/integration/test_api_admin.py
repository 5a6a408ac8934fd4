"""Admin routes: users, workers, locks, pauses and fairness."""

from collections.abc import Iterator
from typing import Any

import pytest

from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Returned
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import AGENT, Deployment

ADMIN = "/api/v1/admin"


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


@pytest.fixture
def admin(api_user: ApiUser) -> ApiUser:
    return api_user.new_user(is_admin=True)


def test_a_user_is_created_listed_and_read(admin: ApiUser) -> None:
    made = admin.request("POST", f"{ADMIN}/users", json={"name": "ada", "plan": "pro"})

    assert made.status_code == 201, made.text
    user = made.json()
    assert (user["name"], user["plan"], user["max_concurrent_agents"]) == ("ada", "pro", 3)
    assert admin.request("GET", made.headers["location"]).json() == user
    assert admin.request("GET", f"{ADMIN}/users/ada").json() == user
    first = admin.request("GET", f"{ADMIN}/users", params={"limit": 1})
    rest = admin.request("GET", first.headers["link"][1:].split(">")[0])
    assert [item["name"] for item in first.json()] == ["ada"]
    assert rest.json()[0]["name"] > "ada"


def test_users_with_any_legal_name_are_listed_page_by_page(admin: ApiUser) -> None:
    names = {"Ωmega", "日本" * 50, "a+b@c.d", "ünïçödé"}
    for name in names:
        made = admin.request("POST", f"{ADMIN}/users", json={"name": name})
        assert made.status_code == 201, made.text
    everybody = [entry["name"] for entry in admin.request("GET", f"{ADMIN}/users").json()]

    seen = []
    page: dict[str, Any] = {"limit": 1}
    for _ in everybody:
        answer = admin.request("GET", f"{ADMIN}/users", params=page)
        assert answer.status_code == 200, answer.text
        seen += [item["name"] for item in answer.json()]
        page["before"] = answer.headers.get("X-Next-Cursor")

    assert names < set(everybody)
    assert seen == everybody
    assert page["before"] is None
    assert admin.request("GET", f"{ADMIN}/users", params={"before": "%00"}).status_code == 400


def test_two_users_never_share_a_name(admin: ApiUser) -> None:
    admin.request("POST", f"{ADMIN}/users", json={"name": "ada"})

    again = admin.request("POST", f"{ADMIN}/users", json={"name": "ada"})

    assert (again.status_code, again.json()["errors"][0]["field"]) == (400, "name")


def test_a_user_is_changed_in_one_request(admin: ApiUser, api_user: ApiUser) -> None:
    changes = {
        "plan": "pro",
        "max_concurrent_agents": 7,
        "monthly_agent_hours_limit": None,
        "max_pending": 5,
        "on_exhausted": "hold",
        "night_budget_usd": 12.5,
        "window": {"zone": "Europe/Berlin", "opens": "22:00", "closes": "06:00"},
    }

    answer = admin.request("PATCH", f"{ADMIN}/users/{api_user.user}", json=changes)

    user = answer.json()
    assert answer.status_code == 200, answer.text
    assert (user["plan"], user["max_concurrent_agents"]) == ("pro", 7)
    assert user["monthly_agent_hours_limit"] is None
    assert (user["window"]["zone"], user["window"]["opens"]) == ("Europe/Berlin", "22:00")
    row = api_user.deployment.one("SELECT * FROM users WHERE id = :id", id=api_user.user)
    assert (row["max_pending"], row["on_exhausted"]) == (5, "hold")
    assert float(row["night_budget_usd"]) == 12.5
    taken_back = admin.request("PATCH", f"{ADMIN}/users/{api_user.user}", json={"window": None})
    assert taken_back.json()["window"] is None
    acts = admin.request("GET", f"{ADMIN}/audit", params={"user": str(api_user.user)}).json()
    assert {act["actor"] for act in acts} >= {f"user:{admin.user}"}


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": "gold"},
        {"max_concurrent_agents": -1},
        {"plan_tier": "pro"},
        {"window": {"zone": "Mars/Olympus", "opens": "22:00", "closes": "06:00"}},
    ],
)
def test_a_wrong_change_changes_nothing(
    admin: ApiUser, api_user: ApiUser, changes: dict[str, Any]
) -> None:
    before = admin.request("GET", f"{ADMIN}/users/{api_user.user}").json()

    answer = admin.request(
        "PATCH", f"{ADMIN}/users/{api_user.user}", json={"max_pending": 1, **changes}
    )

    assert answer.status_code in {400, 422}
    assert admin.request("GET", f"{ADMIN}/users/{api_user.user}").json() == before


def test_workers_are_listed_drained_and_undrained(admin: ApiUser) -> None:
    admin.deployment.agent(slots=3)

    [worker] = admin.request("GET", f"{ADMIN}/workers").json()
    drained = admin.request("POST", f"{ADMIN}/workers/{AGENT}/drain")

    assert (worker["id"], worker["slots"], worker["busy"]) == (AGENT, 3, 0)
    assert drained.json() == {"worker_id": AGENT, "draining": True}
    assert admin.request("GET", f"{ADMIN}/workers").json()[0]["status"] == "draining"
    assert admin.request("POST", f"{ADMIN}/workers/{AGENT}/undrain").json()["draining"] is False
    unknown = admin.request("POST", f"{ADMIN}/workers/nobody/drain")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "WORKER_NOT_FOUND")


def test_pools_are_listed_with_the_capabilities_of_all_their_workers(
    admin: ApiUser, api_user: ApiUser
) -> None:
    deployment = api_user.deployment
    deployment.agent(slots=3, agent_id="one", capabilities=("gpu", "web"))
    deployment.agent(slots=2, agent_id="two", capabilities=("gpu",))
    deployment.agent(slots=4, agent_id="three", pool="night")
    admin.request("POST", f"{ADMIN}/workers/two/drain")
    admin.request("POST", f"{ADMIN}/pause", json={"pool": "night"})
    deployment.running(api_user.user)

    day, night = admin.request("GET", f"{ADMIN}/pools").json()

    assert (day["name"], day["kind"], day["serves"]) == ("default", "celery", None)
    assert (day["workers"], day["slots"], day["busy"], day["draining"]) == (2, 3, 1, 1)
    assert day["capabilities"] == ["gpu"]
    assert (night["name"], night["slots"], night["busy"], night["paused"]) == ("night", 4, 0, True)
    assert api_user.request("GET", f"{ADMIN}/pools").status_code == 404
    with admin.client() as client:
        assert [pool.name for pool in client.admin.pools()] == ["default", "night"]


def test_the_pool_of_a_pull_agent_names_the_user_it_serves(
    admin: ApiUser, api_user: ApiUser
) -> None:
    made = api_user.request("POST", "/api/v1/agents", json={"name": "laptop"})
    assert made.status_code == 201, made.text

    [pool] = admin.request("GET", f"{ADMIN}/pools").json()

    [user] = api_user.deployment.rows("SELECT name FROM users WHERE id = :id", id=api_user.user)
    assert (pool["kind"], pool["serves"], pool["workers"]) == ("pull", user["name"], 1)


def test_an_admin_releases_the_locks_of_a_task(admin: ApiUser, api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent()
    run = deployment.running(api_user.user, locks=("repo:site",))
    task_id = show_task(run.claim.task_id)

    [lock] = admin.request("GET", f"{ADMIN}/locks").json()
    answer = admin.request("POST", f"{ADMIN}/locks/{task_id}/release")

    assert (lock["key"], lock["task_id"]) == ("repo:site", task_id)
    assert answer.json() == {"task_id": task_id, "released": ["repo:site"]}
    assert not deployment.settle(run, Returned("too late"))
    assert api_user.request("GET", f"{TASKS}/{task_id}").json()["state"] == "ready"
    again = admin.request("POST", f"{ADMIN}/locks/{task_id}/release")
    assert (again.status_code, again.json()["code"]) == (409, "LOCK_NOT_HELD")


def test_an_admin_pauses_a_user_and_everything(admin: ApiUser, api_user: ApiUser) -> None:
    one = admin.request(
        "POST", f"{ADMIN}/pause", json={"user": str(api_user.user), "note": "bills"}
    )
    everything = admin.request("POST", f"{ADMIN}/pause", json={})

    assert one.json() == everything.json() == {"paused": True, "changed": True}
    assert [pause["scope"] for pause in api_user.request("GET", "/api/v1/pauses").json()] == [
        "user",
        "all",
    ]
    assert len(admin.request("GET", f"{ADMIN}/pauses").json()) == 2
    admin.request("POST", f"{ADMIN}/resume", json={})
    admin.request("POST", f"{ADMIN}/resume", json={"user": str(api_user.user)})
    assert api_user.request("GET", "/api/v1/pauses").json() == []
    unknown = admin.request("POST", f"{ADMIN}/pause", json={"pool": "nowhere"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "POOL_NOT_FOUND")


def test_the_fairness_report_lists_every_user(admin: ApiUser, api_user: ApiUser) -> None:
    api_user.deployment.agent()
    api_user.deployment.settle(api_user.deployment.running(api_user.user), Returned("done"))

    shown = admin.request("GET", f"{ADMIN}/fairness", params={"hours": 2}).json()

    assert shown["starts"] == 1
    assert len(shown["users"]) == 1
    assert shown["starving"] == []


def test_a_disabled_user_is_refused_and_running_tasks_finish(
    admin: ApiUser, api_user: ApiUser
) -> None:
    api_user.deployment.agent()
    waiting = api_user.created(type="echo")
    [claimed] = api_user.deployment.claim().claims
    run = api_user.deployment.start(claimed)
    later = api_user.created(type="echo")
    assert run is not None

    shut = admin.request("POST", f"{ADMIN}/users/{api_user.user}/disable")

    assert shut.status_code == 200, shut.text
    assert shut.json()["disabled_at"] is not None
    refused = api_user.request("GET", TASKS)
    assert (refused.status_code, refused.json()["code"]) == (401, "UNAUTHENTICATED")
    assert api_user.deployment.settle(run, Returned("done"))
    assert api_user.deployment.state(api_user.row_id(waiting["id"])) == "completed"
    assert not api_user.deployment.claim().claims

    back = admin.request("POST", f"{ADMIN}/users/{api_user.user}/enable")

    assert back.json()["disabled_at"] is None
    assert api_user.request("GET", TASKS).status_code == 200
    [again] = api_user.deployment.claim().claims
    assert show_task(again.claim.task_id) == later["id"]


def test_an_admin_cannot_disable_themselves(admin: ApiUser, api_user: ApiUser) -> None:
    assert admin.request("POST", f"{ADMIN}/users/{admin.user}/disable").status_code == 400
    assert api_user.request("POST", f"{ADMIN}/users/{admin.user}/disable").status_code == 404
    assert admin.request("GET", TASKS).status_code == 200


def test_a_change_of_plan_does_not_enable_a_disabled_user(
    admin: ApiUser, api_user: ApiUser
) -> None:
    admin.client().admin.disable_user(str(api_user.user))
    admin.client().admin.change_user(str(api_user.user), plan="pro")

    lane = api_user.deployment.one(
        "SELECT max_active FROM lanes WHERE user_id = :u", u=api_user.user
    )
    assert lane["max_active"] == 0
    assert admin.client().admin.enable_user(str(api_user.user)).disabled_at is None
    lane = api_user.deployment.one(
        "SELECT max_active FROM lanes WHERE user_id = :u", u=api_user.user
    )
    assert lane["max_active"] == 3
