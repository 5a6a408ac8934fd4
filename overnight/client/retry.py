"""Whether a request that did not succeed is worth sending again, and how long to wait first."""

import httpx2

from overnight.client.task_calls import retry_after
from overnight.errors import Refused

PASSING_STATUSES = frozenset({429, 503})
# What a proxy says while the service behind it restarts.
AWAY_STATUSES = frozenset({429, 502, 503, 504})
# How long a service that has answered before may be gone before a long wait for it ends.
PATIENCE_SECONDS = 60.0
FIRST_WAIT_SECONDS = 0.25
MAX_WAIT_SECONDS = 30.0


def wait_before_next(
    sent: int, outcome: httpx2.Response | httpx2.TransportError, chance: float
) -> float | None:
    """Return the seconds to wait after `sent` requests, or None if another would not help.

    `chance` in [0, 1) spreads the wait, so that many clients do not return in step.
    """
    wait = backoff(sent, chance)
    if isinstance(outcome, httpx2.TransportError):
        return wait
    if outcome.status_code not in PASSING_STATUSES:
        return None
    asked = retry_after(outcome) or 0.0
    # Coming back earlier than asked would be rude, and waiting longer than this useless here.
    return None if asked > MAX_WAIT_SECONDS else asked + wait


def backoff(sent: int, chance: float) -> float:
    """Return the seconds to wait after so many requests in vain; `chance` in [0, 1) spreads it."""
    # Beyond a few doublings the longest wait is reached, and a float would not hold the number.
    grown = FIRST_WAIT_SECONDS * 2.0 ** min(sent - 1, 30)
    return min(grown, MAX_WAIT_SECONDS) * (0.5 + chance / 2)


def is_passing(error: Exception) -> bool:
    """Whether an error may well be gone in a while, because the service only restarts."""
    return not isinstance(error, Refused) or error.status in AWAY_STATUSES
