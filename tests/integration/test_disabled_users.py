"""What becomes of a user's work while the user is shut out: it rests, and nothing is lost."""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from sqlalchemy import text

from overnight_server.control.cancel import cancel
from overnight_server.control.keys import issue
from overnight_server.control.users import disable_user, enable_user
from overnight_server.domain.errors import UserDisabled
from overnight_server.domain.ids import UserId, lone_dag_id
from overnight_server.domain.results import Returned
from overnight_server.intake.grow_graph import Seed, SpawnCaps, spawn
from overnight_server.intake.inbox import take_in
from overnight_server.intake.submit import NewGraph, NewTask
from overnight_server.intake.triggers import add_trigger
from overnight_server.maintenance.bulk import work_off
from overnight_server.maintenance.triggers import fire_due
from overnight_server.settings import load
from overnight_server.store.db import Db
from tests.support.bulk import ME, begin, order, seen, sound
from tests.support.door import Door, open_door
from tests.support.house import LOOSE, House
from tests.support.outside import outsider
from tests.support.rivals import Rival, meet_at_lane

SETTINGS = load({})
GRAPH = {"title": "second", "tasks": [{"name": "b", "title": "b"}]}


@pytest.fixture
def user(house: House) -> UserId:
    house.agent()
    return house.user()


@pytest.fixture
def door(house: House, database_url: str) -> Iterator[Door]:
    with open_door(house, database_url) as door:
        yield door
    sound(house)


def leave(house: House, user: UserId, *titles: str) -> None:
    """Leave tasks in the inbox, as any program in the database can."""
    key = issue(house.app, user, name="shop")
    stored = hashlib.sha256(key.encode()).hexdigest()
    proof = hashlib.sha256(f"overnight inbox {stored}".encode()).hexdigest()
    submitted = text(
        "SELECT overnight_inbox_submit(:id, :proof, jsonb_build_object('title', :title))"
    )
    with house.owner.engine.begin() as tx:
        for title in titles:
            named = {"id": key.split("_")[2], "proof": proof, "title": title}
            tx.execute(submitted, named)


def titles(house: House) -> list[str]:
    return [row["title"] for row in house.rows("SELECT title FROM tasks ORDER BY created_at, id")]


def test_a_bulk_operation_rests_and_goes_on(house: House, user: UserId) -> None:
    task, other = house.task(user), house.user()
    its = house.task(other)
    bulk_id = begin(house, user, order("cancel", status="pending"))
    begin(house, other, order("cancel", status="pending"))

    disable_user(house.app, user)

    assert work_off(house.dispatcher) == 1
    assert [house.state(one) for one in (task, its)] == ["ready", "cancelled"]
    assert seen(house, user, bulk_id).state == "running"

    enable_user(house.app, user)

    assert work_off(house.dispatcher) == 1
    assert house.state(task) == "cancelled"
    assert seen(house, user, bulk_id).state == "completed"
    sound(house)


def test_a_trigger_waits_and_fires(door: Door) -> None:
    house, dag = door.house, door.created()["dag_id"]
    made = door.ask(
        "POST", f"/api/v1/dags/{dag}/triggers", json={"when": "finished", "graph": GRAPH}
    )
    assert made.status_code == 201, made.text
    door.ask("DELETE", f"/api/v1/dags/{dag}")
    before = titles(house)

    disable_user(house.app, door.user)

    assert fire_due(house.dispatcher, LOOSE) == 0
    assert titles(house) == before

    enable_user(house.app, door.user)

    assert fire_due(house.dispatcher, LOOSE) == 1
    assert titles(house) == [*before, "b"]


def test_rows_of_the_inbox_wait_and_come_in_in_their_order(house: House, user: UserId) -> None:
    other = house.user()
    leave(house, user, "first", "second")
    leave(house, other, "another user's")

    disable_user(house.app, user)

    assert take_in(house.dispatcher, SETTINGS) == 1
    assert titles(house) == ["another user's"]

    enable_user(house.app, user)

    assert take_in(house.dispatcher, SETTINGS) == 2
    assert titles(house) == ["another user's", "first", "second"]
    sound(house)


def _cancels(house: House, user: UserId) -> None:
    begin(house, user, order("cancel", status="pending"))


def _rows(house: House, user: UserId) -> None:
    leave(house, user, "late")


def _trigger(house: House, user: UserId) -> None:
    ended = house.task(user)
    cancel(house.app, user, ended, actor=ME)
    graph = NewGraph([NewTask("late", "echo")])
    add_trigger(house.app, user, lone_dag_id(ended), graph, LOOSE, actor=ME, when="finished")


@pytest.mark.parametrize(
    ("prepare", "sweep"),
    [
        (_cancels, work_off),
        (_rows, lambda db: take_in(db, SETTINGS)),
        (_trigger, lambda db: fire_due(db, LOOSE)),
    ],
)
def test_what_was_about_to_go_on_looks_again_behind_the_lane(
    house: House,
    user: UserId,
    connect: Callable[..., Db],
    prepare: Callable[[House, UserId], None],
    sweep: Callable[[Db], int],
) -> None:
    """The sweep has chosen the user already when the user is shut out."""
    task = house.task(user, title="early")
    prepare(house, user)
    before = titles(house)
    as_admin = partial(connect, role="overnight_admin")
    shutting = Rival(as_admin, "shutting", disable_user, user)
    sweeping = Rival(connect, "sweeping", sweep)

    assert meet_at_lane(connect, user, shutting, sweeping) == [True, 0]

    assert titles(house) == before
    assert house.state(task) == "ready"
    sound(house)


def test_a_run_may_end_but_spawns_nothing(door: Door) -> None:
    door.created()
    laptop = outsider(door)
    work = laptop.begin()
    before = laptop.say(work, "spawn", key="one", task={"title": "before"})

    disable_user(door.house.app, door.user)

    assert laptop.say(work, "heartbeat").status_code == 200
    refused = laptop.say(work, "spawn", key="two", task={"title": "more"})
    assert (refused.status_code, refused.json()["code"]) == (403, "USER_DISABLED")
    # What it had spawned it may hear of again.
    again = laptop.say(work, "spawn", key="one", task={"title": "before"})
    assert (again.status_code, again.json()["id"]) == (200, before.json()["id"])
    assert laptop.say(work, "complete", output={"n": 1}).status_code == 200
    assert door.house.state(door.row_id(work["task_id"])) == "completed"
    assert titles(door.house)[1:] == ["before"]


def test_a_run_in_the_house_spawns_nothing_either(house: House, user: UserId) -> None:
    run = house.running(user)
    disable_user(house.app, user)

    seed = Seed(NewTask("child", "echo"), "child")
    with pytest.raises(UserDisabled, match="owner is disabled"):
        spawn(house.dispatcher, user, run.claim, seed, SpawnCaps(LOOSE))

    assert house.settle(run, Returned())
    sound(house)
