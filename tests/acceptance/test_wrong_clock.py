"""An API host whose clock is wrong: what it creates is in order with what other hosts create."""

from pathlib import Path

import pytest

from overnight import Client
from tests.support.api_process import api_process
from tests.support.api_user import TASKS, serve_api
from tests.support.deployment import Deployment

HOUR = 3600


@pytest.mark.parametrize("clock_shift", [-HOUR, HOUR])
def test_tasks_of_a_host_with_a_wrong_clock_are_listed_in_order(
    deployment: Deployment, database_url: str, tmp_path: Path, clock_shift: float
) -> None:
    with (
        api_process(deployment, database_url, tmp_path, clock_shift=clock_shift) as wrong,
        serve_api(deployment, database_url) as right,
        Client(wrong.url, right.key, retries=0) as client,
    ):
        created = []
        for _ in range(3):
            created += [right.created()["id"], client.tasks.create("a task").id]
        first_page = right.request("GET", f"{TASKS}?limit=3").json()
        rest = right.request("GET", f"{TASKS}?limit=3&before={first_page[-1]['id']}").json()

    assert [task["id"] for task in first_page + rest] == created[::-1]
    assert created == sorted(created)
