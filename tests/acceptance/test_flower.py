"""Flower shows operators our workers and tasks, behind a password, and never a payload."""

import base64
import json
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from app.local.ports import free_port
from tests.support.stack import SERVICES, Stack
from tests.support.waiting import wait_until

PASSWORD = "for-this-test-only"
CANARY = "canary-in-the-payload"


def test_flower_shows_workers_and_tasks_but_no_payload(build: Callable[..., Stack]) -> None:
    stack = build(flower_port=free_port(), flower_password=PASSWORD)
    stack.start(*SERVICES, "flower").ready()
    user, client = stack.user()
    wait_until(
        lambda: any(
            name.startswith("default.") for name in _ask(stack, "/api/workers?refresh=1") or {}
        ),
        what="Flower to see the worker",
    )

    made = client.tasks.create("secret", type="echo", payload={"value": CANARY})
    client.tasks.wait(made.id, timeout=30, poll=0.1)
    tasks = wait_until(
        lambda: {
            name: task
            for name, task in (_ask(stack, "/api/tasks") or {}).items()
            if task["name"] == "overnight.execute"
        },
        what="Flower to hear of the task",
    )

    [task] = tasks.values()
    assert task["uuid"] == f"{made.id}:1"
    assert task["args"] == f"echo {made.id} user={user}"
    assert CANARY not in json.dumps(tasks)


def test_flower_asks_for_its_password_and_lets_nobody_touch(build: Callable[..., Stack]) -> None:
    stack = build(flower_port=free_port(), flower_password=PASSWORD)
    stack.start("flower")
    wait_until(lambda: _ask(stack, "/api/workers") is not None, what="Flower to answer")

    with pytest.raises(HTTPError) as stranger:
        _open(stack, "/api/workers", password=None)
    with pytest.raises(HTTPError) as operator:
        _open(stack, "/api/task/revoke/task_1?terminate=true", password=PASSWORD, data=b"")

    assert stranger.value.code == 401
    assert operator.value.code in {403, 405}
    stranger.value.close()
    operator.value.close()


def _ask(stack: Stack, path: str) -> dict[str, Any] | None:
    try:
        return json.loads(_open(stack, path, password=PASSWORD))  # type: ignore[no-any-return]
    except HTTPError as error:
        error.close()
        return None
    except (URLError, OSError):
        return None


def _open(stack: Stack, path: str, *, password: str | None, data: bytes | None = None) -> bytes:
    request = Request(f"http://127.0.0.1:{stack.settings.flower_port}{path}", data=data)
    if password is not None:
        login = base64.b64encode(f"overnight:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
    with urlopen(request, timeout=10) as answer:
        return bytes(answer.read())
