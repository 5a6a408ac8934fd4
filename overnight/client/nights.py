"""Operations on nights and morning reports; available as `client.nights`."""

from datetime import date

from overnight.client.calls import Call, path, read
from overnight.client.operations import D, Group, operation
from overnight.models.nights import NightReport, UserNight

LATEST = "latest"


class Nights(Group[D]):
    """Your nights: what each slot of your plan did, and the report in the morning."""

    @operation
    def get(self, day: date | None = None) -> Call[UserNight]:
        """Return a night, by the date on which it began; the latest one without a date."""
        return read(UserNight, path("nights", _part(day)))

    @operation
    def report(self, day: date | None = None) -> Call[NightReport]:
        """Return the morning report of a night; of the latest one without a date."""
        return read(NightReport, path("nights", _part(day), "report"))


def _part(day: date | None) -> str:
    return LATEST if day is None else day.isoformat()
