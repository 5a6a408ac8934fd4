"""HTTP agents through the API: who may add which address, what is shown, and what is refused."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import ProgrammingError

from overnight_server.agent_driver import agent_rows
from overnight_server.agent_driver.agent_rows import HealthCheckResult, HttpAgentRow
from overnight_server.control.agent_work import claim_next_work
from overnight_server.control.keys import key_id_of, revoke
from overnight_server.domain.ids import show_task
from overnight_server.store.db import APP, GATE, READER
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import CLAIM_SETTINGS, Deployment
from tests.support.pull_agent import AGENTS, register_agent

HTTP = f"{AGENTS}/http"
PRIVATE = "http://127.0.0.1:9000"
HOLD = timedelta(seconds=15)


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


@pytest.fixture
def operator(api_user: ApiUser) -> ApiUser:
    return api_user.new_user(is_admin=True)


def add(user: ApiUser, **fields: Any) -> dict[str, Any]:
    response = user.request("POST", HTTP, json={"name": "scribe", "url": PRIVATE, **fields})
    assert response.status_code in (200, 201), response.text
    added: dict[str, Any] = response.json()
    return added


def taken(deployment: Deployment, driver: str = "driver") -> list[HttpAgentRow]:
    return agent_rows.hold_addresses(deployment.dispatcher, driver, hold=HOLD, limit=100)


def test_an_added_agent_is_listed_with_its_address_and_without_its_secret(
    operator: ApiUser,
) -> None:
    added = add(operator, types=["review"], url=f"{PRIVATE}/")

    [listed] = operator.request("GET", AGENTS).json()

    assert len(added["secret"]) >= 40
    assert (listed["url"], listed["health"], listed["slots"]) == (PRIVATE, "unknown", 1)
    assert "secret" not in listed


def test_a_given_secret_is_used_and_the_name_again_changes_the_agent(
    operator: ApiUser, deployment: Deployment
) -> None:
    first = add(operator)

    response = operator.request(
        "POST", HTTP, json={"name": "scribe", "url": "http://10.0.0.9", "secret": "x" * 16}
    )

    assert response.status_code == 200
    assert response.json()["id"] == first["id"]
    [row] = taken(deployment)
    assert (row.url, row.secret, row.private_allowed) == ("http://10.0.0.9", "x" * 16, True)


@pytest.mark.parametrize(
    "url", [PRIVATE, "http://localhost", "http://169.254.169.254", "http://[::1]:9000"]
)
def test_only_an_operator_may_add_a_private_address(api_user: ApiUser, url: str) -> None:
    response = api_user.request("POST", HTTP, json={"name": "scribe", "url": url})

    assert response.status_code == 400
    assert "only an operator" in response.text
    assert api_user.request("GET", AGENTS).json() == []


def test_a_public_address_may_be_added_by_any_user(
    api_user: ApiUser, deployment: Deployment
) -> None:
    add(api_user, url="https://93.184.216.34")

    [row] = taken(deployment)
    assert row.private_allowed is False


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "ftp://agent.example"},
        {"url": "http://agent.example/?a=b"},
        {"secret": "short"},
        {"lease_seconds": 60},
        {"name": "no name"},
    ],
)
def test_bad_input_is_refused_with_the_field(operator: ApiUser, fields: dict[str, Any]) -> None:
    body = {"name": "scribe", "url": PRIVATE, **fields}

    response = operator.request("POST", HTTP, json=body)

    assert response.status_code in (400, 422)
    assert next(iter(fields)) in response.text


def test_only_an_admin_may_add_an_agent_for_everyone(api_user: ApiUser) -> None:
    body = {"name": "scribe", "url": "https://93.184.216.34", "serves": "everyone"}

    assert api_user.request("POST", HTTP, json=body).status_code == 403


def test_nobody_else_claims_for_an_http_agent_or_takes_its_name(operator: ApiUser) -> None:
    agent_id = add(operator)["id"]
    operator.created(type="review")

    refusals = [
        operator.request("POST", f"{AGENTS}/{agent_id}/claim"),
        operator.request("POST", f"{AGENTS}/{agent_id}/heartbeat"),
        operator.request("POST", AGENTS, json={"name": "scribe"}),
    ]

    assert [response.status_code for response in refusals] == [400] * 3
    assert all("HTTP agent" in response.text for response in refusals)


def test_the_limit_on_agents_counts_http_agents(deployment: Deployment, database_url: str) -> None:
    with serve_api(deployment, database_url, OVERNIGHT_AGENTS_MAX_PER_USER="1") as api_user:
        operator = api_user.new_user(is_admin=True)
        register_agent(operator, "laptop")

        response = operator.request("POST", HTTP, json={"name": "scribe", "url": PRIVATE})

    assert response.status_code == 400
    assert "at most 1 agents online" in response.text


def test_agents_of_other_users_are_not_found(api_user: ApiUser, operator: ApiUser) -> None:
    agent_id = add(operator)["id"]

    assert api_user.request("GET", AGENTS).json() == []
    assert api_user.request("DELETE", f"{AGENTS}/{agent_id}").status_code == 404


def test_a_removed_agent_is_given_up_once_and_may_be_added_again(
    operator: ApiUser, deployment: Deployment
) -> None:
    agent_id = add(operator)["id"]
    [row] = taken(deployment)

    assert operator.request("DELETE", f"{AGENTS}/{agent_id}").status_code == 200

    assert agent_rows.release_removed(deployment.dispatcher, "driver") == {row.key}
    assert agent_rows.release_removed(deployment.dispatcher, "driver") == set()
    assert taken(deployment) == []
    [listed] = operator.request("GET", AGENTS).json()
    assert (listed["status"], listed["url"]) == ("offline", None)
    assert add(operator)["id"] == agent_id
    assert len(taken(deployment)) == 1


def test_an_address_has_one_driver_until_its_hold_ends(
    operator: ApiUser, deployment: Deployment
) -> None:
    add(operator)
    assert len(taken(deployment, "first")) == 1

    assert taken(deployment, "second") == []
    deployment.run("UPDATE http_agents SET driven_until = clock()")

    assert len(taken(deployment, "second")) == 1
    assert taken(deployment, "first") == []


def test_an_agent_ends_with_the_key_that_added_it(
    operator: ApiUser, deployment: Deployment
) -> None:
    add(operator)
    [before] = taken(deployment)

    revoke(deployment.app, key_id_of(operator.key))

    [after] = taken(deployment)
    assert (before.is_authorized, after.is_authorized) == (True, False)


def test_a_rotated_key_passes_its_agents_on(operator: ApiUser, deployment: Deployment) -> None:
    add(operator)
    key_id = key_id_of(operator.key)
    rotated = operator.request("POST", f"/api/v1/keys/{key_id}/rotate", json={"grace_seconds": 0})
    assert rotated.status_code in (200, 201), rotated.text

    taken(deployment)

    [row] = taken(deployment)
    assert row.is_authorized


def test_what_a_check_found_is_shown(operator: ApiUser, deployment: Deployment) -> None:
    add(operator)
    [row] = taken(deployment)

    checks = [HealthCheckResult(row.key, "unreachable", "connection refused", "boot")]
    agent_rows.record_checks(deployment.dispatcher, "driver", checks)
    agent_rows.record_checks(deployment.dispatcher, "other", [HealthCheckResult(row.key, "idle")])

    [listed] = operator.request("GET", AGENTS).json()
    assert (listed["health"], listed["health_detail"]) == ("unreachable", "connection refused")
    assert listed["checked_at"] is not None


def test_an_agent_that_was_offline_is_active_when_it_answers(
    operator: ApiUser, deployment: Deployment
) -> None:
    add(operator)
    [row] = taken(deployment)
    deployment.run("UPDATE agents SET status = 'offline'")

    agent_rows.send_heartbeats(deployment.dispatcher, [row.registration])

    assert deployment.one("SELECT status FROM agents")["status"] == "active"


def test_the_row_of_an_http_agent_is_kept_while_it_is_offline(
    operator: ApiUser, deployment: Deployment
) -> None:
    add(operator)
    deployment.run(
        "UPDATE agents SET status = 'offline', last_heartbeat_at = clock() - interval '1 year'"
    )

    deployment.run("SELECT delete_offline_agents(1, 1, 10)")

    assert len(deployment.rows("SELECT id FROM agents")) == 1


@pytest.mark.parametrize("role", [APP, READER, GATE])
def test_no_role_of_the_api_reads_a_secret(deployment: Deployment, role: str) -> None:
    with pytest.raises(ProgrammingError, match="permission denied"):
        deployment.run(f"SET LOCAL ROLE {role}; SELECT secret FROM http_agents")


def test_adding_and_removing_is_in_the_audit_log_without_the_secret(
    operator: ApiUser, deployment: Deployment
) -> None:
    agent_id = add(operator, secret="a long enough secret")["id"]
    operator.request("DELETE", f"{AGENTS}/{agent_id}")

    rows = deployment.rows(
        "SELECT act, detail::text AS detail FROM audit_log"
        " WHERE act LIKE 'http_agent.%' ORDER BY id"
    )

    assert [row["act"] for row in rows] == ["http_agent.added", "http_agent.changed"]
    assert PRIVATE in rows[0]["detail"]
    assert not [row for row in rows if "a long enough secret" in row["detail"]]


def test_an_entry_of_the_queue_names_the_url_of_its_agent(
    operator: ApiUser, deployment: Deployment
) -> None:
    add(operator)
    task = operator.created(type="review")
    [row] = taken(deployment)
    db = deployment.dispatcher

    work = claim_next_work(db, db, row.registration, CLAIM_SETTINGS, None)

    assert work is not None
    entry = operator.request("GET", f"/api/queue/{task['id']}").json()
    assert (entry["state"], entry["agent_url"]) == ("dispatching", PRIVATE)


def test_the_client_adds_lists_drains_and_removes(operator: ApiUser) -> None:
    with operator.client() as client:
        added = client.agents.add(PRIVATE, types=["review"])
        [listed] = client.agents.list()
        client.agents.drain(added.id)
        draining = client.agents.get(added.id)
        client.agents.remove(added.id)

    assert (added.name, listed.url, listed.types) == ("127.0.0.1-9000", PRIVATE, ["review"])
    assert draining.status == "draining"


def test_a_task_of_the_runner_http_goes_to_http_agents_alone(
    operator: ApiUser, deployment: Deployment
) -> None:
    """A pull agent that claims to be another runner is not one."""
    named = {"name": "pull", "types": ["review"], "capabilities": ["runner:http", "gpu"]}
    pull = operator.request("POST", "/api/v1/agents", json=named).json()
    add(operator)
    task = operator.created(type="review", runner="http")
    [row] = taken(deployment)
    db = deployment.dispatcher

    assert pull["capabilities"] == ["gpu"]
    polled = operator.request("POST", f"/api/v1/agents/{pull['id']}/claim")
    work = claim_next_work(db, db, row.registration, CLAIM_SETTINGS, None)

    assert polled.status_code == 204
    assert work is not None
    assert show_task(work.held_claim.run.claim.task_id) == task["id"]
