"""An idle stack: a slot listens before any message was sent, and takes the next task itself."""

from collections.abc import Callable

from redis import Redis

from overnight_server.wakeups.idle_slot_listener import has_idle_listener
from overnight_server.wakeups.wake import SLOTS_CHANNEL
from tests.support.deployment import Deployment
from tests.support.stack import Stack
from tests.support.wait import wait_until


def test_the_first_task_of_an_idle_deployment_needs_no_message(
    deployment: Deployment, build: Callable[..., Stack]
) -> None:
    stack = build().start("dispatcher", "worker").ready()
    prefix = stack.settings.redis_key_prefix
    with Redis.from_url(str(stack.settings.redis_url)) as client:
        wait_until(
            lambda: has_idle_listener(client, prefix, [stack.settings.pool]),
            what="a slot to listen",
        )
        # A running dispatcher could claim the task before the slot does.
        stack.processes["dispatcher"].stop()
        task_id = deployment.task(deployment.user(), type="echo")

        client.publish(prefix + SLOTS_CHANNEL, "")

        wait_until(
            lambda: deployment.state(task_id) == "completed", what="the task to be completed"
        )
    history = deployment.rows(
        "SELECT to_state FROM events WHERE task_id = :id ORDER BY seq", id=task_id
    )
    assert [row["to_state"] for row in history] == ["ready", "running", "completed"]


def test_an_idle_listener_makes_way_for_a_message(
    deployment: Deployment, build: Callable[..., Stack]
) -> None:
    """With one slot, the slot that listens is also the one that must take the message.

    No wake-up follows the insert, so the dispatcher's next poll claims the task.
    """
    stack = build(concurrency=1).start("dispatcher", "worker").ready()
    prefix, pools = stack.settings.redis_key_prefix, [stack.settings.pool]
    with Redis.from_url(str(stack.settings.redis_url)) as client:
        wait_until(lambda: has_idle_listener(client, prefix, pools), what="a slot to listen")
        task_id = deployment.task(deployment.user(), type="echo")

        wait_until(
            lambda: deployment.state(task_id) == "completed", what="the task to be completed"
        )

        history = deployment.rows(
            "SELECT to_state FROM events WHERE task_id = :id ORDER BY seq", id=task_id
        )
        assert [row["to_state"] for row in history][:3] == ["ready", "claimed", "running"]
        wait_until(lambda: has_idle_listener(client, prefix, pools), what="a slot to listen again")
