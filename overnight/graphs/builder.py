"""Building a graph in Python, so that it reads as what depends on what.

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

from overnight.graphs.shape import checked_graph
from overnight.models.dags import Condition, DagCreate, DagCreated, Policy
from overnight.models.tasks import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from overnight.client.client import Client

LONGEST_NAME = 60


class StepFields(TypedDict, total=False):
    """The fields of a task besides its title, name and place, for editors; None is left out."""

    description: str | None
    project_id: str | None
    priority: int | None
    priority_score: int | None
    priority_boost_per_minute: float | None
    type: str | None
    payload: dict[str, Any] | None
    prompt: str | None
    spec: dict[str, Any] | None
    timeout_seconds: int | None
    max_attempts: int | None
    retry: RetryPolicy | dict[str, Any] | None
    required_capabilities: "Sequence[str] | None"
    agent_name: str | None
    locks: "Sequence[str] | None"
    deadline_at: "datetime | None"
    tags: "Sequence[str] | None"
    max_cost_usd: float | None
    estimated_cost_usd: float | None
    created_by: str | None
    source: str | None


@dataclass(frozen=True)
class Waiting:
    """One task to wait for, and how it must end."""

    step: "Step"
    condition: Condition
    on_unmet: Policy | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """One task of a graph that is being built; itself in `after`, it must succeed."""

    name: str
    _graph: "Building" = field(repr=False)

    @property
    def finished(self) -> Waiting:
        """For `after`: once it has ended, in whatever way."""
        return Waiting(self, "finished")

    @property
    def failed(self) -> Waiting:
        """For `after`: only if it has failed for good."""
        return Waiting(self, "failure")

    @property
    def id(self) -> str:
        """Its id, once the graph was submitted."""
        return self._graph.created.tasks[self.name]


class Building:
    """A graph that is being built; leaving its block submits it, if a client was given."""

    def __init__(self, title: str, *, client: "Client | None" = None, **fields: object) -> None:
        self._client = client
        self._fields: dict[str, object] = {"title": title, **_given(fields)}
        self._tasks: list[dict[str, object]] = []
        self._names: set[str] = set()
        self._created: DagCreated | None = None

    def task(
        self,
        title: str,
        *,
        name: str | None = None,
        after: "Iterable[Step | Waiting] | Step | Waiting" = (),
        on_unmet: Policy | None = None,
        **fields: Unpack[StepFields],
    ) -> Step:
        """Add a task; left out, its name is made from its title. Return it for others' `after`."""
        if self._created is not None:
            raise ValueError("the graph was submitted already; begin another")
        step = Step(name or self._name_for(title), self)
        waits = [after] if isinstance(after, (Step, Waiting, str)) else list(after or ())
        task = {
            "name": step.name,
            "title": title,
            "after": [self._after(one) for one in waits] or None,
            "on_unmet": on_unmet,
            **fields,
        }
        self._names.add(step.name)
        self._tasks.append(_given(task))
        return step

    def request(self) -> DagCreate:
        """Return the graph as it would travel; InvalidGraph or InvalidRequest if it could not."""
        return checked_graph({**self._fields, "tasks": self._tasks})

    def submit(self, client: "Client") -> DagCreated:
        """Queue the graph, whole or not at all; a second submit answers with the first graph."""
        if self._created is None:
            self._created = client.dags.create(self.request())
        return self._created

    @property
    def created(self) -> DagCreated:
        """What the service answered, once the graph was submitted."""
        if self._created is None:
            raise LookupError("the graph was not submitted yet")
        return self._created

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Half a graph is none: whatever went wrong in the block, nothing is queued.
        if error is None and self._client is not None:
            self.submit(self._client)

    def _after(self, one: "Step | Waiting") -> object:
        if not isinstance(one, (Step, Waiting)):
            raise TypeError(f"after takes what task() returned, not {one!r}")
        waiting = one if isinstance(one, Waiting) else Waiting(one, "success")
        if waiting.step._graph is not self:  # noqa: SLF001 - ours as well
            raise ValueError(f"{waiting.step.name!r} is a task of another graph")
        if waiting.condition == "success":
            return waiting.step.name
        return {"task": waiting.step.name, "condition": waiting.condition}

    def _name_for(self, title: str) -> str:
        plain = unicodedata.normalize("NFKC", title).lower()
        base = "-".join(re.findall(r"\w+", plain))[:LONGEST_NAME].strip("-") or "task"
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
) -> Building:
    """Begin a graph; add tasks in its `with` block, which submits it if a client is given."""
    return Building(
        title,
        client=client,
        on_unmet=on_unmet,
        budget_usd=budget_usd,
        idempotency_key=idempotency_key,
    )


def _given(fields: Any) -> dict[str, Any]:  # noqa: ANN401 - of whatever kind
    return {name: value for name, value in fields.items() if value is not None}
