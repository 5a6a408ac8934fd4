"""Claims and starts tasks without a worker, so that only the settle is measured."""

from collections.abc import Sequence
from datetime import timedelta

from benchmarks.deployment import BenchmarkDeployment
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Result, Returned
from overnight_server.gate.claim import ClaimSettings, claim
from overnight_server.outcome.presence import WorkerDescription, join
from overnight_server.outcome.settle import settle_all
from overnight_server.outcome.start import start_all
from overnight_server.store.db import Db

AGENT = "bench"
POOL = "default"
ENDLESS = 1_000_000
AT_ONCE = 500
FOREVER = timedelta(days=365)


class NotSettled(Exception):
    """A run that this process holds could not be settled."""


def lift_limits(deployment: BenchmarkDeployment, users: Sequence[UserId], slots: int) -> None:
    """Give a deployment one large worker, and its users limits for all their tasks."""
    join(deployment.dispatcher, WorkerDescription(AGENT, POOL, (), slots))
    deployment.run(
        "UPDATE users SET max_concurrent_agents = :endless, monthly_agent_hours_limit = NULL"
        " WHERE id = ANY (CAST(:users AS uuid[]))",
        endless=ENDLESS,
        users=list(users),
    )


def begin(deployment: BenchmarkDeployment, most: int = ENDLESS) -> list[Run]:
    """Claim and start at most `count` ready tasks; return the runs."""
    runs: list[Run] = []
    while len(runs) < most:
        taken = claim(
            deployment.dispatcher,
            POOL,
            holder=AGENT,
            claim_settings=ClaimSettings(FOREVER, FOREVER),
            limit=min(AT_ONCE, most - len(runs)),
        )
        if not taken.claims:
            break
        claims = [one.claim for one in taken.claims]
        runs += start_all(deployment.dispatcher, claims, holder=AGENT, lease=FOREVER)
    return runs


def settle_batch(db: Db, runs: Sequence[Run]) -> None:
    """Settle successful runs in one transaction; each must be accepted."""
    pairs: list[tuple[Run, Result]] = [(run, Returned()) for run in runs]
    settled = settle_all(db, pairs, agent=AGENT)
    if len(settled.won) != len(runs):
        raise NotSettled(f"{len(settled.stale)} of {len(runs)} were stale")


def settle_batches(db: Db, batches: Sequence[Sequence[Run]]) -> None:
    """Settle all batches, one after the other."""
    for batch in batches:
        settle_batch(db, batch)


def batched(runs: Sequence[Run], size: int) -> list[Sequence[Run]]:
    """Split runs into batches."""
    return [runs[start : start + size] for start in range(0, len(runs), size)]
