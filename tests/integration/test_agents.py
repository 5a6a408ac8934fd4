"""Agents outside the house: who may come, and what the gate gives them."""

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
from tests.support.door import Door, open_door
from tests.support.house import TERMS, House
from tests.support.outside import AGENTS, Outsider, outsider

LEASE = timedelta(seconds=90)
SECOND = timedelta(seconds=1)


@pytest.fixture
def door(house: House, database_url: str) -> Iterator[Door]:
    with open_door(house, database_url) as door:
        yield door


def test_an_agent_is_registered_with_the_houses_defaults(door: Door) -> None:
    answer = door.ask("POST", AGENTS, json={"name": "laptop"})

    agent = answer.json()
    assert answer.status_code == 201
    assert answer.headers["Location"] == f"{AGENTS}/{agent['id']}"
    assert (agent["slots"], agent["claim_ttl_seconds"], agent["lease_seconds"]) == (2, 60, 90)
    assert (agent["status"], agent["serves"], agent["busy"]) == ("active", "me", 0)
    assert door.ask("GET", AGENTS).json() == [agent]
    assert door.ask("GET", f"{AGENTS}/{agent['id']}").json() == agent


def test_the_same_name_again_is_the_same_agent_changed(door: Door) -> None:
    first = outsider(door, budget_usd=1.5)
    door.house.run("UPDATE agents SET budget_remaining_usd = 0.5")

    again = door.ask("POST", AGENTS, json={"name": "laptop", "slots": 7, "budget_usd": 1.5})

    assert again.status_code == 200
    assert (again.json()["id"], again.json()["slots"]) == (first.id, 7)
    assert again.json()["budget_remaining_usd"] == 0.5
    assert outsider(door.guest()).id != first.id


def test_an_agent_never_serves_who_took_over_its_owners_old_name(door: Door) -> None:
    rename_user(door.house.app, door.user, "ada")
    laptop = outsider(door)
    rename_user(door.house.app, door.user, "bob")
    newcomer = door.guest(name="ada")
    theirs = outsider(newcomer)
    newcomer.created()

    assert laptop.claim().status_code == 204
    assert theirs.claim().status_code == 200
    mine = door.created()
    assert laptop.work()["task_id"] == mine["id"]
    called = {(one.owner, one.name): one.id for one in list_workers(door.house.app)}
    assert called == {("bob", "laptop"): laptop.id, ("ada", "laptop"): theirs.id}


def test_another_users_agent_looks_like_none(door: Door) -> None:
    theirs = outsider(door.guest())
    mine = Outsider(door, theirs.id)

    for method, path in (
        ("GET", ""),
        ("POST", "/claim"),
        ("POST", "/heartbeat"),
        ("POST", "/drain"),
        ("DELETE", ""),
    ):
        answer = door.ask(method, f"{AGENTS}/{theirs.id}{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "AGENT_NOT_FOUND")
    assert mine.claim().status_code == 404


def test_a_key_needs_the_right_to_run_agents(door: Door) -> None:
    reader = door.guest(scopes=("tasks:read", "tasks:write"))

    assert reader.ask("POST", AGENTS, json={"name": "laptop"}).status_code == 403
    assert door.guest(scopes=("agents:run",)).ask("GET", AGENTS).json() == []


@pytest.mark.parametrize(
    ("scopes", "admin", "status"),
    [(("*",), False, 403), (("agents:run",), True, 403), (("*",), True, 201)],
)
def test_only_an_admins_agent_may_serve_everyone(
    door: Door, *, scopes: tuple[str, ...], admin: bool, status: int
) -> None:
    guest = door.guest(scopes=scopes, is_admin=admin)

    answer = guest.ask("POST", AGENTS, json={"name": "house", "serves": "everyone"})

    assert answer.status_code == status


def test_a_claim_tells_all_that_is_needed_to_run_the_task(door: Door) -> None:
    task = door.created(type="echo", payload={"a": 1}, description="more", prompt="do it")

    work = outsider(door).work()

    assert work["task_id"] == task["id"]
    assert (work["payload"], work["spec"]) == ({"a": 1}, {"prompt": "do it"})
    assert (work["type"], work["description"], work["attempt"]) == ("echo", "more", 1)
    assert (work["claim_ttl_seconds"], work["lease_seconds"]) == (60, 90)
    assert work["token"].startswith("overnight_claim_")
    assert door.house.state(door.row_id(task["id"])) == "claimed"


def test_nothing_to_do_is_an_answer_without_a_body(door: Door) -> None:
    answer = outsider(door).claim()

    assert (answer.status_code, answer.content) == (204, b"")


def test_an_agent_claims_its_owners_tasks_alone(door: Door) -> None:
    guest = door.guest()
    guest.created()

    assert outsider(door).claim().status_code == 204
    assert outsider(guest).claim().status_code == 200


def test_an_agent_for_everyone_serves_the_least_served_first(door: Door) -> None:
    admin = door.guest(is_admin=True)
    for _ in range(2):
        door.created()
    guest = door.guest()
    theirs = guest.created()
    agent = outsider(admin, serves="everyone", slots=3)

    first, second = agent.work(), agent.work()

    assert theirs["id"] in {first["task_id"], second["task_id"]}


def test_an_agent_holds_no_more_than_its_slots(door: Door) -> None:
    for _ in range(3):
        door.created()
    agent = outsider(door, slots=2)

    assert [agent.claim().status_code for _ in range(3)] == [200, 200, 204]
    assert door.ask("GET", f"{AGENTS}/{agent.id}").json()["busy"] == 2


def test_an_agent_gets_only_what_it_can_and_takes(door: Door) -> None:
    door.created(type="paint", required_capabilities=["gpu"])
    named = door.created(type="echo", agent_name="laptop")

    assert outsider(door, "bare").claim().status_code == 204
    assert (
        outsider(door, "narrow", types=["other"], capabilities=["gpu"]).claim().status_code == 204
    )
    painter = outsider(door, "painter", types=["paint"], capabilities=["gpu", "agent:laptop"])
    assert painter.work()["type"] == "paint"
    assert painter.claim().status_code == 204
    laptop = outsider(door, "laptop", capabilities=["agent:laptop"])
    assert laptop.work()["task_id"] == named["id"]


def test_workers_leave_a_type_to_the_agent_that_names_it(door: Door) -> None:
    door.house.agent(types=["echo"])
    agent = outsider(door, types=["film"])
    door.created(type="film")

    assert door.house.claim().claims == []
    assert agent.claim().status_code == 200


def test_an_agent_without_money_gets_nothing(door: Door) -> None:
    door.created(estimated_cost_usd=1)

    assert outsider(door, "poor", budget_usd=0.5).claim().status_code == 204
    assert outsider(door, "rich", budget_usd=1.5).claim().status_code == 200


def test_every_other_gate_holds_for_agents_too(door: Door) -> None:
    guest = door.guest(max_concurrent_agents=1)
    guest.created()
    guest.created()
    agent = outsider(guest, slots=5)
    assert agent.claim().status_code == 200
    assert agent.claim().status_code == 204, "the plan's cap"

    other = door.guest()
    other.created(project_id="site")
    other.created(project_id="site")
    agent = outsider(other, slots=5)
    assert [agent.claim().status_code for _ in range(2)] == [200, 204]

    pause(door.house.app, EVERYTHING, actor="human:test")
    door.created()
    assert outsider(door).claim().status_code == 204


def test_the_dispatcher_fills_no_pull_pool(door: Door) -> None:
    outsider(door)
    door.house.agent()

    pools = door.house.rows("SELECT name, kind FROM pools ORDER BY name")

    assert [one["kind"] for one in pools] == ["celery", "pull"]
    assert list(OpenPools(door.house.dispatcher)) == ["default"]


def test_a_drained_agent_gets_nothing_new_and_hears_of_it(door: Door) -> None:
    door.created()
    agent = outsider(door)

    assert door.ask("POST", f"{AGENTS}/{agent.id}/drain").json() == {"ok": True}

    assert agent.claim().status_code == 204
    beat = door.ask("POST", f"{AGENTS}/{agent.id}/heartbeat")
    assert beat.json() == {"status": "draining"}
    assert outsider(door).claim().status_code == 200, "coming back ends the drain"


def test_an_agent_that_left_must_register_again(door: Door) -> None:
    door.created()
    agent = outsider(door)

    assert door.ask("DELETE", f"{AGENTS}/{agent.id}").status_code == 200

    assert (agent.claim().status_code, agent.claim().json()["code"]) == (409, "AGENT_OFFLINE")
    assert outsider(door).claim().status_code == 200


def test_a_silent_agent_is_written_off_after_its_own_silence(door: Door) -> None:
    outsider(door, lease_seconds=300)
    short = outsider(door, "short")

    door.house.move_clock(LEASE + SECOND)

    assert retire_agents(door.house.dispatcher, silence=timedelta(seconds=60)) == 1
    assert short.claim().json()["code"] == "AGENT_OFFLINE"


def test_a_dead_agents_run_is_tried_again_and_not_billed(door: Door) -> None:
    task = door.created()
    agent = outsider(door)
    agent.begin()

    door.house.move_clock(LEASE + SECOND)
    assert reap(door.house.dispatcher) == 1

    attempt = door.house.one("SELECT * FROM attempts")
    assert attempt["outcome"] == "worker_lost"
    assert door.house.lane(door.user)["used_seconds"] == 0
    assert door.house.state(door.row_id(task["id"])) in {"retrying", "ready"}


def test_a_run_of_an_agent_that_came_back_is_not_taken_for_its_own_death(door: Door) -> None:
    door.created()
    agent = outsider(door)
    agent.begin()
    door.house.move_clock(LEASE)
    outsider(door)

    door.house.move_clock(SECOND)
    reap(door.house.dispatcher)

    assert door.house.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"


def test_a_claim_that_is_never_started_goes_back_for_nothing(door: Door) -> None:
    task = door.created()
    agent = outsider(door)
    work = agent.work()

    door.house.move_clock(timedelta(seconds=61))
    reap(door.house.dispatcher)

    row = door.house.row(door.row_id(task["id"]))
    assert (row["state"], row["attempts"]) == ("ready", 0)
    late = agent.say(work, "start")
    assert (late.status_code, late.json()["code"]) == (409, "STALE_ATTEMPT")


def test_workers_and_explain_count_the_agents_slots(door: Door) -> None:
    door.created()
    waiting = door.created(type="echo")
    agent = outsider(door, slots=1)
    agent.begin()

    [worker] = list_workers(door.house.app)
    assert (worker.id, worker.kind, worker.slots, worker.busy) == (agent.id, "pull", 1, 1)
    told = explain(door.house.app, door.user, parse_task(waiting["id"]), TERMS)
    [reason] = [one for one in told.reasons if one.code == "slots"]
    assert reason.details["pools"] == [{"pool": worker.pool, "busy": 1, "slots": 1}]


def test_explain_counts_nobody_elses_agents_and_no_other_types(door: Door) -> None:
    outsider(door.guest(), "theirs")
    task = parse_task(door.created(type="echo")["id"])
    outsider(door, "painter", types=["paint"])

    told = explain(door.house.app, door.user, task, TERMS)

    assert [one.code for one in told.reasons] == ["handler"]
    assert "takes no tasks of the type 'echo'" in told.reasons[0].message
    outsider(door, "echoes", types=["echo"])
    assert explain(door.house.app, door.user, task, TERMS).starts_next


def test_what_only_an_agent_that_left_knows_waits_for_it_for_a_day(door: Door) -> None:
    house = door.house
    house.agent(types=["echo"])
    away = outsider(door, types=["film"])
    task = parse_task(door.created(type="film")["id"])
    door.ask("DELETE", f"{AGENTS}/{away.id}")

    assert not house.claim().claims
    [reason] = explain(house.app, door.user, task, TERMS).reasons
    assert reason.code == "handler"
    assert "the agents outside that do are away" in reason.message

    house.move_clock(timedelta(days=1))
    house.run("UPDATE agents SET last_heartbeat_at = clock() WHERE kind = 'celery'")
    house.run("UPDATE lanes SET parked_for = '{}'")
    [claimed] = house.claim().claims
    assert claimed.claim.task_id == task
