"""Tasks accepted a second: one by one, and in batches of 500."""

import time
from collections.abc import Callable, Sequence

from benchmarks.arena import Arena
from benchmarks.asked import Asked
from benchmarks.ours import ROOMY, Ours, noop, our_deployment
from benchmarks.outcome import Outcome
from benchmarks.rivals import ALL, PROCRASTINATE_LOCKED, Rival, Seat, present
from overnight_server.domain.ids import UserId
from overnight_server.intake.submit import submit, submit_graph

US = "overnight"
SIZE = 500
USERS = 100


def measure(asked: Asked, place: Arena) -> Outcome:
    """Submit to ours and to every peer that is there, in turns; nobody works meanwhile."""
    # A lock changes nothing for whoever submits.
    rivals = present(asked, [rival for rival in ALL if rival is not PROCRASTINATE_LOCKED])
    single, batches = asked.choose((50, 2), (1_000, 20))
    rates: dict[tuple[str, str], list[float]] = {}
    outcome = Outcome()
    for number in asked.turns:
        turns: list[tuple[str, Callable[[], dict[str, float]]]] = [
            (US, lambda: _ours(place, single, batches)),
            *((rival.name, _theirs(place, rival, single, batches)) for rival in rivals),
        ]
        for who, turn in turns:
            if asked.wants(who):
                reached = turn()
                for way, rate in reached.items():
                    rates.setdefault((who, way), []).append(rate)
                shown = ", ".join(f"{way} {rate:.0f}/s" for way, rate in reached.items())
                print(f"  round {number + 1}: {who:<14} {shown}", flush=True)
    for (who, way), values in rates.items():
        outcome.figure(who, way, "tasks/s", values)
        if who != US and (US, way) in rates:
            outcome.ratio(f"{US} / {who}, {way}", rates[US, way], values)
    return outcome


def _ours(place: Arena, single: int, batches: int) -> dict[str, float]:
    with our_deployment(place) as deployment:
        users = deployment.users(USERS)
        _submit_singly(deployment, users, 1)
        _submit_batches(deployment, users, 1)
        with place.watch(US):
            return {
                "single": single / _submit_singly(deployment, users, single),
                "batch": batches * SIZE / _submit_batches(deployment, users, batches),
            }


def _submit_singly(deployment: Ours, users: Sequence[UserId], count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        submit(deployment.app, users[number % len(users)], noop(), ROOMY)
    return time.perf_counter() - began


def _submit_batches(deployment: Ours, users: Sequence[UserId], count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        submit_graph(
            deployment.app, users[number % len(users)], [noop() for _ in range(SIZE)], ROOMY
        )
    return time.perf_counter() - began


def _theirs(
    place: Arena, rival: Rival, single: int, batches: int
) -> Callable[[], dict[str, float]]:
    def turn() -> dict[str, float]:
        seat = Seat(place, rival)
        with place.watch(rival.name):
            answer = seat.ask("submit", single=single, batches=batches, size=SIZE)
        return {way: float(answer[way]) for way in ("single", "batch")}

    return turn
