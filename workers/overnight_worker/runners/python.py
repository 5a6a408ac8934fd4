"""Running a registered Python handler in this very process."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from overnight.handlers.context import Context, sound_cost
from overnight.handlers.registry import Handler
from overnight.handlers.spawn import Child, Content, Wish
from overnight.models.json_values import sound_object
from overnight_server.control.claim_tokens import issue
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import show_task
from overnight_server.mask import hide_in
from overnight_server.telemetry import get
from overnight_worker.secrets import resolve
from overnight_worker.task_graph import Growth

_log = get("overnight.handler")


class RunContext(Context):
    """A run as its handler sees it; the heartbeat thread reads what the handler says.

    `deadline` is an instant of the monotonic clock.
    """

    def __init__(self, run: Run, *, deadline: float, growth: Growth | None = None) -> None:
        prompt = run.spec.get("prompt", "")
        super().__init__(
            task_id=show_task(run.claim.task_id),
            type=run.type,
            title=run.title,
            payload=run.payload,
            prompt=prompt if isinstance(prompt, str) else "",
            attempt=run.attempt,
            max_attempts=run.max_attempts,
            epoch=run.claim.epoch,
            ceiling_usd=run.ceiling_usd,
            # Asked for when they are looked at; a task that stands alone has none.
            inputs=None if run.is_linked else {},
        )
        self._claim = run.claim
        self._growth = growth
        self.user_id = run.user_id
        self.cost_usd = 0.0
        self.reported_usd = 0.0
        self._spent_before = run.spent_usd
        self.tokens: dict[str, int] = {}
        self._deadline = deadline
        self._stop_reason: str | None = None
        self._news: dict[str, Any] | None = None
        self._lock = Lock()

    def _claim_token(self) -> str | None:
        return issue(self._claim)

    @property
    def stop_reason(self) -> str | None:
        """Why the run should end, or None."""
        return self._stop_reason

    @property
    def seconds_left(self) -> float:
        """How long the run may still take."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def usd_left(self) -> float | None:
        """What is left of the task's ceiling."""
        if self.ceiling_usd is None:
            return None
        return max(0.0, round(self.ceiling_usd - self._spent_before - self.cost_usd, 6))

    @property
    def at_ceiling(self) -> bool:
        """Whether the run has spent, and nothing is left."""
        return self.cost_usd > 0 and self.usd_left == 0

    def stop(self, reason: str) -> None:
        """Ask the handler to come to an end; a stronger reason replaces a weaker one."""
        self._stop_reason = reason

    def progress(
        self, fraction: float | None = None, message: str | None = None, **data: object
    ) -> None:
        """Keep the latest word for the next heartbeat; what cannot be stored is refused here.

        Copied, because the handler may go on changing what it passed.
        """
        said = {"fraction": fraction, "message": message, **data}
        known = sound_object({name: value for name, value in said.items() if value is not None})
        known = hide_in(known)
        with self._lock:
            self._news = json.loads(json.dumps(known))

    def take_news(self) -> dict[str, Any] | None:
        """Return what was said since the last time, or None; for the heartbeat."""
        with self._lock:
            news, self._news = self._news, None
        return news

    def put_back(self, news: dict[str, Any] | None) -> None:
        """Keep news that did not arrive, unless there are newer."""
        with self._lock:
            self._news = self._news or news

    def log(self, message: str, **fields: object) -> None:
        """Write one line to the worker's log, under the task's name."""
        _log.info(message, **{"queue_id": self.task_id, "epoch": self.epoch, **fields})

    def cost(self, usd: float, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Add up what model calls cost."""
        sound_cost(usd)
        with self._lock:
            self.cost_usd += usd
            for name, count in (("input", input_tokens), ("output", output_tokens)):
                if count:
                    self.tokens[name] = self.tokens.get(name, 0) + count

    @property
    def growth(self) -> Growth:
        """The way to the run's graph."""
        if self._growth is None:
            raise RuntimeError("this run stands outside of any deployment")
        return self._growth

    def _read_inputs(self) -> dict[str, Any]:
        return self.growth.inputs()

    def _look(self, children: Sequence[str] | None) -> list[Child]:
        return self.growth.children(children)

    def _spawn(self, wish: Wish) -> str:
        return self.growth.spawn(wish)

    def _keep(self, name: str, content: Content) -> str:
        return self.growth.keep(name, content)


@dataclass(frozen=True)
class Finished:
    """How a handler came to its end: with an output or with what it raised."""

    output: object = None
    raised: BaseException | None = None


def perform(handler: Handler, context: RunContext) -> Finished:
    """Run the handler to its end, whatever it does short of ending the process."""
    call: Callable[[Context], object] = handler.function
    try:
        context.payload = resolve(context.payload, context.user_id)
        return Finished(output=call(context))
    except BaseException as error:  # noqa: BLE001 - sys.exit() in a handler must not end the worker
        return Finished(raised=error)
