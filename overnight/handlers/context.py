"""The context of a run: what a handler reads about its task and reports while it runs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from overnight.handlers.control_exceptions import Stopped, Suspended
from overnight.handlers.spawn import (
    NUMBERED_KEY_PREFIX,
    ArtifactContent,
    ChildRequest,
    artifact_content,
    check_key,
    child_request,
)
from overnight.models.agents import Child
from overnight.models.tasks import ChildFields
from overnight.models.validation import Feedback
from overnight.trace_context import VARIABLE, current_traceparent

# The database column holds no larger amount; a larger one is a mistake of unit.
MAX_USD = 1_000_000


class Context(ABC):
    """One run of one task, as its handler sees it.

    Workers, pull agents and `overnight.testing` each have a subclass; a handler that uses only
    what is defined here runs in all three.
    """

    def __init__(
        self,
        *,
        task_id: str,
        type: str,  # noqa: A002 - the name on the wire
        title: str = "",
        payload: Mapping[str, Any] | None = None,
        prompt: str = "",
        spec: Mapping[str, Any] | None = None,
        attempt: int = 1,
        max_attempts: int = 1,
        epoch: int = 1,
        inputs: Mapping[str, Any] | None = None,
        ceiling_usd: float | None = None,
    ) -> None:
        self.task_id = task_id
        self.type = type
        self.title = title
        self.payload: dict[str, Any] = dict(payload or {})
        self.prompt = prompt
        self.spec: dict[str, Any] = dict(spec or {})
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.epoch = epoch
        self._inputs: dict[str, Any] | None = None if inputs is None else dict(inputs)
        self._keyless_spawns = 0
        self._stop_listener: Callable[[str], None] | None = None
        # What all runs of the task together may cost; None means no limit.
        self.ceiling_usd = ceiling_usd

    @property
    def idempotency_key(self) -> str:
        """A key that is unique to this run, for services that must not act twice for it."""
        return f"{self.task_id}:{self.epoch}"

    @property
    def model(self) -> str | None:
        """The model that this run should use, by the task's spec; None if the spec names none.

        The first attempt uses `model`, else the first of `constraints.model_preferences`. Each
        later attempt uses the next of `constraints.fallback_models`, in the end the last of them.
        """
        constraints = self.spec.get("constraints") or {}
        fallbacks = constraints.get("fallback_models") or []
        if self.attempt > 1 and fallbacks:
            return str(fallbacks[min(self.attempt - 2, len(fallbacks) - 1)])
        model = self.spec.get("model")
        preferences = constraints.get("model_preferences") or []
        chosen = model if isinstance(model, str) else next(iter(preferences), None)
        return None if chosen is None else str(chosen)

    @property
    def cancelled(self) -> bool:
        """Whether the run should end; a long handler checks it between two steps."""
        return self.stop_reason is not None

    def check(self) -> None:
        """Raise `Stopped` if the run should end."""
        if self.stop_reason is not None:
            raise Stopped(self.stop_reason)

    def on_stop(self, listener: Callable[[str], None] | None) -> None:
        """Call the listener with the reason whenever the run is asked to end; None removes it.

        It is called by the thread that requests the stop, so it must not wait. A stop that was
        requested earlier is in `stop_reason`.
        """
        self._stop_listener = listener

    def _report_stop(self, reason: str) -> None:
        """Call the listener of `on_stop`; each subclass does this after it set `stop_reason`."""
        listener = self._stop_listener
        if listener is not None:
            listener(reason)

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables for a program that this run starts and that acts for the run.

        With them, `overnight mcp` lets an agent spawn subtasks and report progress. The token is
        a secret of this run and is invalid once the run has ended.
        """
        token = self._claim_token()
        variables = {"OVERNIGHT_TASK_ID": self.task_id}
        if self.traceparent is not None:
            variables[VARIABLE] = self.traceparent
        return variables if token is None else {**variables, "OVERNIGHT_CLAIM_TOKEN": token}

    def _claim_token(self) -> str | None:
        """Return the token of the run's claim, if it has one."""
        return None

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of this run, None if the run is not traced.

        With OpenTelemetry the span of the run is the current one, so spans that a handler starts
        are below it without this.
        """
        return current_traceparent()

    @property
    def inputs(self) -> dict[str, Any]:
        """The outputs that this task may read, by name.

        The output of a task it depends on has that task's name in the graph, or its id if it has
        none. An entry of `context_refs` has the reference itself as its name.
        """
        if self._inputs is None:
            self._inputs = self._read_inputs()
        return self._inputs

    @property
    def feedback(self) -> Feedback | None:
        """Why the output of the latest rejected attempt was rejected; None if none was.

        It has the validator, its message and the beginning of the output, so that this attempt can
        do better.
        """
        return None

    @property
    def children(self) -> list[Child]:
        """The tasks that this task has spawned, in this run or an earlier one."""
        return self._read_children(None)

    def spawn(
        self,
        title: str,
        type: str,  # noqa: A002 - the name on the wire
        *,
        key: str | None = None,
        depends_on: Sequence[str] = (),
        **fields: Unpack[ChildFields],
    ) -> str:
        """Add a task to this task's graph and return its id, without waiting for it.

        A run that is repeated (after a crash or a wait) makes the same calls again: a call with a
        key that was used before returns the existing child and changes nothing. Without a `key`
        the calls of a run are numbered, so a handler whose order of calls varies must pass keys.
        `depends_on` lists ids of tasks of the graph that must complete first; `fields` are the
        fields of `TaskCreate`.
        """
        if key is None:
            self._keyless_spawns += 1
            child_key = f"{NUMBERED_KEY_PREFIX}{self._keyless_spawns}"
        else:
            child_key = check_key(key)
        return self._spawn(
            child_request(child_key, depends_on, {"title": title, "type": type, **fields})
        )

    def wait_for(self, *children: str) -> list[Child]:
        """Return children that have ended, in the order given; without ids, all children.

        If one of them has not ended, the run ends here by raising `Suspended`: slot and locks
        are released and no attempt is spent. When all have ended the handler is called again
        from its beginning, and this call then returns.
        """
        awaited = self._read_children(children or None)
        if all(child.is_final for child in awaited):
            return awaited
        raise Suspended([child.id for child in awaited])

    def artifact(
        self,
        name: str,
        content: str | bytes | None = None,
        *,
        json: object = None,
    ) -> str:
        """Store an artifact (text, bytes, or a JSON value) besides the output; return its id.

        The same name again, in this run or a later one, replaces the content. Other tasks read
        the artifact with `artifact:ID` in their `context_refs`.
        """
        return self._store_artifact(check_key(name), artifact_content(content, json))

    @abstractmethod
    def _read_inputs(self) -> dict[str, Any]: ...

    @abstractmethod
    def _read_children(self, ids: Sequence[str] | None) -> list[Child]:
        """Return these children, or all; raises InvalidRequest for another task's child."""

    @abstractmethod
    def _spawn(self, request: ChildRequest) -> str: ...

    @abstractmethod
    def _store_artifact(self, name: str, content: ArtifactContent) -> str: ...

    @property
    @abstractmethod
    def stop_reason(self) -> str | None:
        """Why the run should end; None while it may continue.

        One of `cancelled`, `timeout`, `budget`, `shutdown`, `window_closed` and `lost`.
        """

    @property
    @abstractmethod
    def seconds_left(self) -> float:
        """The seconds until the run's timeout; never below zero."""

    @property
    @abstractmethod
    def usd_left(self) -> float | None:
        """What remains of `ceiling_usd` after all runs so far; None without a ceiling.

        At zero the run is requested to stop, and the task waits for a person's approval of more. A
        handler can check this before an expensive call and choose a cheaper one.
        """

    @abstractmethod
    def progress(
        self, fraction: float | None = None, message: str | None = None, **data: object
    ) -> None:
        """Report the progress of the run; `fraction` is between 0 and 1.

        The call does not block: the latest report is sent within about a second.
        """

    @abstractmethod
    def log(self, message: str, **fields: object) -> None:
        """Write one line to the run's log."""

    @abstractmethod
    def cost(self, usd: float, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Add the cost of one model call; the sum counts even if the run fails later.

        It is sent at once. When the call returns, `stop_reason` is `budget` if this cost used up
        the budget of the task, of its graph or of the user's night.
        """


def check_cost(usd: float) -> float:
    """Return the amount; raises ValueError if it is negative or impossibly large."""
    if not 0 <= usd < MAX_USD:
        raise ValueError(f"a cost is from 0 to {MAX_USD} US dollars, not {usd!r}")
    return usd
