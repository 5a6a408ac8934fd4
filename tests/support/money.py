"""Short words for what runs spend."""

from overnight_server.domain.claims import Run
from overnight_server.outcome.heartbeat import Answer, Cost, heartbeat
from tests.support.house import LEASE, House

ACTOR = "human:ops"


def beat(house: House, run: Run, usd: float) -> Answer:
    """Report what a run has cost so far, with its heartbeat."""
    return heartbeat(house.dispatcher, run.claim, lease=LEASE, cost=Cost(run.user_id, usd))


def started(house: House) -> list[Run]:
    """Let the gate take what it may, and start it."""
    runs = [house.start(claimed) for claimed in house.claim().claims]
    return [run for run in runs if run is not None]
