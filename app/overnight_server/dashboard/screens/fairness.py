"""Fairness: whether everybody got a fair share of the slots."""

from datetime import timedelta
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from overnight.models.admin import Fairness
from overnight_server.dashboard.life_lines import meter
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.insight.fairness_report import fairness

screen = Screen("fairness", for_admins=True)
PERIODS = {"8": "8 hours", "24": "a day", "168": "a week"}
DEFAULT = "24"
STARVING = timedelta(minutes=15)
MOST_USERS = 100
#: A report that is older is made anew when it is shown: it reads every run of its period.
FRESH = timedelta(minutes=1)


@screen.page("/fairness")
def show_fairness(visit: Visit) -> Response:
    """Show how long each user waited, and which share of the slots each got: the last report."""
    view = read_view(visit, visit.query("hours", DEFAULT))
    return visit.page("fairness.html", title="Fairness", place="fairness", **view)


@screen.part("fairness", tokens=5)
def show_fairness_part(visit: Visit, key: str) -> Markup | None:
    """Return the last report; a newer one may have been made."""
    if not visit.is_admin:
        return None
    return visit.fragment("parts/fairness.html", **read_view(visit, key))


def read_view(visit: Visit, hours: str) -> dict[str, Any]:
    """Return everything that the page shows of a period."""
    hours = hours if hours in PERIODS else DEFAULT

    def make() -> Fairness:
        return fairness(
            visit.admin_db,
            claim_settings=visit.claim_settings,
            since=timedelta(hours=int(hours)),
            starving_after=STARVING,
        )

    last = visit.last(f"fairness {hours}", make, FRESH)
    users = [] if last is None else last.value.users
    return {
        "last": last,
        "report": None if last is None else last.value,
        "rows": [
            {"share": share, "meter": meter([("used", share.slot_share)], "share of all slot time")}
            for share in users[:MOST_USERS]
        ],
        "more": max(0, len(users) - MOST_USERS),
        "hours": hours,
        "periods": PERIODS,
    }
