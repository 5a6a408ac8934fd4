"""Every act of a person leaves a line: who, what, to whom, through which door."""

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest

from app.control.dead_letters import discard
from app.control.keys import issue, key_id_of, revoke
from app.control.pauses import Target, pause, resume
from app.control.users import change_plan, create_user
from app.control.windows import set_window
from app.domain.plans import PlanTier
from app.domain.results import Raised
from app.insight.audit import Act, list_acts
from tests.support.command import run
from tests.support.door import TASKS, Door, open_door
from tests.support.house import House

AUDIT = "/api/v1/admin/audit"


@pytest.fixture
def door(house: House, database_url: str) -> Iterator[Door]:
    with open_door(house, database_url) as door:
        yield door


def _acts(house: House, **filters: object) -> list[Act]:
    return list_acts(house.app, **filters)  # type: ignore[arg-type]


def _said(acts: list[Act]) -> list[str]:
    return [act.act for act in reversed(acts)]


def test_what_a_caller_does_is_recorded_with_the_key_that_was_shown(door: Door) -> None:
    task = door.created()
    made = door.ask("POST", "/api/v1/keys", json={"name": "ci"}).json()
    door.ask("DELETE", f"/api/v1/keys/{made['id']}")
    door.ask("DELETE", f"{TASKS}/{task['id']}")

    acts = [act for act in _acts(door.house) if act.actor == f"user:{door.user}"]

    assert _said(acts) == ["task.ready", "key.issued", "key.revoked", "task.cancelled"]
    by_act = {act.act: act for act in acts}
    assert by_act["key.issued"].key_id == key_id_of(door.key)
    assert by_act["key.issued"].target == made["id"]
    assert by_act["key.issued"].detail["name"] == "ci"
    assert by_act["task.cancelled"].detail == {
        "from": "ready",
        "to": "cancelled",
        "reason": "cancelled",
    }
    assert {act.via for act in acts} == {"overnight-api"}


def test_no_line_holds_what_opens_a_door(door: Door) -> None:
    door.ask("POST", "/api/v1/keys", json={"name": "ci"})
    hashes = [row["hash"] for row in door.house.rows("SELECT hash FROM api_keys")]

    written = json.dumps([act.detail for act in _acts(door.house)], default=str)

    assert hashes
    assert not any(one in written for one in hashes)


def test_looking_and_failing_leave_no_line(door: Door) -> None:
    before = len(_acts(door.house))

    door.ask("GET", TASKS)
    door.ask("DELETE", f"{TASKS}/nonsense")
    door.ask("DELETE", "/api/v1/keys/000000000000")
    door.create(priority=99)
    door.ask("GET", "/api/v1/keys")

    assert len(_acts(door.house)) == before


def test_what_an_admin_does_to_another_is_told_apart(door: Door) -> None:
    root = door.guest(is_admin=True)

    made = root.ask("POST", f"/api/v1/admin/users/{door.user}/keys", json={"name": "given"})

    [act] = [one for one in _acts(door.house, user_id=door.user) if one.target == made.json()["id"]]
    name = door.house.one("SELECT name FROM users WHERE id = :id", id=door.user)["name"]
    assert (act.actor, act.user, act.key_id) == (f"user:{root.user}", name, key_id_of(root.key))


def test_every_change_of_what_may_be_done_leaves_a_line(house: House) -> None:
    user = create_user(house.app, name="ada", plan=PlanTier.FREE)
    change_plan(house.app, user, PlanTier.PRO)
    set_window(house.app, user, None)
    key = issue(house.app, user, name="laptop")
    revoke(house.app, key_id_of(key))
    pause(house.dispatcher, Target(user_id=user), actor="human:bob", note="calm")
    resume(house.dispatcher, Target(user_id=user), actor="human:bob")
    house.agent()
    doomed = house.running(user, max_attempts=1)
    house.settle(doomed, Raised("error", "no luck"))
    discard(house.dispatcher, doomed.claim.task_id, actor="human:bob")

    acts = _acts(house, user_id=user)

    assert _said(acts) == [
        *("user.created", "user.changed", "key.issued", "key.revoked", "paused", "resumed"),
        "dead_letter.resolved",
    ]
    assert {act.actor for act in acts[:3]} == {"human:bob"}
    changed = next(act for act in acts if act.act == "user.changed")
    assert changed.detail["plan_tier"] == ["free", "pro"]
    assert "name" not in changed.detail


def test_a_month_ago_is_left_out_when_only_this_week_is_asked(house: House) -> None:
    house.user(name="ada")
    house.move_clock(timedelta(days=30))
    house.user(name="bob")

    assert [act.user for act in _acts(house, within=timedelta(days=7))] == ["bob"]
    assert [act.user for act in _acts(house)] == ["bob", "ada"]
    assert [act.user for act in _acts(house, limit=1)] == ["bob"]


def test_admins_read_the_trail_over_http(door: Door) -> None:
    root = door.guest(is_admin=True)
    name = door.house.one("SELECT name FROM users WHERE id = :id", id=door.user)["name"]

    every = root.ask("GET", AUDIT)
    one = root.ask("GET", f"{AUDIT}?user={name}")
    none = root.ask("GET", AUDIT, params={"since": "2999-01-01T00:00:00Z"})

    assert every.status_code == 200, every.text
    assert len(every.json()) > len(one.json()) > 0
    assert {act["user"] for act in one.json()} == {name}
    assert none.json() == []
    assert root.ask("GET", f"{AUDIT}?limit=1001").status_code == 400
    assert root.ask("GET", f"{AUDIT}?since=yesterday").status_code == 400


@pytest.mark.usefixtures("operators_place")
def test_what_operators_do_at_the_terminal_bears_their_name(house: House) -> None:
    run("user", "add", "ada")
    run("key", "issue", "ada")
    run("user", "plan", "ada", "pro")

    listed = run("audit", "list", "--user", "ada", "--since", "1h", "--json")
    table = run("audit", "list")

    acts = json.loads(listed.stdout)
    assert [act["act"] for act in acts] == ["user.changed", "key.issued", "user.created"]
    assert all(act["actor"].startswith("human:") for act in acts)
    assert {act["via"] for act in acts} == {"overnight-cli"}
    assert "plan_tier=free→pro" in table.stdout
    assert run("audit", "list", "--user", "nobody").exit_code != 0
