"""Build a graph in Python.

with dag("landing page", client=client) as page:
research = page.task("Research competitors", type="research")
design = page.task("Design a wireframe", type="design")
page.task("Build it", type="code", after=[research, design])
page.task("Tell the team", after=[research.failed])
print(page.created.id)
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from overnight.client.calls import without_none
from overnight.graphs.shape import checked_graph
from overnight.models.dags import Condition, DagCreate, DagCreated, Policy
from overnight.models.execution import Network, RunLimits, Runner
from overnight.models.tasks import RetryPolicy
from overnight.models.validation import OutputValidator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from overnight.client.client import Client

MAX_NAME_LENGTH = 60


class StepFields(TypedDict, total=False):
    """The fields of a task of a graph, for type checkers; None means not given."""

    description: str | None
    project_id: str | None
    priority: int | None
    priority_score: int | None
    priority_boost_per_minute: float | None
    type: str | None
    payload: dict[str, Any] | None
    prompt: str | None
    output_validation: "Sequence[OutputValidator | dict[str, Any]] | None"
    spec: dict[str, Any] | None
    runner: Runner | None
    agent: str | None
    network: Network | dict[str, Any] | None
    limits: RunLimits | dict[str, Any] | None
    repo: str | None
    ref: str | None
    parallel: bool | None
    timeout_seconds: int | None
    max_attempts: int | None
    retry: RetryPolicy | dict[str, Any] | None
    required_capabilities: "Sequence[str] | None"
    agent_name: str | None
    locks: "Sequence[str] | None"
    deadline_at: "datetime | None"
    start_at: "datetime | None"
    tags: "Sequence[str] | None"
    max_cost_usd: float | None
    estimated_cost_usd: float | None
    created_by: str | None
    source: str | None


@dataclass(frozen=True)
class StepCondition:
    """A step to wait for, and how it must end."""

    step: "Step"
    condition: Condition
    on_unmet: Policy | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """A task of a graph that is being built; in `after` it means that the task must succeed."""

    name: str
    _graph: "GraphBuilder" = field(repr=False)

    @property
    def finished(self) -> StepCondition:
        """For `after`: start when this task has ended, with or without success."""
        return StepCondition(self, "finished")

    @property
    def failed(self) -> StepCondition:
        """For `after`: start only if this task has failed permanently."""
        return StepCondition(self, "failure")

    @property
    def id(self) -> str:
        """The task's id; raises LookupError before the graph is submitted."""
        return self._graph.created.tasks[self.name]


class GraphBuilder:
    """A graph that is being built; the end of its `with` block submits it if it has a client."""

    def __init__(self, title: str, *, client: "Client | None" = None, **fields: object) -> None:
        self._client = client
        self._fields: dict[str, object] = {"title": title, **without_none(fields)}
        self._tasks: list[dict[str, object]] = []
        self._names: set[str] = set()
        self._created: DagCreated | None = None

    def task(
        self,
        title: str,
        *,
        name: str | None = None,
        after: "Iterable[Step | StepCondition] | Step | StepCondition" = (),
        on_unmet: Policy | None = None,
        **fields: Unpack[StepFields],
    ) -> Step:
        """Add a task and return it for the `after` of others; the default name is its title."""
        if self._created is not None:
            raise ValueError("the graph has been submitted already; create another one")
        step = Step(name or self._name_for(title), self)
        steps = [after] if isinstance(after, (Step, StepCondition, str)) else list(after or ())
        task = {
            "name": step.name,
            "title": title,
            "after": [self._after(each) for each in steps] or None,
            "on_unmet": on_unmet,
            **fields,
        }
        self._names.add(step.name)
        self._tasks.append(without_none(task))
        return step

    def request(self) -> DagCreate:
        """Return the body that creates the graph; raises InvalidGraph or InvalidRequest."""
        return checked_graph({**self._fields, "tasks": self._tasks})

    def submit(self, client: "Client") -> DagCreated:
        """Submit the graph, all tasks or none; a second submit returns the first graph."""
        if self._created is None:
            self._created = client.dags.create(self.request())
        return self._created

    @property
    def created(self) -> DagCreated:
        """The created graph; raises LookupError before it is submitted."""
        if self._created is None:
            raise LookupError("the graph has not been submitted yet")
        return self._created

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an exception in the block the graph is incomplete, so nothing is submitted.
        if error is None and self._client is not None:
            self.submit(self._client)

    def _after(self, step: "Step | StepCondition") -> object:
        if not isinstance(step, (Step, StepCondition)):
            raise TypeError(f"after takes what task() returned, not {step!r}")
        required = step if isinstance(step, StepCondition) else StepCondition(step, "success")
        if required.step._graph is not self:  # noqa: SLF001 - a class of this module
            raise ValueError(f"{required.step.name!r} is a task of another graph")
        if required.condition == "success":
            return required.step.name
        return {"task": required.step.name, "condition": required.condition}

    def _name_for(self, title: str) -> str:
        plain = unicodedata.normalize("NFKC", title).lower()
        base = "-".join(re.findall(r"\w+", plain))[:MAX_NAME_LENGTH].strip("-") or "task"
        name, number = base, 2
        while name in self._names:
            name, number = f"{base}-{number}", number + 1
        return name


def dag(
    title: str,
    *,
    client: "Client | None" = None,
    on_unmet: Policy | None = None,
    budget_usd: float | None = None,
    idempotency_key: str | None = None,
) -> GraphBuilder:
    """Return a graph to add tasks to; used with `with`, it is submitted at the end of the block.

    Without a client, nothing is submitted by itself: call `submit`.
    """
    return GraphBuilder(
        title,
        client=client,
        on_unmet=on_unmet,
        budget_usd=budget_usd,
        idempotency_key=idempotency_key,
    )
