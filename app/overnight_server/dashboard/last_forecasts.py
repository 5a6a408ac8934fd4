"""The last forecast of each user, so that a page shows one at once, with its age.

A forecast takes about a second. The home page shows the last one that this process has made, and
has a newer one made after the page was sent, with the connections and limits of such requests.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from threading import Lock

from starlette.background import BackgroundTask

from overnight.errors import Refused
from overnight.models.tasks import Forecast
from overnight_server.dashboard.visit import Visit
from overnight_server.domain.ids import UserId
from overnight_server.forecast.forecast import forecast_next
from overnight_server.store.db import DATABASE_ERRORS, Db

MOST_FORECAST = 30
#: A forecast that is older is made anew when the home page is opened.
FRESH = timedelta(minutes=2)
MOST_USERS = 1_000


@dataclass(frozen=True)
class LastForecast:
    """The forecasts of a user's running and next tasks, and when they were made."""

    forecasts: Sequence[Forecast]
    made_at: datetime


class LastForecasts:
    """Keeps the last forecast of the users who looked at theirs most recently."""

    def __init__(self, most: int = MOST_USERS) -> None:
        self._most = most
        self._kept: OrderedDict[UserId, LastForecast] = OrderedDict()
        self._computed: set[UserId] = set()
        self._lock = Lock()

    def of(self, user_id: UserId) -> LastForecast | None:
        """Return the last forecast of a user, if one is kept."""
        with self._lock:
            return self._kept.get(user_id)

    def keep(self, user_id: UserId, forecast: LastForecast) -> None:
        """Keep a forecast; the one of the user who looked longest ago may be dropped for it."""
        with self._lock:
            self._kept[user_id] = forecast
            self._kept.move_to_end(user_id)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def begin(self, user_id: UserId) -> bool:
        """Whether nobody computes a forecast of this user; from now on the caller does."""
        with self._lock:
            is_first = user_id not in self._computed
            self._computed.add(user_id)
            return is_first

    def end(self, user_id: UserId) -> None:
        """Say that the forecast of this user is no longer computed."""
        with self._lock:
            self._computed.discard(user_id)


LAST = LastForecasts()


def make_forecast(visit: Visit, db: Db) -> LastForecast:
    """Forecast the user's running and next tasks, and keep the forecast."""
    forecasts = forecast_next(
        db,
        visit.user_id,
        visit.claim_settings,
        limit=MOST_FORECAST,
        simulate=visit.deps.simulation_process.simulate,
    )
    made = LastForecast(forecasts, visit.clock.now)
    LAST.keep(visit.user_id, made)
    return made


def refresh_after(visit: Visit) -> BackgroundTask | None:
    """Return what makes a new forecast after a page was sent; None if the last one is fresh."""
    last = LAST.of(visit.user_id)
    if last is not None and timedelta() <= visit.clock.now - last.made_at < FRESH:
        return None
    return BackgroundTask(_refresh, visit)


async def _refresh(visit: Visit) -> None:
    deps, user_id = visit.deps, visit.user_id
    if not LAST.begin(user_id):
        return
    db = deps.expensive.db.acting_for(deps.acting_user)
    try:
        with deps.expensive.place(deps.caller_name):
            await deps.expensive.call(partial(make_forecast, visit, db))
    except (Refused, *DATABASE_ERRORS):
        # The page keeps what it shows, and says how old that is; a later visit tries again.
        return
    finally:
        LAST.end(user_id)
