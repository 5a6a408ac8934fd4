"""The tasks and edges of one request, before they are inserted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from overnight.errors import InvalidRequest
from overnight_server.domain.graphs import Condition, OnUnmet
from overnight_server.domain.priority import DEFAULT_SCORE
from overnight_server.domain.retry import RetryRules
from overnight_server.intake import references


@dataclass(frozen=True)
class NewTask:
    """One task as its producer describes it; durations are in seconds, priority is 0..100."""

    title: str
    type: str
    description: str = ""
    payload: Mapping[str, object] = field(default_factory=dict)
    spec: Mapping[str, object] = field(default_factory=dict)
    project_id: str | None = None
    priority: int = DEFAULT_SCORE
    priority_boost_per_minute: float = 0.1
    timeout_seconds: int | None = None
    max_attempts: int = 3
    retry: RetryRules = field(default_factory=RetryRules)
    required_capabilities: Sequence[str] = ()
    locks: Sequence[str] = ()
    idempotency_key: str | None = None
    deadline_at: datetime | None = None
    # The task does not start before; it counts as waiting until then.
    start_at: datetime | None = None
    tags: Sequence[str] = ()
    # None: the user who submits it.
    created_by: str | None = None
    source: str = "api"
    max_cost_usd: float | None = None
    # The expected cost of a run, which the gate compares with budgets; default `max_cost_usd`.
    estimated_cost_usd: float | None = None
    # The name by which other tasks of the same graph refer to this task.
    name: str | None = None
    # Outputs and artifacts that the task reads. It waits for tasks of its own graph that it reads.
    context_refs: Sequence[str] = ()
    role: Literal["orchestrator"] | None = None
    # How a runner other than Python executes it: as requested, and after `execution.resolve` as
    # it is stored.
    execution: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Edge:
    """`child` waits for `parent`; both are positions in the submitted sequence of tasks.

    `condition` says how the parent must end. `on_unmet` says what happens to the child if the
    parent ends in another way. Both may be given as text.
    """

    parent: int
    child: int
    condition: Condition | str = Condition.SUCCESS
    on_unmet: OnUnmet | str = OnUnmet.CANCEL


@dataclass(frozen=True)
class NewGraph:
    """The tasks of one request with their edges, title, budget and idempotency key."""

    tasks: Sequence[NewTask]
    edges: Sequence[Edge] = ()
    title: str | None = None
    budget_usd: float | None = None
    key: str | None = None

    @property
    def is_one(self) -> bool:
        """Whether the tasks form one graph; otherwise each task becomes a graph of its own."""
        return bool(self.edges) or self.title is not None or self.budget_usd is not None

    @property
    def is_plain(self) -> bool:
        """Whether only caps and idempotency keys need to be checked, so one statement suffices."""
        if self.is_one or not self.tasks or len(set(self.keys)) < len(self.keys):
            return False
        return not any(
            task.deadline_at or task.context_refs or task.execution for task in self.tasks
        )

    @property
    def keys(self) -> list[str]:
        """The idempotency keys of the tasks."""
        return [task.idempotency_key for task in self.tasks if task.idempotency_key is not None]

    @property
    def size(self) -> int:
        """The number of tasks in the largest graph of the request."""
        return len(self.tasks) if self.is_one else 1

    def __post_init__(self) -> None:
        """Add an edge for each task that reads the output of another task of the request."""
        existing = {(edge.parent, edge.child) for edge in self.edges}
        readers = references.within([(task.name, task.context_refs) for task in self.tasks])
        added = [Edge(*pair) for pair in readers if pair not in existing]
        if added:
            object.__setattr__(self, "edges", [*self.edges, *added])


def check_graph(graph: NewGraph) -> None:
    """Raise InvalidRequest if an edge is malformed or repeated, or if the edges form a circle."""
    if not graph.edges:
        return
    order: TopologicalSorter[int] = TopologicalSorter()
    for edge in graph.edges:
        _check_edge(edge, len(graph.tasks))
        order.add(edge.child, edge.parent)
    pairs = Counter((edge.parent, edge.child) for edge in graph.edges)
    for (parent, child), times in pairs.items():
        if times > 1:
            raise InvalidRequest(
                "edges", f"{times} edges lead from {parent} to {child}", legal="one for each pair"
            )
    try:
        order.prepare()
    except CycleError as error:
        circle = " → ".join(graph.tasks[position].title for position in error.args[1])
        raise InvalidRequest(
            "edges", f"Would create circular dependency: {circle}", legal="edges without a circle"
        ) from error


def _check_edge(edge: Edge, count: int) -> None:
    if not (0 <= edge.parent < count and 0 <= edge.child < count):
        raise InvalidRequest(
            "edges", f"{edge} refers to a task that does not exist", legal=f"0 to {count - 1}"
        )
    for field_name, value, values in (
        ("condition", edge.condition, Condition),
        ("on_unmet", edge.on_unmet, OnUnmet),
    ):
        if value not in set(values):
            legal = ", ".join(values)
            raise InvalidRequest(f"edges.{field_name}", f"{value!r} is not a value", legal=legal)
