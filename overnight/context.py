"""What a handler is given: its task, and the ways to speak while it runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from overnight.steering import Stopped

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
        self.inputs: dict[str, Any] = dict(inputs or {})
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


def sound_cost(usd: float) -> float:
    """Return an amount that can be added up, or refuse it."""
    if not 0 <= usd < MOST_USD:
        raise ValueError(f"a cost is from 0 to {MOST_USD} US dollars, not {usd!r}")
    return usd
