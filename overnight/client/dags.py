"""What can be done with graphs; reached as `client.dags`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from overnight.client import dag_calls
from overnight.client.operations import D, Group, operation, series
from overnight.client.pagination import paged
from overnight.client.scripts import Series, Steps
from overnight.client.task_calls import Call, Page
from overnight.client.wait import until_ended
from overnight.errors import DagFailed, DagWaitTimedOut
from overnight.models.dags import (
    Dag,
    DagCancelled,
    DagCreate,
    DagCreated,
    DagForked,
    DagRetried,
    DagStatus,
    DagSummary,
)
from overnight.models.tasks import Plan


class Dags(Group[D]):
    """What can be done with graphs; reached as `client.dags`."""

    @operation
    def create(self, graph: DagCreate | Mapping[str, Any]) -> Call[DagCreated]:
        """Queue a graph, whole or not at all; `overnight.dag` builds one."""
        return dag_calls.create_dag(graph)

    @operation
    def plan(
        self, graph: DagCreate | Mapping[str, Any], *, by_at: datetime | None = None
    ) -> Call[Plan]:
        """Return what a graph would come to if it were queued now; nothing is."""
        return dag_calls.plan_dag(graph, by_at=by_at)

    @operation
    def get(self, dag_id: str, *, tasks: bool = True) -> Call[Dag]:
        """Return one graph as it stands; without its tasks it is small however large it is."""
        return dag_calls.get_dag(dag_id, tasks=tasks)

    @series
    def list(self, *, status: str | None = None, limit: int | None = None) -> Series[DagSummary]:
        """Yield your graphs of several tasks, newest first, fetching pages as they are needed."""

        def ask(size: int, cursor: str | None) -> Call[Page[DagSummary]]:
            return dag_calls.list_dags(status=status, limit=size, before=cursor)

        yield from paged(ask, limit)

    @operation
    def cancel(self, dag_id: str) -> Call[DagCancelled]:
        """Ask that everything of a graph be ended; what runs is stopped at its next heartbeat."""
        return dag_calls.cancel_dag(dag_id)

    @operation
    def retry(self, named: str) -> Call[DagRetried]:
        """Run a task again that ended badly, with all behind it that ended because of it.

        Given the id of a graph, everything of it that ended badly; what completed stays.
        """
        return dag_calls.retry(named)

    @operation
    def fork(self, task_id: str, *, title: str | None = None) -> Call[DagForked]:
        """Make a new graph that runs a task and everything after it anew; the old one stays."""
        return dag_calls.fork_task(task_id, title=title)

    @operation
    def wait(
        self,
        dag_id: str,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        check: bool = True,
    ) -> Steps[Dag]:
        """Return the graph, whole, once it has ended; the service answers the moment it does.

        Raises DagFailed if it ended without success (unless `check` is off), and
        DagWaitTimedOut if it had not ended after `timeout` seconds; both carry the graph. A
        service that cannot hold answers back is asked every `poll` seconds.
        """
        yield from until_ended(
            lambda seconds: dag_calls.wait_dag(dag_id, seconds=seconds),
            lambda: dag_calls.get_dag(dag_id, tasks=False),
            timeout=timeout,
            poll=poll,
            late=DagWaitTimedOut,
        )
        dag = yield from dag_calls.get_dag(dag_id)
        if check and dag.status is not DagStatus.COMPLETED:
            raise DagFailed(dag)
        return dag
