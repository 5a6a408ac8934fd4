"""`client.dags` and the builder against the real API."""

from collections.abc import Iterator

import pytest

from overnight import Client, dag, errors
from overnight_server.domain.results import Raised, Returned
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.graphs import begin


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        api_user.deployment.agent()
        yield api_user


@pytest.fixture
def client(api_user: ApiUser) -> Client:
    return api_user.client()


def finish(api_user: ApiUser, *names: str) -> None:
    for name in names:
        [run] = begin(api_user.deployment, api_user.row_id(name))
        assert api_user.deployment.settle(run, Returned({"done": name}))


def test_the_end_of_the_block_submits_the_graph(client: Client) -> None:
    with dag("a page", client=client) as page:
        research = page.task("Research", type="echo")
        build = page.task("Build", type="echo", after=[research])

    assert page.created.roots == ["research"]
    assert page.created.tasks == {"research": research.id, "build": build.id}
    assert client.tasks.get(build.id).state == "pending"
    assert page.submit(client) is page.created
    with pytest.raises(ValueError, match="submitted already"):
        page.task("Too late", type="echo")


def test_an_exception_in_the_block_submits_nothing(client: Client) -> None:
    def build_half() -> None:
        with dag("a page", client=client) as page:
            page.task("Research")
            raise KeyError("the rest")

    with pytest.raises(KeyError):
        build_half()

    assert list(client.dags.list()) == []


def test_wait_returns_when_the_graph_has_ended(api_user: ApiUser, client: Client) -> None:
    made = client.dags.create(
        {"title": "two", "tasks": [{"name": "a"}, {"name": "b", "after": ["a"]}]}
    )
    with pytest.raises(errors.DagWaitTimedOut, match="0 of 2 tasks ended") as fail_fast_client:
        client.dags.wait(made.id, timeout=0)
    finish(api_user, made.tasks["a"], made.tasks["b"])

    ended = client.dags.wait(made.id, timeout=5)

    assert fail_fast_client.value.dag.status == "running"
    assert ended.status == "completed"
    assert [task.state for task in ended.tasks] == ["completed", "completed"]


def test_a_failed_graph_names_the_failed_task(api_user: ApiUser, client: Client) -> None:
    made = client.dags.create({"title": "one", "tasks": [{"name": "a", "max_attempts": 1}]})
    [run] = begin(api_user.deployment, api_user.row_id(made.tasks["a"]))
    api_user.deployment.settle(run, Raised("error", "boom"))

    with pytest.raises(errors.DagFailed, match=r"it is failed: a \(error\)") as failed:
        client.dags.wait(made.id, timeout=5)

    assert failed.value.dag.counts.failed == 1
    assert client.dags.wait(made.id, timeout=5, check=False).status == "failed"


def test_the_list_of_graphs_follows_its_pages(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overnight.client.request_plan.PAGE_SIZE", 2)
    made = [client.dags.create({"title": str(n), "tasks": [{"name": "a"}]}).id for n in range(5)]

    assert [one.id for one in client.dags.list()] == made[::-1]
    assert [one.id for one in client.dags.list(limit=3)] == made[:1:-1]
    assert list(client.dags.list(status="failed")) == []


def test_a_plan_submits_nothing(client: Client) -> None:
    plan = client.dags.plan({"title": "x", "tasks": [{"name": "a"}, {"name": "b", "after": ["a"]}]})

    assert plan.tasks == 2
    assert list(client.dags.list()) == []


def test_a_refused_graph_raises_the_error_of_its_code(client: Client) -> None:
    with pytest.raises(errors.DagNotFound):
        client.dags.get("dag_01J00000000000000000000000")
    with pytest.raises(errors.InvalidGraph, match="a → b → a") as refused:
        client.dags.create(
            {"title": "x", "tasks": [{"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]}]}
        )

    assert refused.value.fields[0].field == "tasks.1.after.0"
