"""Turns Celery's canvas (signatures, chain, group, chord) into the tasks of one graph.

A task of the graph reads the results of the tasks before it from its inputs: `parents` in its
payload says which of them becomes its first argument. That is the name of one task, or a list of
names for the results of a group, in their order.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from celery import Celery
from celery.canvas import (
    Signature,
    _basemap,
    _chain,
    chord,
    chunks,
    group,
    maybe_signature,
)

from overnight.errors import NotFromCelery

# The name of a task, or the shapes of the members of a group.
Shape = str | list["Shape"]
T = TypeVar("T")
Fields = Callable[[str, Any, Any, Mapping[str, Any]], dict[str, Any]]
# They delay or limit what is sent, and a task after another one is not sent: it becomes ready.
RELATIVE = ("countdown", "expires")
MAX_LABEL = 60


@dataclass(frozen=True)
class GraphTask:
    """A task of the graph, the tasks that it waits for, and the results that it is given."""

    name: str
    fields: dict[str, Any]
    after: tuple[str, ...] = ()
    parents: Shape | None = None

    def payload(self, rename: Callable[[str], str] = str) -> dict[str, Any]:
        """Return the payload, with the parents under the names that the run will see."""
        payload: dict[str, Any] = dict(self.fields["payload"])
        if self.parents is not None:
            payload["parents"] = renamed(self.parents, rename)
        return payload


@dataclass(frozen=True)
class CanvasPart:
    """What a part of a canvas returns: the task or the group, and what came before it."""

    shape: Shape
    waits_for: tuple[str, ...]
    before: "CanvasPart | None" = None


@dataclass
class GraphPlan:
    """The tasks of a canvas, each after the tasks that it waits for."""

    app: Celery
    fields: Fields
    # The id of the running task, which a task may not give to another one.
    replaced_id: str | None = None
    tasks: list[GraphTask] = field(default_factory=list)

    def add(
        self,
        signature: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        before: CanvasPart | None = None,
    ) -> CanvasPart:
        """Add what a signature stands for; args, kwargs and options are those of its call."""
        part = maybe_signature(signature, app=self.app)
        call = (tuple(args), dict(kwargs or {}), dict(options or {}))
        match part:
            case _chain():
                return self._chain(part, *call, before=before)
            case chord():
                return self._chord(part, *call, before=before)
            case group():
                return self._group(part, *call, before=before)
            case chunks():
                return self._group(part.group(), *call, before=before)
            case Signature():
                return self._task(part, *call, before=before)
            case _:
                raise TypeError(f"not a signature: {part!r}")

    def _task(
        self, part: Any, args: Any, kwargs: Any, options: Any, *, before: CanvasPart | None
    ) -> CanvasPart:
        args, kwargs, options = part._merge(args, kwargs, options)  # noqa: SLF001 - as Celery does
        if isinstance(part, _basemap):
            kwargs = {**kwargs, "it": list(kwargs["it"])}
        task = vars(self.app)["_tasks"].get(part["task"])
        own = {} if task is None else task._get_exec_options()  # noqa: SLF001 - as Celery does
        options = {**own, **{key: each for key, each in options.items() if each is not None}}
        links = options.pop("link", None) or []
        self._check(part["task"], options, before)
        number = len(self.tasks) + 1
        name = f"{label(part['task'])}-{number}"
        waits_for = () if before is None else before.waits_for
        gives = None if before is None or part.immutable else before.shape
        fields = self.fields(part["task"], args, kwargs, options)
        self.tasks.append(GraphTask(name, fields, waits_for, gives))
        outcome = CanvasPart(name, (name,), before)
        for link in links if isinstance(links, (list, tuple)) else [links]:
            self.add(link, before=outcome)
        return outcome

    def _check(self, name: str, options: Mapping[str, Any], before: CanvasPart | None) -> None:
        if self.replaced_id is not None and options.get("task_id") == self.replaced_id:
            raise NotFromCelery("self.replace()", "send the other task and return its id")
        for option in RELATIVE if before is not None else ():
            if isinstance(options.get(option), (int, float)):
                raise NotFromCelery(
                    f"{option} of {name}, which starts after another task",
                    "pass eta=… or expires=… as an instant, or wait in the task",
                )

    def _chain(
        self, part: Any, args: Any, kwargs: Any, options: Any, *, before: CanvasPart | None
    ) -> CanvasPart:
        args, kwargs, options = _merged(part, args, kwargs, options)
        links = options.pop("link", None) or []
        last_id = options.pop("task_id", None)
        steps = _steps(part.tasks, self.app)
        outcome = before
        for number, step in enumerate(steps):
            call = (args, kwargs, options) if number == 0 else ((), {}, {})
            if last_id is not None and number == len(steps) - 1:
                call = (*call[:2], {**call[2], "task_id": last_id})
            outcome = self.add(step, *call, before=outcome)
        if outcome is None or not steps:
            raise NotFromCelery("an empty chain", "leave it out")
        for link in links if isinstance(links, (list, tuple)) else [links]:
            self.add(link, before=outcome)
        return outcome

    def _group(
        self, part: Any, args: Any, kwargs: Any, options: Any, *, before: CanvasPart | None
    ) -> CanvasPart:
        args, kwargs, options = _merged(part, args, kwargs, options)
        options.pop("task_id", None)
        members = [
            self.add(member, args, kwargs, options, before=before)
            for member in _members(part, self.app)
        ]
        match members:
            case [CanvasPart(shape=list()) as only]:
                return only
        waits_for = tuple(name for member in members for name in member.waits_for)
        if not members and before is not None:
            waits_for = before.waits_for
        return CanvasPart([member.shape for member in members], waits_for, before)

    def _chord(
        self, part: Any, args: Any, kwargs: Any, options: Any, *, before: CanvasPart | None
    ) -> CanvasPart:
        body = kwargs.pop("body", None) or part.kwargs["body"]
        if args and not part.immutable:
            args = (*args, *part.args)
        kwargs = {**part.kwargs["kwargs"], **kwargs}
        options = {**part.options, **options}
        last_id = options.pop("task_id", None)
        header = self._group(group(part.tasks, app=self.app), args, kwargs, options, before=before)
        if isinstance(header.shape, str):
            header = CanvasPart([header.shape], header.waits_for, before)
        for option in ("countdown", "eta"):
            options.pop(option, None)
        if last_id is not None:
            options["task_id"] = last_id
        return self.add(body, (), {}, options, before=header)


def label(name: str) -> str:
    """Return the last part of a Celery task's name, as a name in a graph may be written.

    >>> label("shop.tasks.charge"), label("a b")
    ('charge', 'a-b')
    """
    return re.sub(r"[^\w-]+", "-", name.rpartition(".")[2])[:MAX_LABEL].strip("-") or "task"


def task_names(app: Celery, part: Any) -> set[str]:
    """Return the names of the tasks of a canvas."""
    plan = GraphPlan(app, lambda name, *_: {"type": name})
    plan.add(part)
    return {task.fields["type"] for task in plan.tasks}


def renamed(shape: Shape, rename: Callable[[str], T]) -> Any:
    """Return the shape with something else in the place of each name."""
    if isinstance(shape, str):
        return rename(shape)
    return [renamed(each, rename) for each in shape]


def _merged(
    part: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """Return the arguments and options of a chain or a group together with those of its call."""
    if not part.immutable:
        args = (*args, *part.args)
    return args, kwargs, {**part.options, **options}


def _steps(tasks: Sequence[Any], app: Celery) -> list[Any]:
    """Return the steps of a chain: nested chains in their place, without empty groups."""
    steps: list[Any] = []
    empty: list[Any] = []
    for task in tasks:
        step = maybe_signature(task, app=app)
        if isinstance(step, group) and len(step.tasks) == 1:
            step = maybe_signature(step.tasks[0], app=app)
        if isinstance(step, _chain):
            steps += _steps(step.tasks, app)
        elif isinstance(step, group) and not len(step.tasks):
            empty.append(step)
        else:
            steps.append(step)
    return steps or empty[:1]


def _members(part: Any, app: Celery) -> list[Any]:
    """Return the members of a group, with those of the groups in it; without empty chains."""
    members: list[Any] = []
    for each in part.tasks:
        member = maybe_signature(each, app=app)
        if isinstance(member, group):
            members += _members(member, app)
        elif not (isinstance(member, _chain) and not member.tasks):
            members.append(member)
    return members
