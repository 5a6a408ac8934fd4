"""Operations on graphs; available as `client.dags`."""

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from overnight.client.calls import (
    Call,
    Page,
    long_poll,
    path,
    read,
    read_page,
    send,
    without_none,
)
from overnight.client.operations import D, Group, iteration, operation
from overnight.client.request_plan import ItemSteps, PlanSteps, paginate
from overnight.client.wait import wait_until_final
from overnight.errors import DagFailed, DagWaitTimedOut
from overnight.graphs.shape import checked_graph
from overnight.models.dags import (
    Dag,
    DagCancelled,
    DagCreate,
    DagCreated,
    DagForked,
    DagPlanRequest,
    DagRetried,
    DagStatus,
    DagSummary,
)
from overnight.models.field_errors import validate
from overnight.models.tasks import Plan


class Dags(Group[D]):
    """Operations on graphs; available as `client.dags`."""

    @operation
    def create(self, graph: DagCreate | Mapping[str, Any]) -> Call[DagCreated]:
        """Submit a graph, all its tasks or none; `overnight.dag` builds one."""
        return send(DagCreated, "POST", path("dags"), {**_new_key(), **_body(graph)})

    @operation
    def plan(
        self, graph: DagCreate | Mapping[str, Any], *, by_at: datetime | None = None
    ) -> Call[Plan]:
        """Return when the tasks of a graph would run if it were submitted now; nothing is."""
        body = validate(DagPlanRequest, {**_body(graph), "by_at": by_at})
        return send(Plan, "POST", path("dags", "plan"), body)

    @operation
    def get(self, dag_id: str, *, tasks: bool = True) -> Call[Dag]:
        """Return one graph; with `tasks=False` without its tasks and edges."""
        return _get(dag_id, tasks=tasks)

    @iteration
    def list(self, *, status: str | None = None, limit: int | None = None) -> ItemSteps[DagSummary]:
        """Yield your graphs of several tasks, newest first; pages are requested as needed."""

        def get_page(size: int, cursor: str | None) -> Call[Page[DagSummary]]:
            return read_page(DagSummary, path("dags"), status=status, limit=size, before=cursor)

        yield from paginate(get_page, limit)

    @operation
    def cancel(self, dag_id: str) -> Call[DagCancelled]:
        """Cancel all tasks of a graph that have not ended; running ones are requested to stop."""
        return send(DagCancelled, "DELETE", path("dags", dag_id))

    @operation
    def retry(self, task_or_dag_id: str) -> Call[DagRetried]:
        """Run a dead-lettered or cancelled task again, with the tasks that ended because of it.

        Given the id of a graph, all such tasks of the graph; completed tasks are not run again.
        """
        kind = "dags" if task_or_dag_id.startswith("dag_") else "tasks"
        return send(DagRetried, "POST", path(kind, task_or_dag_id, "retry"))

    @operation
    def fork(self, task_id: str, *, title: str | None = None) -> Call[DagForked]:
        """Create a new graph that repeats a task and everything after it; the old one stays."""
        body = {**_new_key(), **without_none({"title": title})}
        return send(DagForked, "POST", path("tasks", task_id, "fork"), body)

    @operation
    def wait(
        self,
        dag_id: str,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        check: bool = True,
    ) -> PlanSteps[Dag]:
        """Return the graph with its tasks once it has ended.

        Raises DagFailed if it ended without success (unless `check` is False), and
        DagWaitTimedOut if it has not ended after `timeout` seconds; both have the attribute
        `dag`. The service responds when the graph ends; if it cannot, the graph is read every
        `poll` seconds.
        """
        yield from wait_until_final(
            lambda: _get(dag_id, tasks=False),
            long_poll=lambda seconds: long_poll(Dag, path("dags", dag_id, "wait"), seconds=seconds),
            timeout=timeout,
            poll=poll,
            timed_out=DagWaitTimedOut,
        )
        dag = yield from _get(dag_id)
        if check and dag.status is not DagStatus.COMPLETED:
            raise DagFailed(dag)
        return dag


def _get(dag_id: str, *, tasks: bool = True) -> Call[Dag]:
    return read(Dag, path("dags", dag_id), tasks=None if tasks else "false")


def _body(graph: DagCreate | Mapping[str, Any]) -> dict[str, Any]:
    return checked_graph(graph).model_dump(mode="json", exclude_unset=True)


def _new_key() -> dict[str, str]:
    """Return an idempotency key, so that a request that is sent twice has one effect."""
    return {"idempotency_key": f"auto-{uuid.uuid4()}"}
