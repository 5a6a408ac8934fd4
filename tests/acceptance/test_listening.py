"""A whole stack observed through its API: an inbox row, and what follows from it."""

import signal
import threading
from collections.abc import Callable

from overnight import inbox
from overnight.models.tasks import Event
from overnight_server.control.keys import issue
from tests.support.deployment import Deployment
from tests.support.stack import SERVICES, Stack
from tests.support.wait import wait_until


def test_an_inbox_row_becomes_a_task_and_every_event_is_streamed(
    build: Callable[..., Stack], deployment: Deployment
) -> None:
    stack = build().start(*SERVICES).ready()
    user, client = stack.user()
    key = issue(deployment.app, user, name="shop")
    heard: list[Event] = []

    def listen() -> None:
        for event in client.stream(after=0):
            heard.append(event)
            if event.status.is_final:
                return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()

    with deployment.owner.engine.begin() as tx:
        row = inbox.submit(tx, "ship it", api_key=key, type="echo", payload={"order": 1})

    wait_until(
        lambda: deployment.one("SELECT task_id FROM inbox WHERE id = :id", id=row)["task_id"],
        what="the row to become a task",
    )
    [task] = client.tasks.list()
    done = client.tasks.wait(task.id, timeout=60)
    listener.join(30)

    assert done.output == {"order": 1}
    states = [event.state for event in heard]
    assert (states[0], states[-1]) == ("ready", "completed")
    assert {event.task_id for event in heard} == {task.id}


def test_a_stream_resumes_after_the_api_was_killed(
    build: Callable[..., Stack], deployment: Deployment
) -> None:
    stack = build().start("api").ready()
    user, client = stack.user()
    heard: list[str] = []

    def listen() -> None:
        for event in client.stream(after=0):
            heard.append(event.task_id)
            if len(heard) == 4:
                return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    first = [client.tasks.create(str(n)).id for n in range(2)]
    wait_until(lambda: len(heard) == 2, what="two events")

    stack.kill("api", signal.SIGKILL)
    stack.ended("api")
    meanwhile = deployment.task(user)
    stack.start("api").ready()
    second = client.tasks.create("after").id
    listener.join(60)

    assert not listener.is_alive()
    assert [heard[0], heard[1], heard[3]] == [*first, second]
    assert len(set(heard)) == 4
    assert deployment.state(meanwhile) == "ready"
