"""Run a handler in the current process, without servers, and inspect what it did."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overnight.errors import InvalidRequest
from overnight.handlers.context import Context, check_cost
from overnight.handlers.control_exceptions import InvalidOutput, Suspended, error_text
from overnight.handlers.invoke import invoke
from overnight.handlers.outcome import UnstorableOutput, decisive_error, storable
from overnight.handlers.registry import Handler, HandlerFunction, describe, registered
from overnight.handlers.spawn import ArtifactContent, ChildRequest, artifact_value
from overnight.models.agents import Child
from overnight.models.validation import Feedback

TASK_ID = "task_00000000000000000000000001"
# A handler that waits more often than this in one test never ends.
MAX_WAITS = 1000


@dataclass
class SpawnedTask:
    """A child that a handler spawned, and its outcome in the test."""

    id: str
    request: ChildRequest
    state: str = "ready"
    output: Any = None
    error: str | None = None

    def child(self) -> Child:
        """Return the child as a handler sees it."""
        return Child(
            id=self.id,
            key=self.request.key,
            title=self.request.task.title,
            type=self.request.task.type or "",
            state=self.state,
            output=self.output,
            failure_reason=None if self.error is None else "error",
            error=self.error,
        )


@dataclass
class MemoryGraph:
    """All tasks and artifacts that the handlers of one test have created."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    tasks: dict[str, SpawnedTask] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)

    def add(self, request: ChildRequest) -> SpawnedTask:
        """Add a child."""
        task = SpawnedTask(f"task_{len(self.tasks) + 2:026d}", request)
        self.tasks[task.id] = task
        return task

    def run(self, ids: Iterable[str]) -> None:
        """Run these tasks to their end, each after the tasks it depends on."""
        for task_id in ids:
            task = self.tasks[task_id]
            if task.state == "ready":
                self.run(task.request.depends_on)
                self._run(task)

    def inputs_of(self, request: ChildRequest) -> dict[str, Any]:
        """Return the outputs of the child's dependencies and of its `context_refs`."""
        inputs = {}
        for parent_id in request.depends_on:
            parent = self.tasks[parent_id]
            inputs[parent.request.name or parent.id] = parent.output
        by_name = {task.request.name: task for task in self.tasks.values()}
        for reference in request.task.context_refs:
            _, _, rest = reference.partition(":")
            name = rest.removesuffix(":output")
            task = self.tasks.get(name) or by_name.get(name)
            inputs[reference] = self.artifacts.get(rest) if task is None else task.output
        return inputs

    def _run(self, task: SpawnedTask) -> None:
        create = task.request.task
        kind = create.type or ""
        try:
            answer = self._answer(task.request)
            if isinstance(answer, BaseException):
                raise answer  # noqa: TRY301 - the test wants this child to fail
            if answer is None:
                context = MemoryContext(
                    create.payload,
                    type=kind,
                    title=create.title,
                    prompt=create.prompt or "",
                    inputs=self.inputs_of(task.request),
                    task_id=task.id,
                    graph=self,
                )
                answer = run(kind, context=context).output
        except Exception as error:  # noqa: BLE001 - any exception of a handler ends its task
            task.state, task.error = "dead_lettered", error_text(error)
        else:
            task.state, task.output = "completed", answer

    def _answer(self, request: ChildRequest) -> object:
        """Return the answer that the test gives for a child's key or type; None to run it."""
        kind = request.task.type or ""
        for name in (request.key, kind):
            if name in self.answers:
                return self.answers[name]
        if kind not in registered():
            raise LookupError(f"no handler for type {kind!r}; put its result into `answers`")
        return None


class MemoryContext(Context):
    """A context that records what the handler reports; its clock moves only by `pass_time`.

    `answers` maps the key or type of a child to its output, or to an exception if it shall fail.
    A child without an answer is run by the registered handler of its type.
    """

    def __init__(
        self,
        payload: Mapping[str, Any] | None = None,
        *,
        type: str = "test",  # noqa: A002 - the name on the wire
        title: str = "a test",
        prompt: str = "",
        spec: Mapping[str, Any] | None = None,
        attempt: int = 1,
        max_attempts: int = 3,
        inputs: Mapping[str, Any] | None = None,
        timeout_seconds: float = 1800.0,
        ceiling_usd: float | None = None,
        answers: Mapping[str, Any] | None = None,
        task_id: str = TASK_ID,
        graph: MemoryGraph | None = None,
        feedback: Feedback | None = None,
    ) -> None:
        super().__init__(
            task_id=task_id,
            type=type,
            title=title,
            payload=payload,
            prompt=prompt,
            spec=spec,
            attempt=attempt,
            max_attempts=max_attempts,
            epoch=attempt,
            ceiling_usd=ceiling_usd,
        )
        self._feedback = feedback
        self.graph = graph or MemoryGraph(answers or {})
        self.artifacts: dict[str, Any] = {}
        self._initial_inputs = dict(inputs or {})
        self._children: dict[str, SpawnedTask] = {}
        self._awaited: list[str] = []
        self.progress_reports: list[dict[str, object]] = []
        self.log_lines: list[dict[str, object]] = []
        self.cost_usd = 0.0
        self.tokens = {"input": 0, "output": 0}
        self._seconds_left = timeout_seconds
        self._stop_reason: str | None = None

    @property
    def stop_reason(self) -> str | None:
        """The reason given to `stop`, or `timeout` or `budget`; None while the run may continue."""
        return self._stop_reason

    @property
    def feedback(self) -> Feedback | None:
        """The feedback that the test gives."""
        return self._feedback

    @property
    def seconds_left(self) -> float:
        """The timeout minus the time passed by `pass_time`."""
        return self._seconds_left

    @property
    def usd_left(self) -> float | None:
        """The ceiling minus all costs; None without a ceiling."""
        if self.ceiling_usd is None:
            return None
        return max(0.0, round(self.ceiling_usd - self.cost_usd, 6))

    def stop(self, reason: str = "cancelled") -> None:
        """Request the run to stop, as a cancel would."""
        self._stop_reason = self._stop_reason or reason
        self._report_stop(self._stop_reason)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock; when the timeout is used up, the run is requested to stop."""
        self._seconds_left = max(0.0, self._seconds_left - seconds)
        if self._seconds_left == 0.0:
            self.stop("timeout")

    @property
    def spawned(self) -> list[SpawnedTask]:
        """The children that the handler spawned, in order; `request.task` has their fields."""
        return list(self._children.values())

    def resume(self, awaited: Sequence[str]) -> None:
        """Run the awaited children, and prepare this context for the next run of the handler."""
        self.graph.run(awaited)
        self._awaited += awaited
        self._inputs = None
        self._keyless_spawns = 0
        self.epoch += 1

    def _read_inputs(self) -> dict[str, Any]:
        awaited = [self.graph.tasks[task_id] for task_id in self._awaited]
        outputs = {task.request.name or task.id: task.output for task in awaited}
        return {**self._initial_inputs, **outputs}

    def _read_children(self, ids: Sequence[str] | None) -> list[Child]:
        children = {task.id: task for task in self._children.values()}
        for task_id in ids or ():
            if task_id not in children:
                raise InvalidRequest(
                    "children", f"{task_id} was not spawned by this task", legal="own children"
                )
        return [children[task_id].child() for task_id in (children if ids is None else ids)]

    def _spawn(self, request: ChildRequest) -> str:
        if request.key not in self._children:
            self._children[request.key] = self.graph.add(request)
        return self._children[request.key].id

    def _store_artifact(self, name: str, content: ArtifactContent) -> str:
        artifact_id = f"art_{len(self.graph.artifacts) + 1:026d}"
        self.artifacts[name] = self.graph.artifacts[artifact_id] = artifact_value(content)
        return artifact_id

    def progress(
        self, fraction: float | None = None, message: str | None = None, **data: object
    ) -> None:
        """Record a progress report."""
        self.progress_reports.append({"fraction": fraction, "message": message, **data})

    def log(self, message: str, **fields: object) -> None:
        """Record a log line."""
        self.log_lines.append({"message": message, **fields})

    def cost(self, usd: float, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Add to the costs; at the ceiling the run is requested to stop."""
        check_cost(usd)
        self.cost_usd += usd
        self.tokens["input"] += input_tokens
        self.tokens["output"] += output_tokens
        if usd > 0 and self.usd_left == 0:
            self.stop("budget")


@dataclass(frozen=True)
class HandlerRun:
    """A finished handler: its output, the context it used, and how often it was called."""

    output: Any
    context: MemoryContext
    runs: int = 1


def run(
    handler: HandlerFunction | str,
    payload: Mapping[str, Any] | None = None,
    *,
    context: MemoryContext | None = None,
) -> HandlerRun:
    """Run a handler, given as a function or by its type; its exceptions are not caught.

    The output is converted to JSON and back as in a worker, so an output that cannot be stored
    raises InvalidOutput here too. A handler that waits for children is called again from its
    beginning when they have ended, as in a worker.
    """
    found = registered()[handler] if isinstance(handler, str) else describe("test", handler)
    ctx = context or MemoryContext(payload)
    output, runs = _run_until_end(found, ctx)
    try:
        return HandlerRun(storable(output), ctx, runs)
    except UnstorableOutput as error:
        raise InvalidOutput(str(error)) from error


def _run_until_end(handler: Handler, ctx: MemoryContext) -> tuple[object, int]:
    for runs in range(1, MAX_WAITS + 1):
        try:
            return invoke(handler, ctx), runs
        except BaseException as error:
            match decisive_error(error):
                case Suspended(tasks=tasks):
                    ctx.resume(tasks)
                case _:
                    raise
    raise AssertionError(f"the handler has waited {MAX_WAITS} times and has not ended")
