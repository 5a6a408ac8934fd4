"""Four claimers at once, each a process with a connection of its own.

They start together and make some passes. Nothing is given back before the last of them has ended:
that would take the processors from those who still claim, and be paid for by whoever claims more.
Their rate is all they claimed by the time from the start to the end of the last, on both sides. A
pass of ours may bring less than it asks for, while others hold the lanes: what came is counted.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import psycopg2

from benchmarks import plain_claim
from benchmarks.call_times import ProcessGroup, Stopwatch
from benchmarks.deployment import BenchmarkDeployment
from overnight_server.domain.claims import Claimed
from overnight_server.gate.claim import CLAIMS_PER_PASS, ClaimSettings, claim
from overnight_server.outcome.presence import WorkerDescription, join
from overnight_server.outcome.settle import release
from overnight_server.store.db import Db

C = TypeVar("C")
S = TypeVar("S")
T = TypeVar("T")

CLAIMERS = 4
#: Passes of each between two times of giving back: enough that start and end hardly count, and so
#: few that what they hold by then is what a large deployment holds.
PASSES = 5
#: Ready tasks from which they never run out, though one user owns 30 % and may run ten.
ENOUGH = 2 * CLAIMERS * PASSES * CLAIMS_PER_PASS
#: One for each, because those who serve the same pool take turns.
POOLS = [f"claimer-{number}" for number in range(1, CLAIMERS + 1)]
FOREVER = timedelta(days=365)


def make_pools(deployment: BenchmarkDeployment) -> None:
    """Give each claimer a pool with enough slots for the measurement."""
    for pool in POOLS:
        join(deployment.dispatcher, WorkerDescription(pool, pool, (), PASSES * CLAIMS_PER_PASS))


def claim_ours(deployment: BenchmarkDeployment, crew: ProcessGroup[Db], passes: int) -> float:
    """Return the tasks that Overnight claims in a second, in passes as large as a dispatcher's."""

    def give_back(claims: Sequence[Claimed]) -> None:
        back = release(deployment.dispatcher, claims, reason="bench")
        if back != len(claims):
            raise AssertionError(f"{back} of {len(claims)} claims could be given back")

    return _rate(crew, _take_ours, POOLS, passes, give_back)


def claim_plain(
    plain: plain_claim.PlainQueue, crew: ProcessGroup[psycopg2.extensions.connection], passes: int
) -> float:
    """Do the same with the plain claim, which claims one task in a pass."""
    return _rate(crew, _take_plain, [PASSES] * CLAIMERS, passes, plain.give_back)


def _rate(
    crew: ProcessGroup[C],
    take: Callable[[C, S], Sequence[T]],
    shares: Sequence[S],
    passes: int,
    give_back: Callable[[Sequence[T]], None],
) -> float:
    watch = Stopwatch()
    for _ in range(passes // PASSES):
        spell = crew.together(take, shares)
        watch.seconds.append(spell.seconds)
        for taken in spell.results:
            watch.done += len(taken)
            give_back(taken)
    return watch.rate


def _take_ours(db: Db, pool: str) -> list[Claimed]:
    claim_settings = ClaimSettings(FOREVER, FOREVER)
    taken: list[Claimed] = []
    for _ in range(PASSES):
        taken += claim(
            db, pool, holder=pool, claim_settings=claim_settings, limit=CLAIMS_PER_PASS
        ).claims
    return taken


def _take_plain(connection: psycopg2.extensions.connection, passes: int) -> list[str]:
    claimed = (plain_claim.claim(connection) for _ in range(passes))
    return [task for task in claimed if task is not None]
