"""The processes of this version while a later one migrates their database."""

from collections.abc import Callable
from pathlib import Path

import pytest

from overnight_server.domain.ids import parse_task
from tests.support.deployment import Deployment
from tests.support.releases import with_colours
from tests.support.stack import SERVICES, Stack
from tests.support.wait import wait_until

#: They use the database. Beat only sends ticks.
NOTICING = ("api", "dispatcher", "maintenance", "worker", "notifier", "agent-driver")


@pytest.mark.timeout(300)  # two migrations, and a shutdown of six processes
def test_processes_go_on_or_hand_back_their_runs_and_end(
    build: Callable[..., Stack], deployment: Deployment, database_url: str, tmp_path: Path
) -> None:
    later = with_colours(tmp_path / "later")
    stack = build().start(*SERVICES, "notifier", "agent-driver").ready()
    _, client = stack.user()
    before = client.tasks.create("before", type="echo")
    client.tasks.wait(before.id, timeout=30)

    migrated = later.migrate(database_url)

    assert migrated.returncode == 0, migrated.stderr
    # A process that crashes now starts again, and serves the same tasks.
    stack.kill("worker")
    stack.ended("worker")
    stack.start("worker").ready()
    after = client.tasks.create("after", type="echo", payload={"a": 1})
    assert client.tasks.wait(after.id, timeout=30).output == {"a": 1}
    assert client.tasks.get(before.id).state == "completed"

    long = client.tasks.create("long", type="sleep", payload={"seconds": 200})
    long_id = parse_task(long.id)
    wait_until(lambda: deployment.state(long_id) == "running", what="the task to run")
    later.add_migration(
        "rename what this version reads",
        "ALTER TABLE tasks RENAME COLUMN title TO headline;\n",
        serves_older=False,
    )
    migration = later.begin_migrate(database_url)
    for name in NOTICING:
        stack.ended(name, within=60)
    output, _ = migration.communicate(timeout=100)

    assert migration.returncode == 0, output
    for name in NOTICING:
        assert "queue=schema_changed" in stack.log_text(name)
    # The run was handed back before the schema changed: it costs no attempt.
    task = deployment.row(long_id)
    assert (task["state"], task["attempts"], task["headline"]) == ("ready", 0, "long")
    stack.start("dispatcher")
    assert stack.ended("dispatcher") == 1
    assert "migrated by a later version" in stack.log_text("dispatcher")
