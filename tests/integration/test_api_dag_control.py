"""Cancel, retry and fork graphs over HTTP, with the client and by command."""

from collections.abc import Iterator
from typing import Any

import pytest

from overnight import errors
from overnight_server.domain.ids import new_dag_id, new_task_id, show_dag, show_task
from overnight_server.domain.results import Raised, Returned
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.graphs import begin

DAGS = "/api/v1/dags"
CHAIN = [
    {"name": "first", "max_attempts": 1},
    {"name": "second", "max_attempts": 1, "after": ["first"]},
    {"name": "third", "after": ["second"]},
    {"name": "tidy", "after": [{"task": "second", "condition": "failure"}]},
]


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        api_user.deployment.agent()
        yield api_user


@pytest.fixture
def shell(api_user: ApiUser, database_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place whose commands reach this API."""
    api_user.take_commands(monkeypatch)


def made(api_user: ApiUser) -> dict[str, str]:
    """Queue the chain; return the graph's id and the tasks' by name."""
    answer = api_user.request("POST", DAGS, json={"title": "a chain", "tasks": CHAIN}).json()
    return {"dag": answer["id"], **answer["tasks"]}


def end(api_user: ApiUser, task: str, *, well: bool) -> None:
    [started] = begin(api_user.deployment, api_user.row_id(task))
    api_user.deployment.settle(started, Returned({"ok": 1}) if well else Raised("error", "boom"))


def states(api_user: ApiUser, dag: str) -> dict[str, str]:
    shown: dict[str, Any] = api_user.request("GET", f"{DAGS}/{dag}").json()
    return {task["name"]: task["state"] for task in shown["tasks"]}


def failed(api_user: ApiUser) -> dict[str, str]:
    names = made(api_user)
    end(api_user, names["first"], well=True)
    end(api_user, names["second"], well=False)
    return names


def test_a_graph_is_cancelled_whole(api_user: ApiUser) -> None:
    names = made(api_user)
    [_] = begin(api_user.deployment, api_user.row_id(names["first"]))

    answer = api_user.request("DELETE", f"{DAGS}/{names['dag']}")

    assert answer.status_code == 200
    assert answer.json() == {"cancelled": 3, "stopping": 1, "status": "running"}
    assert states(api_user, names["dag"])["third"] == "cancelled"


def test_a_graph_that_has_ended_cannot_be_cancelled(api_user: ApiUser) -> None:
    names = made(api_user)
    assert api_user.request("DELETE", f"{DAGS}/{names['dag']}").json()["status"] == "cancelled"

    again = api_user.request("DELETE", f"{DAGS}/{names['dag']}")

    assert (again.status_code, again.json()["code"]) == (409, "DAG_ALREADY_FINISHED")


def test_a_failed_task_is_retried_with_its_cancelled_dependents(api_user: ApiUser) -> None:
    names = failed(api_user)
    assert states(api_user, names["dag"]) == {
        "first": "completed",
        "second": "dead_lettered",
        "third": "cancelled",
        "tidy": "ready",
    }

    answer = api_user.request("POST", f"{TASKS}/{names['second']}/retry")

    assert answer.status_code == 200, answer.text
    assert answer.json()["dag_id"] == names["dag"]
    assert set(answer.json()["tasks"]) >= {names["second"], names["third"]}
    assert states(api_user, names["dag"])["second"] == "ready"
    again = api_user.request("POST", f"{TASKS}/{names['second']}/retry")
    assert (again.status_code, again.json()["code"]) == (409, "NOT_RETRYABLE")


def test_a_cancelled_graph_is_retried_whole(api_user: ApiUser) -> None:
    names = made(api_user)
    api_user.request("DELETE", f"{DAGS}/{names['dag']}")

    answer = api_user.request("POST", f"{DAGS}/{names['dag']}/retry")

    assert answer.status_code == 200, answer.text
    assert answer.json()["dag_id"] == names["dag"]
    assert {names["dag"], *answer.json()["tasks"]} == set(names.values())
    assert states(api_user, names["dag"])["first"] == "ready"
    again = api_user.request("POST", f"{DAGS}/{names['dag']}/retry")
    assert (again.status_code, again.json()["code"]) == (409, "NOT_RETRYABLE")
    unknown = api_user.request("POST", f"{DAGS}/{show_dag(new_dag_id())}/retry")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "DAG_NOT_FOUND")


def test_a_fork_runs_a_part_again_and_leaves_the_old_graph_unchanged(api_user: ApiUser) -> None:
    names = failed(api_user)
    before = states(api_user, names["dag"])

    answer = api_user.request(
        "POST", f"{TASKS}/{names['second']}/fork", json={"title": "once more"}
    )

    fork = answer.json()
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"{DAGS}/{fork['id']}"
    assert fork["forked_from"] == names["dag"]
    assert list(fork["tasks"]) == ["first", "second", "third", "tidy"]
    assert set(fork["tasks"].values()).isdisjoint(names.values())
    shown = api_user.request("GET", f"{DAGS}/{fork['id']}").json()
    assert (shown["title"], shown["forked_from"]) == ("once more", names["dag"])
    assert states(api_user, fork["id"])["first"] == "completed"
    assert states(api_user, fork["id"])["second"] == "ready"
    assert states(api_user, names["dag"]) == before


def test_the_same_key_forks_once(api_user: ApiUser) -> None:
    names = failed(api_user)
    path = f"{TASKS}/{names['second']}/fork"

    first = api_user.request("POST", path, headers={"Idempotency-Key": "once"})
    again = api_user.request("POST", path, json={"idempotency_key": "once"})

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert len(api_user.request("GET", DAGS).json()) == 2


def test_a_fork_is_bounded_like_a_submit(api_user: ApiUser) -> None:
    names = failed(api_user)
    api_user.deployment.run("UPDATE users SET max_tasks_per_dag = 2")

    answer = api_user.request("POST", f"{TASKS}/{names['second']}/fork")

    assert answer.status_code == 400
    assert answer.json()["errors"][0]["legal"] == "at most 2"


def test_a_wrong_field_of_a_fork_is_named(api_user: ApiUser) -> None:
    answer = api_user.request(
        "POST", f"{TASKS}/{show_task(new_task_id())}/fork", json={"titel": "x"}
    )

    assert answer.status_code == 422
    [wrong] = answer.json()["errors"]
    assert (wrong["field"], wrong["legal"]) == ("titel", "one of title, idempotency_key")


def test_another_users_tasks_and_graphs_are_not_found(api_user: ApiUser) -> None:
    theirs = failed(api_user.new_user())
    before = states_of_all(api_user)

    for method, path, unknown in (
        ("DELETE", f"{DAGS}/{theirs['dag']}", f"{DAGS}/{show_dag(new_dag_id())}"),
        *(
            (
                "POST",
                f"{TASKS}/{theirs['second']}/{verb}",
                f"{TASKS}/{show_task(new_task_id())}/{verb}",
            )
            for verb in ("retry", "fork")
        ),
    ):
        mine, none = api_user.request(method, path), api_user.request(method, unknown)
        assert (mine.status_code, mine.text) == (404, none.text)

    assert states_of_all(api_user) == before


def states_of_all(api_user: ApiUser) -> list[Any]:
    return api_user.deployment.rows("SELECT id, state FROM tasks ORDER BY id")


def test_a_key_that_may_only_read_changes_nothing(api_user: ApiUser) -> None:
    reader = api_user.new_user(scopes=("tasks:read",))

    assert reader.request("DELETE", f"{DAGS}/dag_x").status_code == 403
    assert reader.request("POST", f"{DAGS}/dag_x/retry").status_code == 403
    assert reader.request("POST", f"{TASKS}/task_x/retry").status_code == 403
    assert reader.request("POST", f"{TASKS}/task_x/fork").status_code == 403


def test_the_client_cancels_retries_and_forks(api_user: ApiUser) -> None:
    client = api_user.client()
    names = failed(api_user)

    assert names["third"] in client.dags.retry(names["second"]).tasks
    forked = client.dags.fork(names["second"], title="again")
    stopped = client.dags.cancel(forked.id)

    assert forked.forked_from == names["dag"]
    assert (stopped.cancelled, stopped.status) == (3, "cancelled")
    with pytest.raises(errors.DagAlreadyFinished):
        client.dags.cancel(forked.id)
    assert len(client.dags.retry(forked.id).tasks) == 3
    with pytest.raises(errors.NotRetryable):
        client.dags.retry(names["second"])


@pytest.mark.usefixtures("shell")
def test_the_commands_cancel_retry_and_fork(api_user: ApiUser) -> None:
    names = failed(api_user)

    retried = run("dag", "retry", names["second"])
    forked = run("dag", "fork", names["second"][-8:], "--title", "again")
    stopped = run("dag", "cancel", forked.stdout.strip())

    assert retried.stdout.strip() == names["second"], retried.stderr
    assert forked.stdout.startswith("dag_"), forked.stderr
    assert stopped.stdout.endswith(" is cancelled: 3 cancelled\n"), stopped.stderr
    assert "has already ended" in run("dag", "cancel", forked.stdout.strip()).stderr
    back = run("dag", "retry", forked.stdout.strip()[-8:])
    assert back.stdout == forked.stdout, back.stderr
    assert back.stderr.startswith("3 tasks will run again")
