"""When a run is asked to stop, and when it is ended whether it stops or not; no clock, no IO."""

from dataclasses import dataclass
from enum import StrEnum

from overnight_server.settings import Settings

# From then on somebody else may hold the task, so a run must be over before its lease is.
SAFETY_SECONDS = 5.0
TIMEOUT_GRACE_SECONDS = 5.0
LOST_GRACE_SECONDS = 2.0
# What the watchdog leaves to the gentler ways before it acts.
WATCHDOG_SLACK_SECONDS = 1.0


class StopReason(StrEnum):
    """Why a run should end, the weakest first: the strongest decides what is recorded."""

    WINDOW = "window_closed"
    SHUTDOWN = "shutdown"
    BUDGET = "budget"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LOST = "lost"


STRENGTH = {reason: rank for rank, reason in enumerate(StopReason)}


@dataclass(frozen=True)
class Spans:
    """How long a run may take, and how long it may go on after each way of being stopped.

    `margin` is kept free before the lease ends, for what the clocks of two machines disagree on
    and for the time it takes to end a process.
    """

    granted: float
    lease: float
    margin: float
    cancel_grace: float
    timeout_grace: float
    shutdown_grace: float

    @classmethod
    def of(cls, settings: Settings, *, granted: float) -> "Spans":
        """Take the spans from the settings; short leases, as in tests, have short margins."""
        lease = settings.lease_seconds
        return cls(
            granted=granted,
            lease=lease,
            margin=min(SAFETY_SECONDS, lease / 6),
            cancel_grace=settings.cancel_grace,
            timeout_grace=min(settings.cancel_grace, TIMEOUT_GRACE_SECONDS),
            shutdown_grace=settings.shutdown_grace,
        )


class StopPolicy:
    """One run's way down: asked to stop, given its grace, ended.

    All instants are of one monotonic clock. `began` is taken before the start was requested,
    because the lease counts from some moment after that. `turn` is when the run itself begins,
    if it had to wait for others of its bundle.
    """

    def __init__(self, spans: Spans, *, began: float, turn: float | None = None) -> None:
        self._spans = spans
        self._confirmed = began
        self._deadline = (began if turn is None else turn) + spans.granted
        self._ends: dict[StopReason, float] = {}

    @property
    def deadline(self) -> float:
        """When the run has used up its time."""
        return self._deadline

    @property
    def trusted_until(self) -> float:
        """Until when nobody else can hold the task, as far as the last answer tells."""
        return self._confirmed + self._spans.lease - self._spans.margin

    @property
    def reason(self) -> StopReason | None:
        """The strongest reason to stop so far."""
        return max(self._ends, key=STRENGTH.__getitem__, default=None)

    @property
    def ends_at(self) -> float | None:
        """When the run is ended by force: the earliest end of all graces."""
        return min(self._ends.values(), default=None)

    @property
    def watchdog_at(self) -> float:
        """When the process must die even if no Python code runs in it any more."""
        return min(
            # After the guard had its chance to end a run that is not to blame, and still in time.
            self.trusted_until + self._spans.margin / 2,
            self._deadline + self._spans.timeout_grace + WATCHDOG_SLACK_SECONDS,
            *(end + WATCHDOG_SLACK_SECONDS for end in self._ends.values()),
        )

    def confirm(self, sent_at: float) -> None:
        """Trust the lease anew, counted from before the request that was answered."""
        self._confirmed = max(self._confirmed, sent_at)

    def look(self, now: float, *, draining: bool) -> None:
        """Find the reasons to stop that the clocks and the worker itself give."""
        if draining:
            self.ask(StopReason.SHUTDOWN, now)
        if now >= self._deadline:
            self.ask(StopReason.TIMEOUT, now)
        if now >= self.trusted_until:
            self.ask(StopReason.LOST, now)

    def ask(self, reason: StopReason, now: float) -> None:
        """Ask the run to stop; asking again for the same reason changes nothing."""
        self._ends.setdefault(reason, self._end_of(reason, now))

    def _end_of(self, reason: StopReason, now: float) -> float:
        match reason:
            case StopReason.SHUTDOWN:
                return now + self._spans.shutdown_grace
            case StopReason.TIMEOUT:
                return self._deadline + self._spans.timeout_grace
            case StopReason.CANCELLED | StopReason.BUDGET | StopReason.WINDOW:
                return now + self._spans.cancel_grace
            case StopReason.LOST:
                # Someone else may run the task already, or soon.
                return min(now + LOST_GRACE_SECONDS, self.trusted_until)
