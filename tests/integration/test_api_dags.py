"""Graphs over HTTP: create, list, read, and errors by field."""

from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import Response

from overnight_server.domain.ids import TaskId, new_dag_id, show_dag, show_task
from overnight_server.domain.results import Returned
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.spawn import NewChild, SpawnCaps, spawn
from overnight_server.outcome.inputs import inputs_of
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import LOOSE, Deployment
from tests.support.graphs import begin

DAGS = "/api/v1/dags"
DIAMOND = [
    {"name": "research", "type": "echo"},
    {"name": "design", "type": "echo", "after": ["research"]},
    {"name": "copy", "type": "echo", "after": [{"task": "research", "condition": "finished"}]},
    {"name": "build", "title": "Build it", "after": ["design", "copy"]},
]


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def create(api_user: ApiUser, tasks: list[dict[str, Any]] = DIAMOND, **fields: Any) -> Response:
    return api_user.request("POST", DAGS, json={"title": "a page", "tasks": tasks, **fields})


def created(
    api_user: ApiUser, tasks: list[dict[str, Any]] = DIAMOND, **fields: Any
) -> dict[str, Any]:
    answer = create(api_user, tasks, **fields)
    assert answer.status_code == 201, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def read(api_user: ApiUser, dag_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = api_user.request("GET", f"{DAGS}/{dag_id}").json()
    return shown


def faults(answer: Response) -> list[tuple[str, str]]:
    return [(error["field"], error["message"]) for error in answer.json()["errors"]]


def nothing_was_written(api_user: ApiUser) -> bool:
    sql = "SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM dags) AS n"
    return api_user.deployment.one(sql)["n"] == 0


def test_the_response_to_a_graph_has_its_ids_and_its_shape(api_user: ApiUser) -> None:
    answer = create(api_user, budget_usd=5)

    dag = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{DAGS}/{dag['id']}"
    assert list(dag["tasks"]) == ["research", "design", "copy", "build"]
    assert dag["roots"] == ["research"]
    assert dag["leaves"] == ["build"]
    assert dag["critical_path"] == {"tasks": ["research", "design", "build"], "weight": 3}
    rows = {
        task: api_user.deployment.row(api_user.row_id(shown))
        for task, shown in dag["tasks"].items()
    }
    assert {name: row["state"] for name, row in rows.items()} == {
        "research": "ready",
        "design": "pending",
        "copy": "pending",
        "build": "pending",
    }
    assert rows["build"]["title"] == "Build it"
    assert rows["copy"]["title"] == "copy"


def test_a_graph_is_read_whole(api_user: ApiUser) -> None:
    made = created(api_user, budget_usd=5)
    api_user.deployment.agent()
    [run] = begin(api_user.deployment, api_user.row_id(made["tasks"]["research"]))
    api_user.deployment.settle(run, Returned({"found": 3}))

    dag = read(api_user, made["id"])

    assert (dag["status"], dag["title"], dag["budget_usd"]) == ("running", "a page", 5.0)
    assert dag["counts"] == {"total": 4, "open": 3, "completed": 1, "failed": 0, "cancelled": 0}
    states = {task["name"]: task["state"] for task in dag["tasks"]}
    assert states == {
        "research": "completed",
        "design": "ready",
        "copy": "ready",
        "build": "pending",
    }
    assert dag["tasks"][0]["run_seconds"] >= 0
    names = {shown: name for name, shown in made["tasks"].items()}
    edges = {
        (names[edge["parent"]], names[edge["child"]]): (edge["condition"], edge["satisfied"])
        for edge in dag["edges"]
    }
    assert edges == {
        ("research", "design"): ("success", True),
        ("research", "copy"): ("finished", True),
        ("design", "build"): ("success", False),
        ("copy", "build"): ("success", False),
    }


def test_a_graph_can_be_read_without_its_tasks(api_user: ApiUser) -> None:
    made = created(api_user)

    dag = api_user.request("GET", f"{DAGS}/{made['id']}", params={"tasks": "false"}).json()

    assert dag["counts"]["total"] == 4
    assert dag["tasks"] == dag["edges"] == []


def test_edges_may_be_listed_beside_the_tasks(api_user: ApiUser) -> None:
    tasks = [{"name": "a"}, {"name": "b"}, {"name": "c", "depends_on": ["a"]}]
    edges = [{"parent": "a", "child": "b", "condition": "failure"}, {"parent": "b", "child": "c"}]

    made = created(api_user, tasks, edges=edges)

    conditions = api_user.deployment.rows(
        "SELECT condition FROM task_edges ORDER BY child_id, parent_id"
    )
    assert [row["condition"] for row in conditions] == ["failure", "success", "success"]
    assert made["leaves"] == ["c"]


def test_on_unmet_is_set_for_the_graph_or_for_single_tasks(api_user: ApiUser) -> None:
    tasks = [
        {"name": "a"},
        {"name": "on", "after": ["a"]},
        {"name": "off", "after": ["a"], "on_unmet": "cancel"},
        {"name": "own", "after": [{"task": "a", "condition": "failure", "on_unmet": "cancel"}]},
    ]

    made = created(api_user, tasks, on_unmet="continue")

    names = {shown: name for name, shown in made["tasks"].items()}
    edges = read(api_user, made["id"])["edges"]
    assert {names[edge["child"]]: (edge["condition"], edge["on_unmet"]) for edge in edges} == {
        "on": ("success", "continue"),
        "off": ("success", "cancel"),
        "own": ("failure", "cancel"),
    }


def test_a_repeated_key_returns_the_existing_graph(api_user: ApiUser) -> None:
    first = created(api_user, idempotency_key="tonight")

    again = create(api_user, [{"name": "other"}], idempotency_key="tonight")
    by_header = api_user.request(
        "POST", DAGS, json={"title": "b", "tasks": DIAMOND}, headers={"Idempotency-Key": "tonight"}
    )
    theirs = create(api_user.new_user(), idempotency_key="tonight")

    assert (again.status_code, again.json()) == (200, first)
    assert by_header.json() == first
    assert theirs.status_code == 201
    assert api_user.deployment.one("SELECT count(*) AS n FROM dags")["n"] == 2


def test_the_existing_graph_is_returned_with_its_task_names(api_user: ApiUser) -> None:
    tasks = [{"name": "plan", "type": "echo"}, {"name": "act", "type": "echo"}]
    first = created(api_user, tasks, idempotency_key="tonight")
    api_user.deployment.agent()
    [run] = begin(api_user.deployment, TaskId(api_user.row_id(first["tasks"]["act"])))
    seed = NewChild(NewTask("a plan of its own", "echo", name="plan"), "plan")
    child = spawn(
        api_user.deployment.dispatcher, api_user.user, run.claim, seed, SpawnCaps(LOOSE)
    ).task_id

    again = create(api_user, tasks, idempotency_key="tonight").json()

    assert again["tasks"] == {**first["tasks"], show_task(child): show_task(child)}


def test_two_keys_that_differ_are_refused(api_user: ApiUser) -> None:
    answer = api_user.request(
        "POST",
        DAGS,
        json={"title": "b", "tasks": DIAMOND, "idempotency_key": "one"},
        headers={"Idempotency-Key": "two"},
    )

    assert answer.status_code == 400
    assert nothing_was_written(api_user)


@pytest.mark.parametrize(
    ("tasks", "field", "message"),
    [
        (
            [{"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]}],
            "tasks.1.after.0",
            "Would create circular dependency: a → b → a",
        ),
        (
            [{"name": "a"}, {"name": "b", "after": ["a", "c"]}, {"name": "c", "after": ["b"]}],
            "tasks.2.after.0",
            "Would create circular dependency: b → c → b",
        ),
        (
            [{"name": "a", "after": ["a"]}],
            "tasks.0.after.0",
            "Would create circular dependency: a → a",
        ),
        (
            [{"name": "research"}, {"name": "b", "after": ["reserch"]}],
            "tasks.1.after.0",
            "no task of this graph is called 'reserch'; did you mean 'research'?",
        ),
        (
            [{"name": "a"}, {"name": "b"}, {"name": "a"}],
            "tasks.2.name",
            "'a' is the name of tasks.0 already",
        ),
        (
            [{"name": "a"}, {"name": "b", "after": ["a", "a"]}],
            "tasks.1.after.1",
            "'a' is listed twice",
        ),
    ],
)
def test_an_invalid_graph_is_refused_by_field_and_writes_nothing(
    api_user: ApiUser, tasks: list[dict[str, Any]], field: str, message: str
) -> None:
    answer = create(api_user, tasks)

    assert answer.status_code == 422
    assert answer.json()["code"] == "INVALID_GRAPH"
    assert faults(answer) == [(field, message)]
    assert answer.json()["errors"][0]["legal"]
    assert nothing_was_written(api_user)


def test_a_cycle_through_the_edges_names_the_edge(api_user: ApiUser) -> None:
    answer = create(
        api_user,
        [{"name": "a"}, {"name": "b", "after": ["a"]}],
        edges=[{"parent": "b", "child": "a"}],
    )

    assert faults(answer) == [("edges.0", "Would create circular dependency: a → b → a")]
    assert nothing_was_written(api_user)


def test_all_unknown_names_are_reported_at_once(api_user: ApiUser) -> None:
    answer = create(
        api_user, [{"name": "a", "after": ["x", "y"]}], edges=[{"parent": "a", "child": "z"}]
    )

    assert [field for field, _ in faults(answer)] == [
        "tasks.0.after.0",
        "tasks.0.after.1",
        "edges.0.child",
    ]


@pytest.mark.parametrize(
    ("body", "field", "legal"),
    [
        ({"tasks": [{"name": "a"}]}, "title", "text"),
        ({"title": "x", "tasks": []}, "tasks", "a list"),
        ({"title": "x", "tasks": [{"title": "t"}]}, "tasks.0.name", "text that matches"),
        ({"title": "x", "tasks": [{"name": "a b"}]}, "tasks.0.name", "text that matches"),
        ({"title": "x", "tasks": [{"name": "a", "aftr": []}]}, "tasks.0.aftr", "after"),
        ({"title": "x", "tasks": [{"name": "a", "after": 7}]}, "tasks.0.after", "list"),
        (
            {"title": "x", "tasks": [{"name": "a", "after": [7]}]},
            "tasks.0.after.0",
            "a JSON object",
        ),
        (
            {"title": "x", "tasks": [{"name": "a", "after": [{"task": "b", "condition": "ok"}]}]},
            "tasks.0.after.0.condition",
            "success, finished, failure",
        ),
        ({"title": "x", "tasks": [{"name": "a", "priority": 9}]}, "tasks.0.priority", "1 to 4"),
        (
            {"title": "x", "tasks": [{"name": "a", "idempotency_key": "k"}]},
            "tasks.0.idempotency_key",
            "null",
        ),
        (
            {"title": "x", "tasks": [{"name": "a"}], "on_unmet": "explode"},
            "on_unmet",
            "cancel, continue",
        ),
        ({"title": "x", "tasks": [{"name": "a"}], "budget_usd": -1}, "budget_usd", "a number"),
        ({"title": "x", "tasks": [{"name": "a\x00"}]}, "tasks.0.name", "text"),
    ],
)
def test_a_wrong_field_is_named_with_its_legal_values(
    api_user: ApiUser, body: dict[str, Any], field: str, legal: str
) -> None:
    answer = api_user.request("POST", DAGS, json=body)

    assert answer.status_code == 422, answer.text
    [wrong] = answer.json()["errors"]
    assert wrong["field"] == field
    assert legal in wrong["legal"]
    assert nothing_was_written(api_user)


def test_a_graph_counts_all_its_tasks_against_the_cap_on_waiting_ones(api_user: ApiUser) -> None:
    other_user = api_user.new_user(max_pending=3)

    answer = create(other_user)

    assert (answer.status_code, answer.json()["code"]) == (400, "TOO_MANY_PENDING")
    assert "0 of your tasks are waiting and 4 more were requested" in answer.json()["detail"]
    assert nothing_was_written(api_user)


@pytest.mark.parametrize(("own", "status"), [(None, 400), (4, 201), (3, 400)])
def test_a_user_may_have_a_cap_on_graphs_of_their_own(
    deployment: Deployment, database_url: str, own: int | None, status: int
) -> None:
    with serve_api(deployment, database_url, OVERNIGHT_MAX_TASKS_PER_DAG="2") as api_user:
        answer = create(api_user.new_user(max_tasks_per_dag=own))

        assert answer.status_code == status
        if status == 400:
            [wrong] = answer.json()["errors"]
            assert (wrong["field"], wrong["legal"]) == ("tasks", f"at most {own or 2}")
            assert nothing_was_written(api_user)


def test_a_graph_without_edges_is_bounded_too(deployment: Deployment, database_url: str) -> None:
    with serve_api(deployment, database_url, OVERNIGHT_MAX_TASKS_PER_DAG="2") as api_user:
        assert create(api_user, [{"name": name} for name in "abc"]).status_code == 400


def test_the_body_of_a_graph_may_be_larger_than_that_of_a_task(api_user: ApiUser) -> None:
    text = "x" * 90_000
    tasks = [{"name": f"t{n}", "description": text} for n in range(20)]

    assert create(api_user, tasks).status_code == 201
    assert api_user.create(description="x", payload={"a": ["y" * 1000] * 2000}).status_code == 413


def test_graphs_are_listed_newest_first_page_by_page(api_user: ApiUser) -> None:
    made = [created(api_user, title=f"graph {n}")["id"] for n in range(3)]
    api_user.created(title="a lone task")

    first = api_user.request("GET", DAGS, params={"limit": 2})
    rest = api_user.request(
        "GET", DAGS, params={"limit": 2, "before": first.headers["X-Next-Cursor"]}
    )

    assert [dag["id"] for dag in first.json()] == made[:0:-1]
    assert [dag["id"] for dag in rest.json()] == made[:1]
    assert 'rel="next"' in first.headers["link"]
    assert "X-Next-Cursor" not in rest.headers
    assert api_user.request("GET", DAGS, params={"status": "completed"}).json() == []
    assert len(api_user.request("GET", DAGS, params={"status": "Running"}).json()) == 3


@pytest.mark.parametrize(
    "query", [{"status": "odd"}, {"before": "x"}, {"limit": 0}, {"limit": 101}]
)
def test_a_list_refuses_an_unknown_status(api_user: ApiUser, query: dict[str, Any]) -> None:
    answer = api_user.request("GET", DAGS, params=query)

    assert answer.status_code == 400
    assert faults(answer)[0][0] in query


def test_a_lone_task_is_a_graph_of_one(api_user: ApiUser) -> None:
    task = api_user.created(title="alone")

    dag = read(api_user, task["dag_id"])

    assert (dag["title"], dag["status"], dag["counts"]["total"]) == ("alone", "running", 1)
    assert [task["id"] for task in dag["tasks"]] == dag["roots"] == dag["leaves"] == [task["id"]]


def test_another_users_graph_is_not_found(api_user: ApiUser) -> None:
    made = created(api_user.new_user())
    unknown = show_dag(new_dag_id())

    answers = [
        api_user.request("GET", f"{DAGS}/{name}")
        for name in (made["id"], unknown, "dag_x", "%00", "x" * 300)
    ]

    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].json()["code"] == "DAG_NOT_FOUND"
    assert api_user.request("GET", DAGS).json() == []


def test_a_read_only_key_cannot_create_a_graph(api_user: ApiUser) -> None:
    reader = api_user.new_user(scopes=("tasks:read",))

    assert create(reader).status_code == 403
    assert reader.request("GET", DAGS).status_code == 200
    assert api_user.new_user(scopes=("tasks:write",)).request("GET", DAGS).status_code == 403


def test_a_planned_graph_is_checked_like_a_submitted_one_and_not_stored(api_user: ApiUser) -> None:
    api_user.deployment.agent()
    body = {"title": "a page", "tasks": DIAMOND, "by_at": "2999-01-01T00:00:00Z"}

    answer = api_user.request("POST", f"{DAGS}/plan", json=body)
    refused = api_user.request(
        "POST", f"{DAGS}/plan", json={**body, "tasks": [{"name": "a", "after": ["a"]}]}
    )

    assert answer.status_code == 200, answer.text
    assert answer.json()["tasks"] == answer.json()["sure"] == 4
    assert refused.json()["code"] == "INVALID_GRAPH"
    assert nothing_was_written(api_user)


def test_a_name_in_a_reference_is_waited_for_and_read(api_user: ApiUser) -> None:
    dag = created(
        api_user,
        [
            {"name": "research", "type": "echo"},
            {"name": "report", "type": "echo", "context_refs": ["task:research:output"]},
        ],
    )
    api_user.deployment.agent()
    assert (dag["roots"], dag["leaves"]) == (["research"], ["report"])
    assert dag["critical_path"] == {"tasks": ["research", "report"], "weight": 2}
    ids = {task["name"]: api_user.row_id(task["id"]) for task in read(api_user, dag["id"])["tasks"]}
    assert api_user.deployment.state(ids["report"]) == "pending"

    [run] = begin(api_user.deployment, TaskId(ids["research"]))
    api_user.deployment.settle(run, Returned({"found": 3}))

    assert inputs_of(api_user.deployment.dispatcher, api_user.user, TaskId(ids["report"])) == {
        "research": {"found": 3},
        "task:research:output": {"found": 3},
    }


def test_in_a_plan_a_task_waits_for_the_outputs_it_reads(api_user: ApiUser) -> None:
    api_user.deployment.agent()
    tasks = [
        {"name": "research", "type": "echo"},
        {"name": "report", "type": "echo", "context_refs": ["task:research:output"]},
    ]

    plan = api_user.request("POST", f"{DAGS}/plan", json={"title": "a page", "tasks": tasks}).json()

    research, report = plan["steps"]
    assert report["start"]["p50_at"] > research["start"]["p50_at"]


def test_a_reference_to_a_name_that_is_not_there_writes_nothing(api_user: ApiUser) -> None:
    answer = create(api_user, [{"name": "a", "type": "echo", "context_refs": ["task:b:output"]}])

    assert answer.status_code == 400
    assert [field for field, _ in faults(answer)] == ["context_refs"]
    assert nothing_was_written(api_user)
