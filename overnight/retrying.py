"""Whether a request that did not succeed is worth sending again, and how long to wait first."""

import httpx2

from overnight.calls import retry_after

PASSING_STATUSES = frozenset({429, 503})
FIRST_WAIT_SECONDS = 0.25
MAX_WAIT_SECONDS = 30.0


def wait_before_next(
    sent: int, outcome: httpx2.Response | httpx2.TransportError, chance: float
) -> float | None:
    """Return the seconds to wait after `sent` requests, or None if another would not help.

    `chance` in [0, 1) spreads the wait, so that many clients do not return in step.
    """
    wait = min(FIRST_WAIT_SECONDS * 2.0 ** (sent - 1), MAX_WAIT_SECONDS) * (0.5 + chance / 2)
    if isinstance(outcome, httpx2.TransportError):
        return wait
    if outcome.status_code not in PASSING_STATUSES:
        return None
    asked = retry_after(outcome) or 0.0
    # Coming back earlier than asked would be rude, and waiting longer than this useless here.
    return None if asked > MAX_WAIT_SECONDS else asked + wait
