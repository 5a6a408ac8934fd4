"""Fairness: whether everybody got a fair share of the slots."""

from datetime import timedelta

from starlette.responses import Response

from overnight.models.admin import Fairness
from overnight_server.dashboard.life_lines import meter
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.insight.fairness_report import fairness

screen = Screen("fairness", for_admins=True)
PERIODS = {"8": "8 hours", "24": "a day", "168": "a week"}
STARVING = timedelta(minutes=15)
MOST_USERS = 100
#: How long a report is shown before it is made anew: it reads every run of its period.
RECENT_SECONDS = 60


@screen.page("/fairness", is_expensive=True)
def show_fairness(visit: Visit) -> Response:
    """Show how long each user waited, and which share of the slots each got."""
    hours = visit.query("hours", "24")
    hours = hours if hours in PERIODS else "24"

    def make() -> Fairness:
        return fairness(
            visit.admin_db,
            claim_settings=visit.claim_settings,
            since=timedelta(hours=int(hours)),
            starving_after=STARVING,
        )

    report = visit.recent(f"fairness {hours}", make, RECENT_SECONDS)
    rows = [
        {"share": share, "meter": meter([("used", share.slot_share)], "share of all slot time")}
        for share in report.users[:MOST_USERS]
    ]
    return visit.page(
        "fairness.html",
        title="Fairness",
        place="fairness",
        report=report,
        rows=rows,
        more=max(0, len(report.users) - MOST_USERS),
        hours=hours,
        periods=PERIODS,
    )
