"""Helpers for tests of costs and budgets."""

from overnight_server.domain.claims import Run
from overnight_server.outcome.heartbeat import CostSoFar, HeartbeatAnswer, heartbeat
from tests.support.deployment import LEASE, Deployment

ACTOR = "human:ops"


def beat(deployment: Deployment, run: Run, usd: float) -> HeartbeatAnswer:
    """Report what a run has cost so far, with its heartbeat."""
    return heartbeat(
        deployment.dispatcher, run.claim, lease=LEASE, cost=CostSoFar(run.user_id, usd)
    )


def start_all(deployment: Deployment) -> list[Run]:
    """Claim and start everything that the gate allows."""
    runs = [deployment.start(claimed) for claimed in deployment.claim().claims]
    return [run for run in runs if run is not None]
