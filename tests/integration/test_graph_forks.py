"""Forking a graph: a part of it runs anew, the rest is taken over."""

import pytest

from overnight_server.control.fork import fork
from overnight_server.control.graphs import retry
from overnight_server.domain.errors import (
    InvalidRequest,
    TooManyPending,
)
from overnight_server.domain.graphs import Condition
from overnight_server.domain.ids import UserId, show_task
from overnight_server.domain.results import Raised, Returned
from overnight_server.intake.submit import Caps, Edge, NewTask, submit_dag
from tests.support.graphs import end, linked, sound, states, status
from tests.support.house import LOOSE, House

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")
FALLBACK, CLEAN_UP = Condition.FAILURE, Condition.FINISHED


@pytest.fixture
def user(house: House) -> UserId:
    house.agent()
    return house.user()


def test_a_fork_runs_the_chosen_task_and_all_after_it_anew(house: House, user: UserId) -> None:
    root, chosen, other, joined = linked(
        house, user, 4, Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(2, 3)
    )
    for task, output in ((root, "r"), (chosen, "c"), (other, "o"), (joined, "j")):
        end(house, task, Returned(output))
    before = [house.row(one) for one in (root, chosen, other, joined)]

    forked = fork(house.app, user, chosen, LOOSE, actor="human:ada", title="once more")

    copies = [forked.tasks[one] for one in (root, chosen, other, joined)]
    assert states(house, *copies) == ["completed", "ready", "completed", "pending"]
    assert [house.row(one)["output"] for one in copies] == ["r", None, "o", None]
    assert [house.row(one)["taken_from"] for one in copies] == [root, None, other, None]
    assert forked.again == {copies[1], copies[3]}
    assert [house.row(one) for one in (root, chosen, other, joined)] == before
    dag = house.one("SELECT * FROM dags WHERE id = :id", id=forked.dag_id)
    assert (dag["title"], dag["status"], dag["completed"]) == ("once more", "running", 2)
    assert dag["forked_from"] == before[0]["dag_id"]
    end(house, copies[1], Returned())
    end(house, copies[3], Returned())
    assert status(house, copies[0]) == "completed"
    sound(house)


def test_a_fork_costs_nothing_for_what_it_takes_over(house: House, user: UserId) -> None:
    root, child = linked(house, user, 2, Edge(0, 1))
    end(house, root, Returned(cost_usd=0.5))
    before = (house.lane(user)["used_seconds"], house.lane(user)["waiting"])

    forked = fork(house.app, user, child, LOOSE, actor=ME)

    row = house.row(forked.tasks[root])
    assert (row["cost_usd"], row["epoch"], row["attempts"]) == (0, 0, 0)
    assert (house.lane(user)["used_seconds"], house.lane(user)["waiting"]) == (
        before[0],
        before[1] + 1,
    )
    sound(house)


def test_a_fork_drops_what_is_not_needed_and_runs_what_is_lacking(
    house: House, user: UserId
) -> None:
    done, fallback, dead, joined, aside = linked(
        house, user, 5, Edge(0, 1, FALLBACK), Edge(0, 3), Edge(2, 3), Edge(2, 4, CLEAN_UP)
    )
    end(house, done, Returned())
    end(house, dead, FATAL)
    end(house, aside, Returned())

    forked = fork(house.app, user, joined, LOOSE, actor=ME)

    # The dead one must run for the chosen to run; the fallback was not needed and is left behind.
    assert set(forked.tasks) == {done, dead, joined, aside}
    copies = [forked.tasks[one] for one in (done, dead, joined, aside)]
    assert states(house, *copies) == ["completed", "ready", "pending", "completed"]
    again = fork(house.app, user, fallback, LOOSE, actor=ME)
    # Forked by name, it is still not needed.
    assert house.row(again.tasks[fallback])["failure_reason"] == "not_needed"
    sound(house)


def test_a_fork_names_copies_where_specs_named_tasks(house: House, user: UserId) -> None:
    root, child = linked(house, user, 2, Edge(0, 1))
    house.run(
        "UPDATE tasks SET spec = jsonb_build_object('context_refs',"
        " jsonb_build_array(CAST(:ref AS text), 'artifact:x')) WHERE id = :id",
        ref=f"task:{show_task(root)}:output",
        id=child,
    )
    end(house, root, Returned("seen"))

    forked = fork(house.app, user, root, LOOSE, actor=ME)

    spec = house.row(forked.tasks[child])["spec"]
    assert spec["context_refs"] == [f"task:{show_task(forked.tasks[root])}:output", "artifact:x"]


def test_what_a_task_spawned_is_left_to_its_next_run(house: House, user: UserId) -> None:
    root, spawner, spawned = linked(house, user, 3, Edge(0, 1), Edge(2, 1))
    house.run(
        "UPDATE tasks SET parent_id = :p, spawn_key = 'a' WHERE id = :id", p=spawner, id=spawned
    )
    end(house, spawned, Returned())
    end(house, root, Returned())
    end(house, spawner, Returned())

    forked = fork(house.app, user, root, LOOSE, actor=ME)

    assert set(forked.tasks) == {root, spawner}
    assert house.row(forked.tasks[spawner])["unmet"] == 1
    with pytest.raises(InvalidRequest, match=f"{show_task(spawner)} spawned it"):
        fork(house.app, user, spawned, LOOSE, actor=ME)
    sound(house)


def test_a_lone_task_can_be_forked(house: House, user: UserId) -> None:
    task = house.task(user)
    end(house, task, Returned())

    forked = fork(house.app, user, task, LOOSE, actor=ME)

    assert states(house, task, forked.tasks[task]) == ["completed", "ready"]
    sound(house)


def test_a_fork_that_exceeds_a_cap_leaves_nothing_behind(house: House, user: UserId) -> None:
    root, *_ = linked(house, user, 3, Edge(0, 1), Edge(1, 2))
    before = house.one("SELECT count(*) AS n FROM tasks")["n"]

    with pytest.raises(TooManyPending):
        fork(house.app, user, root, Caps(max_pending_per_user=5), actor=ME)
    with pytest.raises(InvalidRequest, match="at most 2"):
        fork(house.app, user, root, Caps(100, max_tasks_per_dag=2), actor=ME)

    assert house.one("SELECT count(*) AS n FROM tasks")["n"] == before
    assert house.one("SELECT count(*) AS n FROM dags")["n"] == 1


def test_a_fork_under_a_known_key_is_said_to_come_from_where_it_did(
    house: House, user: UserId
) -> None:
    [first] = linked(house, user, 1)
    [second] = linked(house, user, 1)
    made = fork(house.app, user, first, LOOSE, actor=ME, idempotency_key="once")

    again = fork(house.app, user, second, LOOSE, actor=ME, idempotency_key="once")

    assert (again.dag_id, again.created) == (made.dag_id, False)
    assert again.forked_from == made.forked_from == house.row(first)["dag_id"]


def test_a_fork_under_the_key_of_a_create_is_refused(house: House, user: UserId) -> None:
    tasks = [NewTask("only", "echo")]
    dag = submit_dag(house.app, user, tasks, LOOSE, title="a graph", idempotency_key="once")

    with pytest.raises(InvalidRequest, match="was created under it"):
        fork(house.app, user, dag.tasks[0], LOOSE, actor=ME, idempotency_key="once")

    assert house.one("SELECT count(*) AS n FROM dags")["n"] == 1


def test_a_fork_has_the_tries_that_were_asked_for(house: House, user: UserId) -> None:
    task = house.task(user, max_attempts=2)
    for _ in range(2):
        end(house, task, FATAL)
        retry(house.app, user, task, actor=ME)
    assert house.row(task)["max_attempts"] > 2

    forked = fork(house.app, user, task, LOOSE, actor=ME)

    assert house.row(forked.tasks[task])["max_attempts"] == 2
    sound(house)
