"""Channels for tests of notifications, and what the outbox holds."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

from tests.support.deployment import Deployment

EVERYTHING = (
    *("task.dead_lettered", "task.poisoned", "task.escalated", "dag.finished", "test"),
    *("needs_you.budget", "report.morning"),
    *("usage.50", "usage.80", "usage.100", "schedule.skipped", "schedule.failed", "worker.lost"),
)


def add_channel(
    deployment: Deployment,
    user: UUID,
    *kinds: str,
    url: str = "http://127.0.0.1:9/",
    **columns: Any,
) -> UUID:
    """Add a webhook that is subscribed to these kinds, or to every kind; columns override."""
    values = {
        "id": uuid4(),
        "user_id": user,
        "name": uuid4().hex[:8],
        "kind": "webhook",
        "address": url,
        "full_address": url,
        "secret": "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0",
        "private_allowed": True,
        "subscribed": list(kinds or EVERYTHING),
        **columns,
    }
    names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    deployment.run(f"INSERT INTO notification_channels ({names}) VALUES ({marks})", **values)
    return UUID(str(values["id"]))


def outbox(deployment: Deployment) -> list[Mapping[str, Any]]:
    """Return the notifications with the channels that they go to, in order."""
    return deployment.rows(
        "SELECT n.*, d.channel_id, d.thread, d.state FROM notifications n"
        " LEFT JOIN notification_deliveries d ON d.notification_id = n.id ORDER BY n.id, d.id"
    )
