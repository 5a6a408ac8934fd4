"""Fire times found minute by minute: a rule that shares nothing with the code it is compared to."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def cron_times(expression: str, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """Return the fire times from `start` to `end`, without `end`; the cron fields are cronsim's."""
    sim = CronSim(expression, datetime(2000, 1, 1))  # noqa: DTZ001 - a wall-clock time
    counts_elapsed = sim.hours == set(range(24))

    def matches(wall: datetime) -> bool:
        return (
            wall.minute in sim.minutes
            and wall.hour in sim.hours
            and (wall.month in sim.months and sim.match_day(wall.date()))
        )

    fires = []
    # The hours before are looked at too, because a skipped time fires after the change.
    last_wall = (start - 26 * HOUR).astimezone(zone).replace(tzinfo=None)
    instant = start - 26 * HOUR + MINUTE
    while instant < end:
        wall = instant.astimezone(zone).replace(tzinfo=None)
        if counts_elapsed:
            fires += [instant] if matches(wall) else []
        elif wall > last_wall:
            # All local times that the clock passed for the first time since the minute before.
            passed = (last_wall + n * MINUTE for n in range(1, (wall - last_wall) // MINUTE + 1))
            fires += [instant] if any(map(matches, passed)) else []
            last_wall = wall
        instant += MINUTE
    return [fire for fire in fires if fire >= start]


def interval_times(every: timedelta, start: datetime, end: datetime) -> list[datetime]:
    """Return the instants of an interval after `start`, from which it counts, to `end`."""
    minutes = (start + n * MINUTE for n in range(1, (end - start) // MINUTE + 1))
    return [instant for instant in minutes if (instant - start) % every == timedelta()]
