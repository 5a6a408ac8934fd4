"""Night windows: writes to each user's lane whether the window is open and when that changes."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight.models.enums import AtClosing
from overnight_server.domain.windows import (
    UNKNOWN_ZONE_RETRY,
    NightWindow,
    WindowState,
    is_zone,
    window_state,
)
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit


def refresh_windows(tx: Connection, users: Iterable[UUID]) -> None:
    """Open or close the windows of these users as of now; the caller holds their lanes."""
    rows = tx.execute(statement("read_windows"), {"users": sorted(set(users))}).all()
    # Many users have the same window, and all rows carry the same instant.
    hours_by_window: dict[NightWindow, WindowState | None] = {}
    states = []
    for row in rows:
        window = window_of(row._asdict())
        if window is None:
            states.append({"user_id": row.user_id, "closed": False})
            continue
        if window not in hours_by_window:
            hours_by_window[window] = (
                window_state(window, row.now) if is_zone(window.zone) else None
            )
        states.append(_lane_state(row.user_id, window, hours_by_window[window], row.now))
    tx.execute(statement("write_windows"), {"lane_states": json.dumps(states, default=str)})


def window_of(row: Mapping[str, Any]) -> NightWindow | None:
    """Return the window that a user's columns describe; None for a user without one."""
    if row["window_zone"] is None:
        return None
    return NightWindow(
        row["window_zone"],
        row["window_from"],
        row["window_to"],
        AtClosing(row["window_at_closing"]),
    )


def _lane_state(
    user_id: UUID, window: NightWindow, state: WindowState | None, now: datetime
) -> dict[str, object]:
    if state is None:
        # A zone that this Python does not know must not stop the gate for other users.
        emit(LogEvent.WINDOW_UNREADABLE, user_id=user_id, zone=window.zone)
        return {"user_id": user_id, "closed": True, "changes_at": now + UNKNOWN_ZONE_RETRY}
    carries_over = not state.is_open and window.at_closing is AtClosing.CONTINUE
    stops = window.at_closing is AtClosing.STOP
    return {
        "user_id": user_id,
        # Under `continue` the lane stays open for tasks created before the window closed.
        "closed": not state.is_open and not carries_over,
        "changes_at": state.changes_at,
        "carry_over_until": state.closed_at if carries_over else None,
        "stops_runs_at": (state.closes_at if state.is_open else state.closed_at) if stops else None,
    }
