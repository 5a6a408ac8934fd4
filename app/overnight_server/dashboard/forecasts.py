"""The forecast of a user's running and next tasks, as three pages show it: the last one made."""

from collections.abc import Sequence
from datetime import timedelta

from overnight.models.tasks import Forecast
from overnight_server.dashboard.last_results import LastResult
from overnight_server.dashboard.visit import Visit
from overnight_server.forecast.forecast import forecast_next

MOST_FORECAST = 50
#: A forecast that is older is made anew when a page shows it.
FRESH = timedelta(minutes=2)


def last_forecast(visit: Visit, fresh: timedelta = FRESH) -> LastResult[Sequence[Forecast]] | None:
    """Return the last forecast of the user's running and next tasks, if there is one."""

    def make() -> Sequence[Forecast]:
        return forecast_next(
            visit.db,
            visit.user_id,
            visit.claim_settings,
            limit=MOST_FORECAST,
            simulate=visit.deps.simulation_process.simulate,
        )

    return visit.last("forecast", make, fresh)
