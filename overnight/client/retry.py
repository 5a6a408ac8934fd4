"""Decide whether a failed request is sent again, and how long to wait before."""

import httpx2

from overnight.client.calls import retry_after
from overnight.errors import Refused

RETRIED_STATUSES = frozenset({429, 503})
# A proxy responds with 502 or 504 while the service behind it restarts.
TEMPORARY_STATUSES = frozenset({429, 502, 503, 504})
# How long a service that has responded before may be away before a long wait ends.
MAX_OUTAGE_SECONDS = 60.0
FIRST_WAIT_SECONDS = 0.25
MAX_WAIT_SECONDS = 30.0


def wait_before_next(
    sent: int, outcome: httpx2.Response | httpx2.TransportError, chance: float
) -> float | None:
    """Return the seconds to wait after `sent` requests, or None if another would not help.

    `chance` in [0, 1) spreads the waits, so that many clients do not retry at the same moment.
    """
    wait = backoff(sent, chance)
    if isinstance(outcome, httpx2.TransportError):
        return wait
    if outcome.status_code not in RETRIED_STATUSES:
        return None
    minimum = retry_after(outcome) or 0.0
    # A caller who waits for a response should rather see the error than block for minutes.
    return None if minimum > MAX_WAIT_SECONDS else minimum + wait


def backoff(sent: int, chance: float) -> float:
    """Return the seconds to wait after `sent` failed requests; `chance` in [0, 1) spreads it."""
    # The exponent is bounded, because 2.0 ** 1100 raises OverflowError.
    exponential = FIRST_WAIT_SECONDS * 2.0 ** min(sent - 1, 30)
    return min(exponential, MAX_WAIT_SECONDS) * (0.5 + chance / 2)


def is_temporary(error: Exception) -> bool:
    """Whether the error may disappear by itself, for instance while the service restarts."""
    return not isinstance(error, Refused) or error.status in TEMPORARY_STATUSES
