"""Turning night windows: how each stands now, written on its user's lane as instants."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.windows import LOOK_AGAIN, AtClosing, Hours, Window, hours, is_zone
from overnight_server.store.statements import statement
from overnight_server.telemetry import Event, emit


def turn(tx: Connection, users: Iterable[UUID]) -> None:
    """Open or close the windows of these users, whose lanes the caller holds, as the clock says."""
    rows = tx.execute(statement("read_windows"), {"users": sorted(set(users))}).all()
    # Many users keep the same hours, and all are judged at one instant.
    known: dict[Window, Hours | None] = {}
    turns = []
    for row in rows:
        window = window_of(row._asdict())
        if window is None:
            turns.append(_always_open(row.user_id))
            continue
        if window not in known:
            known[window] = hours(window, row.now) if is_zone(window.zone) else None
        turns.append(_turned(row.user_id, window, known[window], row.now))
    tx.execute(statement("turn_windows"), {"turns": json.dumps(turns, default=str)})


def window_of(row: Mapping[str, Any]) -> Window | None:
    """Read a user's window back from its columns."""
    if row["window_zone"] is None:
        return None
    return Window(
        row["window_zone"],
        row["window_from"],
        row["window_to"],
        AtClosing(row["window_at_closing"]),
    )


def _always_open(user_id: UUID) -> dict[str, object]:
    return {"user_id": user_id, "closed": False}


def _turned(user_id: UUID, window: Window, state: Hours | None, now: datetime) -> dict[str, object]:
    if state is None:
        # One user's zone must not stop the gate for everybody.
        emit(Event.WINDOW_UNREADABLE, user_id=user_id, zone=window.zone)
        return {"user_id": user_id, "closed": True, "turns_at": now + LOOK_AGAIN}
    carries = not state.is_open and window.at_closing is AtClosing.CONTINUE
    stops = window.at_closing is AtClosing.STOP
    return {
        "user_id": user_id,
        # Under `continue` the lane stays open, for what was waiting at closing time.
        "closed": not state.is_open and not carries,
        "turns_at": state.turns_at,
        "carried_until": state.closed_at if carries else None,
        "stops_runs_at": (state.closes_at if state.is_open else state.closed_at) if stops else None,
    }
