"""Run a handler in this very process, without servers, and look at what it did."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overnight.errors import InvalidRequest
from overnight.handlers.context import Context, check_cost
from overnight.handlers.control_exceptions import InvalidOutput, Suspended, error_text
from overnight.handlers.registry import HandlerFunction, registered
from overnight.handlers.spawn import ArtifactContent, Child, ChildRequest, artifact_value

TASK_ID = "task_00000000000000000000000001"
# More waits than this in one test are a handler that never comes to an end.
MOST_WAITS = 1000


@dataclass
class Planted:
    """A child that a handler spawned, and what it came to in the test."""

    id: str
    wish: ChildRequest
    state: str = "ready"
    output: Any = None
    error: str | None = None


@dataclass
class Garden:
    """Everything that the handlers of one test have spawned and made."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    planted: dict[str, Planted] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)

    def plant(self, wish: ChildRequest) -> Planted:
        """Let a child in."""
        child = Planted(f"task_{len(self.planted) + 2:026d}", wish)
        self.planted[child.id] = child
        return child

    def finish(self, ids: Iterable[str]) -> None:
        """Carry children out, and before them what they depend on."""
        for one in ids:
            child = self.planted[one]
            if child.state == "ready":
                self.finish(child.wish.depends_on)
                self._carry_out(child)

    def read(self, wish: ChildRequest) -> dict[str, Any]:
        """Return what a child may read: outputs of those before it, and what it refers to."""
        found = {}
        for one in wish.depends_on:
            before = self.planted[one]
            found[before.wish.name or before.id] = before.output
        named = {child.wish.name: child for child in self.planted.values()}
        for text in wish.task.context_refs:
            _, _, rest = text.partition(":")
            name = rest.removesuffix(":output")
            child = self.planted.get(name) or named.get(name)
            found[text] = self.artifacts.get(rest) if child is None else child.output
        return found

    def _carry_out(self, child: Planted) -> None:
        task = child.wish.task
        kind = task.type or ""
        try:
            answer = self._answer(child.wish)
            if isinstance(answer, BaseException):
                raise answer  # noqa: TRY301 - a test's way to say that this child fails
            if answer is None:
                context = MemoryContext(
                    task.payload,
                    type=kind,
                    title=task.title,
                    prompt=task.prompt or "",
                    inputs=self.read(child.wish),
                    task_id=child.id,
                    garden=self,
                )
                answer = run(kind, context=context).output
        except Exception as error:  # noqa: BLE001 - whatever a handler raises ends its task
            child.state, child.error = "dead_lettered", error_text(error)
        else:
            child.state, child.output = "completed", answer

    def _answer(self, wish: ChildRequest) -> object:
        """Return what the test says that a child comes to, by its key or else by its type."""
        kind = wish.task.type or ""
        for known in (wish.key, kind):
            if known in self.answers:
                return self.answers[known]
        if kind not in registered():
            raise LookupError(f"no handler for type {kind!r}; say what it returns in `answers`")
        return None


class MemoryContext(Context):
    """A context that remembers everything said to it; its clock moves only when told to.

    `answers` says what children return, by their key or their type; an exception says that they
    fail. Children without an answer are carried out by the registered handler of their type.
    """

    def __init__(
        self,
        payload: Mapping[str, Any] | None = None,
        *,
        type: str = "test",  # noqa: A002 - the word the wire uses
        title: str = "a test",
        prompt: str = "",
        attempt: int = 1,
        max_attempts: int = 3,
        inputs: Mapping[str, Any] | None = None,
        timeout_seconds: float = 1800.0,
        ceiling_usd: float | None = None,
        answers: Mapping[str, Any] | None = None,
        task_id: str = TASK_ID,
        garden: Garden | None = None,
    ) -> None:
        super().__init__(
            task_id=task_id,
            type=type,
            title=title,
            payload=payload,
            prompt=prompt,
            attempt=attempt,
            max_attempts=max_attempts,
            epoch=attempt,
            ceiling_usd=ceiling_usd,
        )
        self.garden = garden or Garden(answers or {})
        self.artifacts: dict[str, Any] = {}
        self._given = dict(inputs or {})
        self._mine: dict[str, Planted] = {}
        self._awaited: list[str] = []
        self.progress_said: list[dict[str, object]] = []
        self.logged: list[dict[str, object]] = []
        self.cost_usd = 0.0
        self.tokens = {"input": 0, "output": 0}
        self._seconds_left = timeout_seconds
        self._stop_reason: str | None = None

    @property
    def stop_reason(self) -> str | None:
        """Why the run should end, as `stop` or the clock said."""
        return self._stop_reason

    @property
    def seconds_left(self) -> float:
        """What is left of the timeout after all `pass_time`."""
        return self._seconds_left

    @property
    def usd_left(self) -> float | None:
        """What is left of the ceiling after every `cost`."""
        if self.ceiling_usd is None:
            return None
        return max(0.0, round(self.ceiling_usd - self.cost_usd, 6))

    def stop(self, reason: str = "cancelled") -> None:
        """Ask the run to end, as a cancel would."""
        self._stop_reason = self._stop_reason or reason

    def pass_time(self, seconds: float) -> None:
        """Let time go by; at the end of the timeout the run is asked to end."""
        self._seconds_left = max(0.0, self._seconds_left - seconds)
        if self._seconds_left == 0.0:
            self.stop("timeout")

    @property
    def spawned(self) -> list[Planted]:
        """What the handler spawned, in order: `wish.task` is what it asked for."""
        return list(self._mine.values())

    def resume(self, awaited: Sequence[str]) -> None:
        """Let the awaited come to an end, and be the context of the run that follows."""
        self.garden.finish(awaited)
        self._awaited += awaited
        self._inputs = None
        self._numbered = 0
        self.epoch += 1

    def _read_inputs(self) -> dict[str, Any]:
        planted = [self.garden.planted[one] for one in self._awaited]
        return {**self._given, **{one.wish.name or one.id: one.output for one in planted}}

    def _look(self, children: Sequence[str] | None) -> list[Child]:
        mine = {one.id: one for one in self._mine.values()}
        wanted = list(mine) if children is None else children
        for one in wanted:
            if one not in mine:
                raise InvalidRequest(
                    "children", f"{one} was not spawned by this task", legal="own children"
                )
        return [_child(mine[one]) for one in wanted]

    def _spawn(self, wish: ChildRequest) -> str:
        if wish.key not in self._mine:
            self._mine[wish.key] = self.garden.plant(wish)
        return self._mine[wish.key].id

    def _keep(self, name: str, content: ArtifactContent) -> str:
        kept = f"art_{len(self.garden.artifacts) + 1:026d}"
        self.artifacts[name] = self.garden.artifacts[kept] = artifact_value(content)
        return kept

    def progress(
        self, fraction: float | None = None, message: str | None = None, **data: object
    ) -> None:
        """Remember how far the work is said to be."""
        self.progress_said.append({"fraction": fraction, "message": message, **data})

    def log(self, message: str, **fields: object) -> None:
        """Remember one line."""
        self.logged.append({"message": message, **fields})

    def cost(self, usd: float, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Add up what was spent; at the ceiling the run is asked to end."""
        check_cost(usd)
        self.cost_usd += usd
        self.tokens["input"] += input_tokens
        self.tokens["output"] += output_tokens
        if usd > 0 and self.usd_left == 0:
            self.stop("budget")


def _child(planted: Planted) -> Child:
    return Child(
        planted.id,
        planted.wish.key,
        planted.wish.task.title,
        planted.wish.task.type or "",
        planted.state,
        planted.output,
        None if planted.error is None else "error",
        planted.error,
    )


@dataclass(frozen=True)
class Ran:
    """A finished task: what the handler returned, the context it spoke to, in how many runs."""

    output: Any
    context: MemoryContext
    runs: int = 1


def run(
    handler: HandlerFunction | str,
    payload: Mapping[str, Any] | None = None,
    *,
    context: MemoryContext | None = None,
) -> Ran:
    """Run a handler, given as a function or by its type; what it raises comes through.

    The output takes the way through JSON that it takes in service, so a set or an
    object that would fail there fails here. A handler that waits for its children is called
    again from its beginning once they are over, as in service.
    """
    function = registered()[handler].function if isinstance(handler, str) else handler
    ctx = context or MemoryContext(payload)
    output, runs = _to_the_end(function, ctx)
    try:
        return Ran(json.loads(json.dumps(output, allow_nan=False)), ctx, runs)
    except (TypeError, ValueError) as error:
        raise InvalidOutput(f"the output cannot be written as JSON: {error}") from error


def _to_the_end(function: HandlerFunction, ctx: MemoryContext) -> tuple[object, int]:
    for runs in range(1, MOST_WAITS + 1):
        try:
            return function(ctx), runs
        except Suspended as waiting:
            ctx.resume(waiting.tasks)
    raise AssertionError(f"the handler has waited {MOST_WAITS} times and has not ended")
