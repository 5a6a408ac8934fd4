"""An address of every page of the dashboard, for the tasks of a night."""

import re
from uuid import UUID

from overnight.models.bulk import TaskFilter
from overnight_server.control.bulk import BulkOrder, start
from overnight_server.control.keys import issue, key_id_of
from overnight_server.dashboard.routes import screens
from overnight_server.domain.bulk import Action
from overnight_server.domain.ids import show_bulk, show_dag, show_schedule
from overnight_server.insight.dead_letters import group_dead_letters
from tests.support import schedules
from tests.support.night import Night
from tests.support.notifications import add_channel


def every_page(night: Night) -> dict[str, str]:
    """Return the address of each page by the path of its route.

    What the night lacks is created: a schedule, a channel, a key and an operation. A parameter that
    is not known here fails the test that asks, so that a new screen is tested as the others are.
    """
    values = _values(night)
    pages = {
        route.path: re.sub(r"{(\w+)}", lambda match: values[match[1]], route.path)
        for screen in screens()
        for route in screen.routes
        if route.method == "GET"
    }
    port = night.id("port")
    pages["/tasks/selected"] = f"/tasks/selected?act=cancel&id={night.id('waiting')}"
    pages["/locks/{task_id}/release"] = f"/locks/{port}/release"
    pages["/tasks/{task_id}/edit"] = f"/tasks/{night.id('waiting')}/edit"
    return pages


def _values(night: Night) -> dict[str, str]:
    deployment, user = night.deployment, night.user
    [group, *_] = group_dead_letters(deployment.app, user_id=user)
    add_channel(deployment, user, name="laptop")
    order = BulkOrder(Action.CANCEL, TaskFilter(type="nothing"))
    bulk = start(deployment.app, user, order, actor=f"user:{user}")
    today = deployment.one("SELECT clock()::date AS day")["day"]
    return {
        "task_id": night.id("port"),
        "dag_id": show_dag(night.dag),
        "fingerprint": group.fingerprint,
        "day": str(today),
        "key_id": key_id_of(issue(deployment.app, user, name="phone")),
        "user_id": str(UUID(str(user))),
        "name": "laptop",
        "schedule_id": show_schedule(schedules.add(deployment, user)),
        "bulk_id": show_bulk(bulk.bulk_id),
    }
