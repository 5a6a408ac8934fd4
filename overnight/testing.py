"""Run a handler in this very process, without servers, and look at what it did."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overnight.context import Context, sound_cost
from overnight.handlers import HandlerFunction, registered
from overnight.steering import InvalidOutput

TASK_ID = "task_00000000000000000000000001"


class MemoryContext(Context):
    """A context that remembers everything said to it; its clock moves only when told to."""

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
    ) -> None:
        super().__init__(
            task_id=TASK_ID,
            type=type,
            title=title,
            payload=payload,
            prompt=prompt,
            attempt=attempt,
            max_attempts=max_attempts,
            epoch=attempt,
            inputs=inputs,
            ceiling_usd=ceiling_usd,
        )
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
        sound_cost(usd)
        self.cost_usd += usd
        self.tokens["input"] += input_tokens
        self.tokens["output"] += output_tokens
        if usd > 0 and self.usd_left == 0:
            self.stop("budget")


@dataclass(frozen=True)
class Ran:
    """A finished run: what the handler returned, and the context it spoke to."""

    output: Any
    context: MemoryContext


def run(
    handler: HandlerFunction | str,
    payload: Mapping[str, Any] | None = None,
    *,
    context: MemoryContext | None = None,
) -> Ran:
    """Run a handler, given as a function or by its type; what it raises comes through.

    The output takes the way through JSON that it takes in service, so a set or an
    object that would fail there fails here.
    """
    function = registered()[handler].function if isinstance(handler, str) else handler
    ctx = context or MemoryContext(payload)
    output = function(ctx)
    try:
        return Ran(json.loads(json.dumps(output, allow_nan=False)), ctx)
    except (TypeError, ValueError) as error:
        raise InvalidOutput(f"the output cannot be written as JSON: {error}") from error
