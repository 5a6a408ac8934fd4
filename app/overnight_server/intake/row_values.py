"""What people ask for, as rows keep it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from overnight_server.domain.retry import RetryPolicy

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


def inserting(user_id: UUID, rows: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """Return what `insert_tasks` is given for rows; policies, which most of them share, go once."""
    policies: list[object] = []
    places: dict[int, int] = {}
    told = []
    for row in rows:
        known = {name: value for name, value in row.items() if value is not None}
        policy = known.pop("retry")
        known["policy"] = places.setdefault(id(policy), len(policies))
        if known["policy"] == len(policies):
            policies.append(policy)
        told.append(known)
    return {"user_id": user_id, "tasks": as_json(told), "policies": as_json(policies)}


def as_json(value: object) -> str:
    """Write rows for a statement that takes them as JSON."""
    return json.dumps(value, default=_plain)


def _plain(value: object) -> str:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be stored")
