"""Pull agents: who may register, and which tasks the gate gives them."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from overnight_server.control.pauses import EVERYTHING, pause
from overnight_server.control.users import rename_user
from overnight_server.dispatch.fill import OpenPools
from overnight_server.domain.ids import parse_task
from overnight_server.explain.explain import explain
from overnight_server.insight.workers import list_workers
from overnight_server.maintenance.reap import reap, retire_agents
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import CLAIM_SETTINGS, Deployment
from tests.support.pull_agent import AGENTS, PullAgent, register_agent

LEASE = timedelta(seconds=90)
SECOND = timedelta(seconds=1)


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def test_an_agent_is_registered_with_the_deployments_defaults(api_user: ApiUser) -> None:
    answer = api_user.request("POST", AGENTS, json={"name": "laptop"})

    agent = answer.json()
    assert answer.status_code == 201
    assert answer.headers["Location"] == f"{AGENTS}/{agent['id']}"
    assert (agent["slots"], agent["claim_ttl_seconds"], agent["lease_seconds"]) == (2, 60, 90)
    assert (agent["status"], agent["serves"], agent["busy"]) == ("active", "me", 0)
    assert api_user.request("GET", AGENTS).json() == [agent]
    assert api_user.request("GET", f"{AGENTS}/{agent['id']}").json() == agent


def test_registering_the_same_name_again_changes_the_agent(api_user: ApiUser) -> None:
    first = register_agent(api_user, budget_usd=1.5)
    api_user.deployment.run("UPDATE agents SET budget_remaining_usd = 0.5")

    again = api_user.request("POST", AGENTS, json={"name": "laptop", "slots": 7, "budget_usd": 1.5})

    assert again.status_code == 200
    assert (again.json()["id"], again.json()["slots"]) == (first.id, 7)
    assert again.json()["budget_remaining_usd"] == 0.5
    assert register_agent(api_user.new_user()).id != first.id


def test_an_agent_does_not_serve_a_later_user_with_its_owners_old_name(api_user: ApiUser) -> None:
    rename_user(api_user.deployment.app, api_user.user, "ada")
    laptop = register_agent(api_user)
    rename_user(api_user.deployment.app, api_user.user, "bob")
    newcomer = api_user.new_user(name="ada")
    theirs = register_agent(newcomer)
    newcomer.created()

    assert laptop.claim().status_code == 204
    assert theirs.claim().status_code == 200
    mine = api_user.created()
    assert laptop.work()["task_id"] == mine["id"]
    called = {
        (worker.owner, worker.name): worker.id for worker in list_workers(api_user.deployment.app)
    }
    assert called == {("bob", "laptop"): laptop.id, ("ada", "laptop"): theirs.id}


def test_another_users_agent_is_not_found(api_user: ApiUser) -> None:
    theirs = register_agent(api_user.new_user())
    mine = PullAgent(api_user, theirs.id)

    for method, path in (
        ("GET", ""),
        ("POST", "/claim"),
        ("POST", "/heartbeat"),
        ("POST", "/drain"),
        ("DELETE", ""),
    ):
        answer = api_user.request(method, f"{AGENTS}/{theirs.id}{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "AGENT_NOT_FOUND")
    assert mine.claim().status_code == 404


def test_a_key_needs_the_right_to_run_agents(api_user: ApiUser) -> None:
    reader = api_user.new_user(scopes=("tasks:read", "tasks:write"))

    assert reader.request("POST", AGENTS, json={"name": "laptop"}).status_code == 403
    assert api_user.new_user(scopes=("agents:run",)).request("GET", AGENTS).json() == []


@pytest.mark.parametrize(
    ("scopes", "admin", "status"),
    [(("*",), False, 403), (("agents:run",), True, 403), (("*",), True, 201)],
)
def test_only_an_admins_agent_may_serve_everyone(
    api_user: ApiUser, *, scopes: tuple[str, ...], admin: bool, status: int
) -> None:
    other_user = api_user.new_user(scopes=scopes, is_admin=admin)

    answer = other_user.request("POST", AGENTS, json={"name": "deployment", "serves": "everyone"})

    assert answer.status_code == status


def test_a_claim_response_contains_everything_to_run_the_task(api_user: ApiUser) -> None:
    task = api_user.created(type="echo", payload={"a": 1}, description="more", prompt="do it")

    work = register_agent(api_user).work()

    assert work["task_id"] == task["id"]
    assert (work["payload"], work["spec"]) == ({"a": 1}, {"prompt": "do it"})
    assert (work["type"], work["description"], work["attempt"]) == ("echo", "more", 1)
    assert (work["claim_ttl_seconds"], work["lease_seconds"]) == (60, 90)
    assert work["token"].startswith("overnight_claim_")
    assert api_user.deployment.state(api_user.row_id(task["id"])) == "claimed"


def test_a_claim_without_work_returns_no_body(api_user: ApiUser) -> None:
    answer = register_agent(api_user).claim()

    assert (answer.status_code, answer.content) == (204, b"")


def test_an_agent_claims_only_tasks_of_its_owner(api_user: ApiUser) -> None:
    other_user = api_user.new_user()
    other_user.created()

    assert register_agent(api_user).claim().status_code == 204
    assert register_agent(other_user).claim().status_code == 200


def test_an_agent_for_everyone_serves_the_least_served_first(api_user: ApiUser) -> None:
    admin = api_user.new_user(is_admin=True)
    for _ in range(2):
        api_user.created()
    other_user = api_user.new_user()
    theirs = other_user.created()
    agent = register_agent(admin, serves="everyone", slots=3)

    first, second = agent.work(), agent.work()

    assert theirs["id"] in {first["task_id"], second["task_id"]}


def test_a_run_has_the_lease_of_an_agent_that_its_owner_does_not_see(api_user: ApiUser) -> None:
    api_user.created()
    agent = register_agent(api_user.new_user(is_admin=True), serves="everyone", lease_seconds=300)

    started = agent.report(agent.work(), "start")

    assert started.json()["lease_seconds"] == 300
    assert api_user.request("GET", AGENTS).json() == []


def test_an_agent_holds_no_more_than_its_slots(api_user: ApiUser) -> None:
    for _ in range(3):
        api_user.created()
    agent = register_agent(api_user, slots=2)

    assert [agent.claim().status_code for _ in range(3)] == [200, 200, 204]
    assert api_user.request("GET", f"{AGENTS}/{agent.id}").json()["busy"] == 2


def test_an_agent_gets_only_tasks_of_its_capabilities_and_types(api_user: ApiUser) -> None:
    api_user.created(type="paint", required_capabilities=["gpu"])
    named = api_user.created(type="echo", agent_name="laptop")

    assert register_agent(api_user, "bare").claim().status_code == 204
    assert (
        register_agent(api_user, "narrow", types=["other"], capabilities=["gpu"])
        .claim()
        .status_code
        == 204
    )
    painter = register_agent(
        api_user, "painter", types=["paint"], capabilities=["gpu", "agent:laptop"]
    )
    assert painter.work()["type"] == "paint"
    assert painter.claim().status_code == 204
    laptop = register_agent(api_user, "laptop", capabilities=["agent:laptop"])
    assert laptop.work()["task_id"] == named["id"]


def test_workers_leave_a_type_to_the_agent_that_names_it(api_user: ApiUser) -> None:
    api_user.deployment.agent(types=["echo"])
    agent = register_agent(api_user, types=["film"])
    api_user.created(type="film")

    assert api_user.deployment.claim().claims == []
    assert agent.claim().status_code == 200


def test_an_agent_without_money_gets_nothing(api_user: ApiUser) -> None:
    api_user.created(estimated_cost_usd=1)

    assert register_agent(api_user, "poor", budget_usd=0.5).claim().status_code == 204
    assert register_agent(api_user, "rich", budget_usd=1.5).claim().status_code == 200


def test_every_other_limit_applies_to_agents_too(api_user: ApiUser) -> None:
    other_user = api_user.new_user(max_concurrent_agents=1)
    other_user.created()
    other_user.created()
    agent = register_agent(other_user, slots=5)
    assert agent.claim().status_code == 200
    assert agent.claim().status_code == 204, "the plan's cap"

    other = api_user.new_user()
    other.created(project_id="site")
    other.created(project_id="site")
    agent = register_agent(other, slots=5)
    assert [agent.claim().status_code for _ in range(2)] == [200, 204]

    pause(api_user.deployment.app, EVERYTHING, actor="human:test")
    api_user.created()
    assert register_agent(api_user).claim().status_code == 204


def test_the_dispatcher_fills_no_pull_pool(api_user: ApiUser) -> None:
    register_agent(api_user)
    api_user.deployment.agent()

    pools = api_user.deployment.rows("SELECT name, kind FROM pools ORDER BY name")

    assert [pool["kind"] for pool in pools] == ["celery", "pull"]
    assert list(OpenPools(api_user.deployment.dispatcher)) == ["default"]


def test_a_drained_agent_gets_no_new_task_and_is_informed(api_user: ApiUser) -> None:
    api_user.created()
    agent = register_agent(api_user)

    assert api_user.request("POST", f"{AGENTS}/{agent.id}/drain").json() == {"ok": True}

    assert agent.claim().status_code == 204
    beat = api_user.request("POST", f"{AGENTS}/{agent.id}/heartbeat")
    assert beat.json() == {"status": "draining"}
    assert register_agent(api_user).claim().status_code == 200, "coming back ends the drain"


def test_an_agent_that_left_must_register_again(api_user: ApiUser) -> None:
    api_user.created()
    agent = register_agent(api_user)

    assert api_user.request("DELETE", f"{AGENTS}/{agent.id}").status_code == 200

    assert (agent.claim().status_code, agent.claim().json()["code"]) == (409, "AGENT_OFFLINE")
    assert register_agent(api_user).claim().status_code == 200


def test_a_silent_agent_is_retired_after_its_liveness_time(api_user: ApiUser) -> None:
    register_agent(api_user, lease_seconds=300)
    short = register_agent(api_user, "short")

    api_user.deployment.move_clock(LEASE + SECOND)

    assert retire_agents(api_user.deployment.dispatcher, silence=timedelta(seconds=60)) == 1
    assert short.claim().json()["code"] == "AGENT_OFFLINE"


def test_a_run_of_a_lost_agent_is_retried_and_not_billed(api_user: ApiUser) -> None:
    task = api_user.created()
    agent = register_agent(api_user)
    agent.begin()

    api_user.deployment.move_clock(LEASE + SECOND)
    assert reap(api_user.deployment.dispatcher) == 1

    attempt = api_user.deployment.one("SELECT * FROM attempts")
    assert attempt["outcome"] == "worker_lost"
    assert api_user.deployment.lane(api_user.user)["used_seconds"] == 0
    assert api_user.deployment.state(api_user.row_id(task["id"])) in {"retrying", "ready"}


def test_a_run_of_an_agent_that_returned_is_not_blamed_for_the_loss(api_user: ApiUser) -> None:
    api_user.created()
    agent = register_agent(api_user)
    agent.begin()
    api_user.deployment.move_clock(LEASE)
    register_agent(api_user)

    api_user.deployment.move_clock(SECOND)
    reap(api_user.deployment.dispatcher)

    assert api_user.deployment.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"


def test_a_claim_that_is_never_started_is_released_without_cost(api_user: ApiUser) -> None:
    task = api_user.created()
    agent = register_agent(api_user)
    work = agent.work()

    api_user.deployment.move_clock(timedelta(seconds=61))
    reap(api_user.deployment.dispatcher)

    row = api_user.deployment.row(api_user.row_id(task["id"]))
    assert (row["state"], row["attempts"]) == ("ready", 0)
    late = agent.report(work, "start")
    assert (late.status_code, late.json()["code"]) == (409, "STALE_ATTEMPT")


def test_workers_and_explain_count_the_agents_slots(api_user: ApiUser) -> None:
    api_user.created()
    waiting = api_user.created(type="echo")
    agent = register_agent(api_user, slots=1)
    agent.begin()

    [worker] = list_workers(api_user.deployment.app)
    assert (worker.id, worker.kind, worker.slots, worker.busy) == (agent.id, "pull", 1, 1)
    explanation = explain(
        api_user.deployment.app, api_user.user, parse_task(waiting["id"]), CLAIM_SETTINGS
    )
    [reason] = [reason for reason in explanation.reasons if reason.code == "slots"]
    assert reason.details["pools"] == [{"pool": worker.pool, "busy": 1, "slots": 1}]


def test_explain_counts_only_the_users_agents_and_matching_types(api_user: ApiUser) -> None:
    register_agent(api_user.new_user(), "theirs")
    task = parse_task(api_user.created(type="echo")["id"])
    register_agent(api_user, "painter", types=["paint"])

    explanation = explain(api_user.deployment.app, api_user.user, task, CLAIM_SETTINGS)

    assert [reason.code for reason in explanation.reasons] == ["handler"]
    assert "no worker has a handler for the type 'echo'" in explanation.reasons[0].message
    register_agent(api_user, "echoes", types=["echo"])
    assert explain(api_user.deployment.app, api_user.user, task, CLAIM_SETTINGS).starts_next


def test_a_type_of_an_agent_that_left_waits_for_it(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent(types=["echo"])
    away = register_agent(api_user, types=["film"])
    task = parse_task(api_user.created(type="film")["id"])
    api_user.request("DELETE", f"{AGENTS}/{away.id}")

    deployment.move_clock(timedelta(days=2))
    deployment.run("UPDATE agents SET last_heartbeat_at = clock() WHERE kind = 'celery'")
    deployment.run("UPDATE lanes SET skipped_by_pools = '{}'")

    assert not deployment.claim().claims
    [reason] = explain(deployment.app, api_user.user, task, CLAIM_SETTINGS).reasons
    assert reason.code == "handler"
