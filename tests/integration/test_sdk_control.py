"""Looking after tasks from Python, against the real API."""

import asyncio
from collections.abc import Iterator

import pytest

from overnight import AsyncClient, errors
from overnight.client.client import Operations
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Raised, StoppedByBudget
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import AGENT, Deployment

GRAPH = {"title": "after", "tasks": [{"name": "a", "title": "report"}]}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    deployment.agent()
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def dead(api_user: ApiUser) -> str:
    run = api_user.deployment.running(api_user.user, max_attempts=1)
    api_user.deployment.settle(run, Raised("auth_failure", "no"))
    return show_task(run.claim.task_id)


def test_dead_letters_are_read_and_resolved(api_user: ApiUser) -> None:
    first, second, third = (dead(api_user) for _ in range(3))
    with api_user.client() as client:
        [group] = client.dead_letters.groups()
        of_group = list(client.dead_letters.list(fingerprint=group.fingerprint))

        assert group.count == 3
        assert [item.task_id for item in of_group] == [third, second, first]
        assert client.dead_letters.retry(first, note="again").state == "ready"
        assert client.dead_letters.cancel(second).state == "cancelled"
        assert client.dead_letters.modify_and_retry(third, {"title": "x"}).state == "ready"
        assert client.dead_letters.get(first).note == "again"
        assert list(client.dead_letters.list()) == []
        assert len(list(client.dead_letters.list(resolved=True))) == 3


def test_a_task_is_edited_and_its_history_is_read(api_user: ApiUser) -> None:
    with api_user.client() as client:
        task = client.tasks.create("a task")

        assert client.tasks.edit(task.id, title="better", priority=2).title == "better"
        assert client.tasks.attempts(task.id) == []
        assert [event.state for event in client.tasks.events(task.id)] == ["ready"]
        assert client.tasks.artifacts(task.id) == []
        with pytest.raises(errors.PreconditionFailed):
            client.tasks.edit(task.id, etag='"old"', title="worse")
        with pytest.raises(errors.InvalidRequest):
            client.tasks.edit(task.id, priority=9)


def test_usage_is_read_and_approvals_are_given(api_user: ApiUser) -> None:
    dear = api_user.deployment.running(api_user.user, max_cost_usd=1.0)
    api_user.deployment.settle(dear, StoppedByBudget("too dear", cost_usd=1.25))
    with api_user.client() as client:
        [asks] = client.usage.approvals()

        assert client.usage.approve(asks.task_id, 2.0).resumed == 1
        assert client.usage.get().night.spent_usd == 1.25
        assert all(line.kind == "usage" for line in client.usage.ledger())
        with pytest.raises(errors.Refused, match="waits for no budget approval"):
            client.usage.stop(asks.task_id)


def test_pauses_and_triggers_are_set(api_user: ApiUser) -> None:
    with api_user.client() as client:
        dag_id = client.tasks.create("a task").dag_id

        assert client.me.pause(note="moving").changed
        assert client.me.get().paused
        assert [pause.note for pause in client.me.pauses()] == ["moving"]
        assert client.me.resume().changed
        assert list(client.me.notices()) == []
        assert client.locks.list() == client.locks.waits() == []
        made = client.triggers.create(dag_id, GRAPH, when="finished")
        assert client.triggers.list(dag_id=dag_id) == [client.triggers.get(made.id)]
        assert client.triggers.drop(made.id).dropped


def test_an_admin_manages_users_workers_and_locks(api_user: ApiUser) -> None:
    boss = api_user.new_user(is_admin=True)
    with boss.client() as client:
        made = client.admin.create_user("ada", plan="pro")

        assert client.admin.user("ada") == made
        assert "ada" in [user.name for user in client.admin.users()]
        assert client.admin.change_user("ada", max_concurrent_agents=7).max_concurrent_agents == 7
        assert client.admin.workers()[0].id == AGENT
        assert client.admin.drain(AGENT).draining
        assert not client.admin.undrain(AGENT).draining
        assert client.admin.pause(user="ada").changed
        assert len(client.admin.pauses()) == 1
        assert client.admin.resume(user="ada").changed
        assert client.admin.locks() == []
        assert client.admin.fairness().starts == 0
        with pytest.raises(errors.Refused):
            client.admin.release_locks("task_00000000000000000000000000")
    with api_user.client() as client, pytest.raises(errors.Refused) as refusal:
        client.admin.workers()
    assert refusal.value.status == 404


def test_both_clients_have_every_group() -> None:
    async def groups() -> set[str]:
        async with AsyncClient("http://127.0.0.1:1", "key") as client:
            return {name for name, value in vars(client).items() if name != "driver" and value}

    wanted = {"dead_letters", "locks", "usage", "triggers", "me", "admin", "bulk", "queue"}
    assert asyncio.run(groups()) >= wanted
    assert issubclass(AsyncClient, Operations)
