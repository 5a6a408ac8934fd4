"""The places of the navigation, in their order, and the numbers beside them."""

from typing import NamedTuple

from overnight_server.insight.page_frame import MOST, Frame


class Place(NamedTuple):
    """A link of the navigation; its sign is the symbol `i-<name>` of the sprite."""

    name: str
    label: str
    path: str
    group: str = ""


#: A place is shown once a screen with its name exists, and to admins only if the screen is theirs.
PLACES = (
    Place("morning", "Morning", "/"),
    Place("tasks", "Tasks", "/tasks"),
    Place("graphs", "Graphs", "/graphs"),
    Place("queue", "Queue", "/queue"),
    Place("dead", "Dead letters", "/dead"),
    Place("approvals", "Approvals", "/approvals"),
    Place("limits", "Limits and usage", "/limits", "Plan"),
    Place("locks", "Locks", "/locks", "Plan"),
    Place("schedules", "Schedules", "/schedules", "Plan"),
    Place("notifications", "Notifications", "/notifications", "Plan"),
    Place("bulk", "Bulk operations", "/bulk", "Plan"),
    Place("workers", "Agents and workers", "/workers", "System"),
    Place("fairness", "Fairness", "/fairness", "System"),
    Place("audit", "Audit", "/audit", "System"),
    Place("users", "Users", "/users", "System"),
    Place("keys", "Keys", "/keys", "System"),
)


def marks_of(frame: Frame) -> dict[str, str]:
    """Return the numbers beside places: what a person should decide, and what one expects.

    Morning has the number of decisions, Dead letters and Approvals what each list holds.
    """
    figures = {
        "morning": frame.dead_groups + frame.asking,
        "queue": frame.waiting,
        "dead": frame.dead,
        "approvals": frame.asking,
    }
    return {place: _capped(place, number) for place, number in figures.items() if number}


#: The places whose number changes while a page is open, and those that ask for a decision.
MARKED = frozenset({"morning", "queue", "dead", "approvals"})
ALERTS = MARKED - {"queue"}


def _capped(place: str, number: int) -> str:
    """Write a number; what is counted up to a limit may be more."""
    is_cut = place in ALERTS and number >= MOST
    return f"{number:,}+" if is_cut else f"{number:,}"
