"""What people ask for, as rows keep it."""

import json
from dataclasses import asdict
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from app.domain.retry import RetryPolicy

SELDOM_CHANGED = ("escalate_after", "escalate", "poison_attempts", "poison_distinct_agents")


@lru_cache
def stored_policy(policy: RetryPolicy) -> dict[str, object]:
    """Return a policy as it is stored; most tasks share one.

    Rules that hardly anybody changes are left out where they are the default: every version of
    the task's row carries them along.
    """
    plain = asdict(RetryPolicy())
    return {
        name: value
        for name, value in asdict(policy).items()
        if name not in SELDOM_CHANGED or value != plain[name]
    }


def as_json(value: object) -> str:
    """Write rows for a statement that takes them as JSON."""
    return json.dumps(value, default=_plain)


def _plain(value: object) -> str:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be stored")
