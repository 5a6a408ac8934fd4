"""One tenant's many agents: capped, listed in pages, and without effect on others' forecasts."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from overnight.errors import InvalidRequest
from overnight_server.control.agents import AgentCaps, PullAgentDescription, register
from overnight_server.control.keys import Caller
from overnight_server.domain.ids import UserId
from overnight_server.explain.explain import explain
from overnight_server.forecast.forecast import forecast_next
from overnight_server.forecast.snapshot import read_forecast_input
from overnight_server.insight.known_types import MAX_AGENTS, read_accepted_types
from overnight_server.insight.workers import list_pools, list_workers
from overnight_server.store.db import GATE, Db
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import CLAIM_SETTINGS, Deployment
from tests.support.pull_agent import AGENTS, register_agent
from tests.support.rivals import Rival, meet_at_lane

MANY = 1000
TYPES_EACH = 100


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    environ = {"OVERNIGHT_AGENTS_MAX_PER_USER": "3", "OVERNIGHT_AGENT_TYPES_MAX": "2"}
    environ["OVERNIGHT_AGENT_CAPABILITIES_MAX"] = "2"
    with serve_api(deployment, database_url, **environ) as api_user:
        yield api_user


def add_agents(deployment: Deployment, owner: UserId, count: int, types: int) -> None:
    """Insert agents of one user, each with types and capabilities of its own."""
    deployment.run(
        "INSERT INTO pools (name, kind, serves)"
        " SELECT 'pull:' || :owner || '/' || n, 'pull', :owner FROM generate_series(1, :count) n",
        owner=owner,
        count=count,
    )
    deployment.run(
        "INSERT INTO agents (id, kind, pool, owner_id, name, slots, claim_ttl_seconds,"
        " stale_after_seconds, types, capabilities)"
        " SELECT 'agent-' || :owner || n, 'pull', 'pull:' || :owner || '/' || n, :owner, n::text,"
        " 2, 60, 3600, ARRAY(SELECT 'type-' || n || '-' || t FROM generate_series(1, :types) t),"
        " ARRAY(SELECT 'can-' || n || '-' || t FROM generate_series(1, :types) t)"
        " FROM generate_series(1, :count) n",
        owner=owner,
        count=count,
        types=types,
    )


def test_a_user_has_no_more_agents_online_than_allowed(api_user: ApiUser) -> None:
    agents = [register_agent(api_user, f"agent-{n}") for n in range(3)]

    refused = api_user.request("POST", AGENTS, json={"name": "one-more"})
    again = api_user.request("POST", AGENTS, json={"name": "agent-0"})

    assert refused.status_code == 400
    [error] = refused.json()["errors"]
    assert (error["field"], "at most 3 agents" in error["legal"]) == ("name", True)
    assert api_user.deployment.one("SELECT count(*) AS n FROM pools")["n"] == 3
    assert again.status_code == 200
    assert api_user.request("DELETE", f"{AGENTS}/{agents[1].id}").status_code == 200
    assert api_user.request("POST", AGENTS, json={"name": "one-more"}).status_code == 201


def test_a_user_has_no_more_names_of_agents_than_allowed(api_user: ApiUser) -> None:
    add_agents(api_user.deployment, api_user.user, 30, 1)
    api_user.deployment.run("UPDATE agents SET status = 'offline'")

    refused = api_user.request("POST", AGENTS, json={"name": "new"})

    assert refused.status_code == 400
    assert "at most 30 names" in refused.json()["errors"][0]["legal"]
    assert api_user.request("POST", AGENTS, json={"name": "7"}).status_code == 200


@pytest.mark.parametrize("field", ["types", "capabilities"])
def test_an_agent_declares_no_more_than_allowed(api_user: ApiUser, field: str) -> None:
    refused = api_user.request("POST", AGENTS, json={"name": "a", field: ["1", "2", "3"]})

    assert refused.status_code == 400
    [error] = refused.json()["errors"]
    assert (error["field"], error["legal"]) == (field, "at most 2")
    assert api_user.deployment.one("SELECT count(*) AS n FROM agents")["n"] == 0


def test_concurrent_registrations_respect_the_limit(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    caller = Caller(user, "", ("agents:run",))
    as_gate = partial(connect, role=GATE)
    rivals = [
        Rival(as_gate, name, register, caller, PullAgentDescription(name), AgentCaps(agents=1))
        for name in ("first", "second")
    ]

    with pytest.raises(InvalidRequest, match="would be agent 2"):
        meet_at_lane(connect, user, *rivals)

    assert deployment.one("SELECT count(*) AS n FROM agents")["n"] == 1


def test_the_agents_of_a_user_are_listed_in_pages(api_user: ApiUser) -> None:
    add_agents(api_user.deployment, api_user.user, 5, 1)

    first = api_user.request("GET", AGENTS, params={"limit": 3})
    rest = api_user.request(
        "GET", AGENTS, params={"limit": 3, "before": first.headers["X-Next-Cursor"]}
    )

    names = [agent["name"] for answer in (first, rest) for agent in answer.json()]
    assert names == ["1", "2", "3", "4", "5"]
    assert "X-Next-Cursor" not in rest.headers


@pytest.mark.parametrize(("path", "key"), [("workers", "id"), ("pools", "name")])
def test_admins_list_workers_and_pools_in_pages(api_user: ApiUser, path: str, key: str) -> None:
    add_agents(api_user.deployment, api_user.user, 5, 1)
    root = api_user.new_user(is_admin=True)
    url = f"/api/v1/admin/{path}"

    first = root.request("GET", url, params={"limit": 3})
    rest = root.request("GET", url, params={"limit": 3, "before": first.headers["X-Next-Cursor"]})

    listed = [item[key] for answer in (first, rest) for item in answer.json()]
    assert len(listed) == len(set(listed)) == 5
    assert len(list_workers(api_user.deployment.app)) == len(list_pools(api_user.deployment.app))


def test_a_forecast_does_not_grow_with_the_agents_of_others(deployment: Deployment) -> None:
    deployment.agent(slots=2)
    attacker, victim = deployment.user(), deployment.user()
    add_agents(deployment, attacker, MANY, TYPES_EACH)
    for user in (attacker, victim):
        for _ in range(3):
            deployment.task(user, type="echo")
    deployment.task(attacker, type="type-7-7", required_capabilities=("can-7-9",))

    data = deployment.app.atomically(
        lambda tx: read_forecast_input(tx, victim, CLAIM_SETTINGS), all_users=True
    )

    shared, joint = data.snapshot.pools
    assert (shared.name, shared.serves) == ("default", None)
    assert (joint.serves, joint.slots) == (attacker, 2 * MANY)
    # Of all that the agents can do, only what some waiting task needs is read.
    assert (joint.types, joint.capabilities) == ({"type-7-7"}, {"can-7-9"})
    assert len(data.workers) == 1
    assert len(forecast_next(deployment.app, victim, CLAIM_SETTINGS)) == 3


def test_an_explanation_does_not_read_the_agents_of_others(deployment: Deployment) -> None:
    attacker, victim = deployment.user(), deployment.user()
    add_agents(deployment, attacker, 50, 1)
    task = deployment.task(victim, type="echo")

    reasons = explain(deployment.app, victim, task, CLAIM_SETTINGS).reasons

    assert "pull:" not in str(reasons)


def test_warnings_about_types_read_a_bounded_number_of_agents(deployment: Deployment) -> None:
    deployment.agent(types=["echo"])
    add_agents(deployment, deployment.user(), 5, 1)
    few = read_accepted_types(deployment.app, 3600)
    add_agents(deployment, deployment.user(), MAX_AGENTS, 1)
    many = read_accepted_types(deployment.app, 3600)

    assert (few.everything, few.own, len(few.accepted)) == (False, {"echo"}, 6)
    assert (many.everything, many.own) == (True, {"echo"})
