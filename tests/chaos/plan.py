"""The plan of a chaos run: which fault hits what and when, computed from a seed beforehand."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.chaos.proxy import LinkFault
from tests.chaos.stack import HTTP_AGENTS, SERVICES

# How often each fault comes, as the seconds between two of its kind.
PERIODS: Final = {
    "kill": 2.7,
    "kill main": 25.0,
    "kill child": 15.0,
    "freeze": 30.0,
    "freeze worker": 30.0,
    "freeze child": 40.0,
    "term": 20.0,
    "crash postgres": 25.0,
    "hang postgres": 60.0,
    "flush redis": 20.0,
    "restart redis": 60.0,
    "empty redis": 60.0,
    "hang redis": 60.0,
    "fill redis": 30.0,
    "fill disk": 30.0,
    "burst": 20.0,
    "change plan": 6.0,
    "revive": 10.0,
    "repeat messages": 4.0,
    "look": 20.0,
}
CUT: Final = "cut"
# Only links to Postgres carry commits; these faults choose their links first.
OF_COMMITS: Final = (LinkFault.FORGET_COMMIT, LinkFault.FORGET_ONE_COMMIT)
LINK_FAULTS: Final = (
    *OF_COMMITS,
    CUT,
    *(fault for fault in LinkFault if fault is not LinkFault.PASS and fault not in OF_COMMITS),
)
# Seconds between two link faults of the same kind.
LINK_PERIOD: Final = 30.0
LINK: Final = "link: "
# API, dispatchers, maintenance and workers use both servers, beat only Redis, and the producer of
# graphs only Postgres. Those of the agent driver are left out: a short run breaks one connection of
# each process in this list.
TO_POSTGRES: Final = " to postgres"
TO_REDIS: Final = " to redis"
PRODUCER: Final = "producer"
LINKS: Final = (
    *(who + TO_POSTGRES for who in ("api", "dispatcher", "maintenance", "worker", PRODUCER)),
    *(who + TO_REDIS for who in ("api", "dispatcher", "maintenance", "worker", "beat")),
)
WORKERS: Final = tuple(name for name in SERVICES if name.startswith("worker"))
# The services that a fault may hit; other faults hit a server or no process.
TARGETS: Final[dict[str, Sequence[str]]] = {
    "kill": tuple(SERVICES),
    "term": tuple(SERVICES),
    "freeze": tuple(name for name in SERVICES if name not in WORKERS),
    "freeze worker": WORKERS,
    "freeze child": WORKERS,
    "kill child": WORKERS,
    "kill main": WORKERS,
    # Handlers and agents write the record that the run is compared with.
    "fill disk": tuple(name for name in SERVICES if name not in {*WORKERS, HTTP_AGENTS}),
}
# A fault that lasts starts early enough before the end of the run to complete.
LASTING: Final = {
    *("freeze", "freeze worker", "freeze child", "kill main"),
    *("hang postgres", "hang redis", "fill redis", "fill disk"),
    *(f"{LINK}{fault}" for fault in LINK_FAULTS if fault != CUT),
}
LONGEST_SECONDS: Final = 6.0
POSTGRES: Final = "postgres"
# These use Postgres, so that they wait while it hangs: only the injector itself resumes it.
USE_POSTGRES: Final = frozenset(
    {"crash postgres", "hang postgres", "change plan", "revive", "repeat messages", "look"}
)


@dataclass(frozen=True, order=True)
class Step:
    """One fault of the plan: its time, kind, random seed and target."""

    at: float
    fault: str
    seed: int
    on: str = ""


@dataclass
class Deck:
    """Deals cards in random order, each of them once before any is dealt again."""

    cards: Sequence[str]
    random: Random
    _hand: list[str] = field(default_factory=list)

    def deal(self, fits: Callable[[str], bool] = lambda _: True) -> str:
        """Deal the next card that fits."""
        card = next(filter(fits, self._hand), None)
        while card is None:
            self._hand += self.random.sample(self.cards, len(self.cards))
            card = next(filter(fits, self._hand), None)
        self._hand.remove(card)
        return card


def plan(seed: int, seconds: float, kill_every: float | None = None) -> list[Step]:
    """Return the faults of a run: each kind at least once, spread evenly with random shifts."""
    random = Random(seed)
    periods = {**PERIODS, "kill": kill_every or PERIODS["kill"]}
    steps = list(_links(random, seconds))
    for fault, period in periods.items():
        deck = Deck(TARGETS.get(fault, [""]), random)
        steps += [
            Step(at, fault, random.getrandbits(32), deck.deal())
            for at in _instants(random, seconds, period, lasting=fault in LASTING)
        ]
    return sorted(steps)


def another(step: Step) -> str:
    """Return the next target of a fault whose target is absent."""
    targets = TARGETS.get(step.fault, (step.on,))
    return targets[(targets.index(step.on) + 1) % len(targets)]


def _links(random: Random, seconds: float) -> Iterator[Step]:
    """Yield link faults in rounds: each kind once per round, each link at most once per round."""
    columns = [list(_instants(random, seconds, LINK_PERIOD, lasting=True)) for _ in LINK_FAULTS]
    for instants in zip(*columns, strict=True):
        links = Deck(LINKS, random)
        for fault, at in zip(LINK_FAULTS, instants, strict=True):
            link = links.deal(lambda link, fault=fault: fits(fault, link))  # type: ignore[misc]
            yield Step(at, f"{LINK}{fault}", random.getrandbits(32), link)


def fits(fault: str, link: str) -> bool:
    """Tell whether a link carries anything that this fault would spoil."""
    return fault not in OF_COMMITS or link.endswith(TO_POSTGRES)


def _instants(random: Random, seconds: float, period: float, *, lasting: bool) -> Iterator[float]:
    count = max(1, round(seconds / period))
    room = seconds - min(LONGEST_SECONDS, seconds / 2) if lasting else seconds
    for place in range(count):
        yield (place + random.random()) * room / count
