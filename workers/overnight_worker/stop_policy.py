"""Decides when a run is requested to stop and when it is ended by force; no clock, no IO."""

from dataclasses import dataclass
from enum import StrEnum

from overnight_server.settings import Settings

# A run must have ended this long before its lease ends, because another worker may then claim the
# task.
SAFETY_SECONDS = 5.0
TIMEOUT_GRACE_SECONDS = 5.0
LOST_GRACE_SECONDS = 2.0
# Kept free between the end of a task's own grace and the forced end, to kill what is left of a
# command and to record it.
FORCE_MARGIN_SECONDS = 1.0
# The watchdog acts this long after the forced end, which records how the run ended; the watchdog
# cannot.
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
class TimeLimits:
    """How many seconds a run may take, and how many more after each kind of stop request.

    `margin` is kept free before the lease ends, for the difference between the clocks of two
    machines and for the time it takes to end a process.
    """

    granted: float
    lease: float
    margin: float
    cancel_grace: float
    timeout_grace: float
    shutdown_grace: float

    @classmethod
    def of(cls, settings: Settings, *, granted: float, own_grace: float = 0.0) -> "TimeLimits":
        """Return the limits of the settings; short leases, as in tests, have short margins.

        `own_grace` is what the task gives its command after a stop request. It lengthens the graces
        of the settings but that of a shutdown, which the service manager limits.
        """
        lease = settings.lease_seconds
        least = own_grace + FORCE_MARGIN_SECONDS if own_grace else 0.0
        return cls(
            granted=granted,
            lease=lease,
            margin=min(SAFETY_SECONDS, lease / 6),
            cancel_grace=max(settings.cancel_grace, least),
            timeout_grace=max(min(settings.cancel_grace, TIMEOUT_GRACE_SECONDS), least),
            shutdown_grace=settings.shutdown_grace,
        )


class StopPolicy:
    """When one run must stop: it is requested to stop, has its grace, and is ended by force.

    All instants are of one monotonic clock. `start_requested_at` is taken before the start was
    sent to Postgres, because the lease counts from some moment after that. `run_started_at` is
    later if the run waited for others of its bundle.
    """

    def __init__(
        self,
        limits: TimeLimits,
        *,
        start_requested_at: float,
        run_started_at: float | None = None,
    ) -> None:
        self._limits = limits
        self._confirmed_at = start_requested_at
        started_at = start_requested_at if run_started_at is None else run_started_at
        self._deadline = started_at + limits.granted
        self._forced_ends: dict[StopReason, float] = {}

    @property
    def deadline(self) -> float:
        """When the run has used up its time."""
        return self._deadline

    @property
    def trusted_until(self) -> float:
        """Until when the last heartbeat guarantees that no other worker holds the task."""
        return self._confirmed_at + self._limits.lease - self._limits.margin

    @property
    def reason(self) -> StopReason | None:
        """The strongest reason to stop so far."""
        return max(self._forced_ends, key=STRENGTH.__getitem__, default=None)

    @property
    def forced_end_at(self) -> float | None:
        """When the run is ended by force: the earliest end of all graces."""
        return min(self._forced_ends.values(), default=None)

    @property
    def watchdog_at(self) -> float:
        """When the process must die even if no Python code runs in it any more."""
        return min(
            # Later than the stop thread's chance to end the run cleanly, before the lease ends.
            self.trusted_until + self._limits.margin / 2,
            self._deadline + self._limits.timeout_grace + WATCHDOG_SLACK_SECONDS,
            *(end + WATCHDOG_SLACK_SECONDS for end in self._forced_ends.values()),
        )

    def confirm_lease(self, sent_at: float) -> None:
        """Extend the trust in the lease, counted from when the confirmed heartbeat was sent."""
        self._confirmed_at = max(self._confirmed_at, sent_at)

    def check(self, now: float, *, shutting_down: bool) -> None:
        """Request a stop if the worker shuts down, the time is used up or the lease is unsure."""
        if shutting_down:
            self.request_stop(StopReason.SHUTDOWN, now)
        if now >= self._deadline:
            self.request_stop(StopReason.TIMEOUT, now)
        if now >= self.trusted_until:
            self.request_stop(StopReason.LOST, now)

    def request_stop(self, reason: StopReason, now: float) -> None:
        """Request a stop; a second request for the same reason changes nothing."""
        self._forced_ends.setdefault(reason, self._forced_end(reason, now))

    def _forced_end(self, reason: StopReason, now: float) -> float:
        match reason:
            case StopReason.SHUTDOWN:
                return now + self._limits.shutdown_grace
            case StopReason.TIMEOUT:
                return self._deadline + self._limits.timeout_grace
            case StopReason.CANCELLED | StopReason.BUDGET | StopReason.WINDOW:
                return now + self._limits.cancel_grace
            case StopReason.LOST:
                # Another worker may run the task already, or soon.
                return min(now + LOST_GRACE_SECONDS, self.trusted_until)
