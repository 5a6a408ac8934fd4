"""What a handler is given: its task, and the ways to speak while it runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from overnight.handlers.control_exceptions import Stopped, Suspended
from overnight.handlers.spawn import (
    NUMBERED_KEY_PREFIX,
    ArtifactContent,
    Child,
    ChildRequest,
    artifact_content,
    check_key,
    child_request,
)
from overnight.models.tasks import ChildFields

# More than the columns of money can hold is a mistake of unit.
MOST_USD = 1_000_000


class Context(ABC):
    """One run of one task, as its handler sees it.

    A worker, and `overnight.testing`, each bring their own kind; a handler that only
    uses what stands here runs under both.
    """

    def __init__(
        self,
        *,
        task_id: str,
        type: str,  # noqa: A002 - the word the wire uses
        title: str = "",
        payload: Mapping[str, Any] | None = None,
        prompt: str = "",
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
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.epoch = epoch
        self._inputs: dict[str, Any] | None = None if inputs is None else dict(inputs)
        self._numbered = 0
        # What all runs of the task together may cost; None is no limit.
        self.ceiling_usd = ceiling_usd

    @property
    def idempotency_key(self) -> str:
        """A key of this very run, to hand to services that must not act twice for it."""
        return f"{self.task_id}:{self.epoch}"

    @property
    def cancelled(self) -> bool:
        """Whether the run should end; a long handler looks at it between two steps."""
        return self.stop_reason is not None

    def check(self) -> None:
        """End the run here, by raising `Stopped`, if it should end."""
        if self.stop_reason is not None:
            raise Stopped(self.stop_reason)

    @property
    def environ(self) -> dict[str, str]:
        """What a program started by this run finds in its environment, to act for the run.

        `overnight mcp` then lets an agent spawn subtasks and tell how far it is. The token is a
        secret of this run, and worth nothing once the run is over.
        """
        token = self._claim_token()
        named = {"OVERNIGHT_TASK_ID": self.task_id}
        return named if token is None else {**named, "OVERNIGHT_CLAIM_TOKEN": token}

    def _claim_token(self) -> str | None:
        """Return the token of the claim this run goes by, if it has one."""
        return None

    @property
    def inputs(self) -> dict[str, Any]:
        """The outputs this task may read.

        Those of the tasks it waited for go by their name in the graph, or by their id if they have
        none; those it refers to, and artifacts, by the reference as it was written.
        """
        if self._inputs is None:
            self._inputs = self._read_inputs()
        return self._inputs

    @property
    def children(self) -> list[Child]:
        """What this task has spawned, in this run or an earlier one, as it stands now."""
        return self._look(None)

    def spawn(
        self,
        title: str,
        type: str,  # noqa: A002 - the word the wire uses
        *,
        key: str | None = None,
        depends_on: Sequence[str] = (),
        **fields: Unpack[ChildFields],
    ) -> str:
        """Add a task to this task's graph, at once, and return its id; it is not waited for.

        A run that is repeated, after a crash or a wait, calls this again: the same key answers
        with the child of the first time, whatever else is asked for. Without a `key` the calls
        of a run are numbered, so a handler that spawns in another order should give keys.
        `depends_on` names tasks of the graph that must complete first; `fields` are those of a
        create.
        """
        if key is None:
            self._numbered += 1
            known = f"{NUMBERED_KEY_PREFIX}{self._numbered}"
        else:
            known = check_key(key)
        return self._spawn(
            child_request(known, depends_on, {"title": title, "type": type, **fields})
        )

    def wait_for(self, *children: str) -> list[Child]:
        """Return what became of children, in the order named; without names, of all of them.

        If one of them is not over, the run ends here, by raising `Suspended`, and gives its slot
        and its locks back; no attempt is spent. The handler is called again from its beginning
        when all are over, and comes past this point then.
        """
        found = self._look(children or None)
        if all(child.is_final for child in found):
            return found
        raise Suspended([child.id for child in found])

    def artifact(
        self,
        name: str,
        content: str | bytes | None = None,
        *,
        json: object = None,
    ) -> str:
        """Keep something for others to read besides the output; return its id.

        Text, bytes, or a value as JSON. The same name again, in this run or a later one, is the
        same artifact with new content. Others read it by naming `artifact:ID` in `context_refs`.
        """
        return self._keep(check_key(name), artifact_content(content, json))

    @abstractmethod
    def _read_inputs(self) -> dict[str, Any]: ...

    @abstractmethod
    def _look(self, children: Sequence[str] | None) -> list[Child]:
        """Return own children as they stand, those named or all; another's is refused."""

    @abstractmethod
    def _spawn(self, child_request: ChildRequest) -> str: ...

    @abstractmethod
    def _keep(self, name: str, content: ArtifactContent) -> str: ...

    @property
    @abstractmethod
    def stop_reason(self) -> str | None:
        """Why the run should end, or None.

        One of `cancelled`, `timeout`, `budget`, `shutdown`, `window_closed` and `lost`.
        """

    @property
    @abstractmethod
    def seconds_left(self) -> float:
        """How long the run may still take; never below zero."""

    @property
    @abstractmethod
    def usd_left(self) -> float | None:
        """What is left of `ceiling_usd` after all runs so far; None without a ceiling.

        At zero the run is asked to stop, and a person whether the task may have more. A handler
        that looks before an expensive call can stop earlier, or choose a cheaper one.
        """

    @abstractmethod
    def progress(
        self, fraction: float | None = None, message: str | None = None, **data: object
    ) -> None:
        """Tell watchers how far the work is; `fraction` runs from 0 to 1.

        Cheap and never blocking: only the latest word travels, with the next heartbeat.
        """

    @abstractmethod
    def log(self, message: str, **fields: object) -> None:
        """Write one line to the run's log."""

    @abstractmethod
    def cost(self, usd: float, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Add what one model call cost; the sum is kept even if the run fails later.

        It travels with the next heartbeat. At the ceiling, `stop_reason` becomes `budget`.
        """


def check_cost(usd: float) -> float:
    """Return an amount that can be added up, or refuse it."""
    if not 0 <= usd < MOST_USD:
        raise ValueError(f"a cost is from 0 to {MOST_USD} US dollars, not {usd!r}")
    return usd
