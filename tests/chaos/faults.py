"""Everything that is done to the house, each a short function with its chances from a seed."""

import heapq
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from redis import RedisError

from app.control.dead_letters import retry
from app.control.users import change_plan
from app.domain.errors import Refused
from app.domain.ids import TaskId
from app.domain.plans import PlanLimits, PlanTier
from app.events.patience import impatient
from app.store.db import DatabaseUnreachable
from tests.chaos.load import Load, Producer
from tests.chaos.proxy import Link, Mood
from tests.chaos.stage import Post, Stage, resume, stop_clock
from tests.support.invariants import told, violations

# How often each fault comes, as the seconds between two of its kind.
PERIODS: Final = {
    "kill": 2.7,
    "kill child": 15.0,
    "freeze": 20.0,
    "freeze child": 40.0,
    "term": 20.0,
    "crash postgres": 25.0,
    "flush redis": 20.0,
    "restart redis": 60.0,
    "hang redis": 60.0,
    "break link": 6.0,
    "burst": 20.0,
    "change plan": 6.0,
    "revive": 10.0,
    "repeat messages": 4.0,
    "look": 20.0,
}
BURST: Final = 40
REVIVED_AT_ONCE: Final = 3


@dataclass(frozen=True, order=True)
class Step:
    """One fault of a run's plan: when, which, and the dice it is thrown with."""

    at: float
    fault: str
    dice: int


def plan(seed: int, seconds: float, kill_every: float | None = None) -> list[Step]:
    """Lay out a run's faults: each kind at least once, spread evenly and shaken."""
    random = Random(seed)
    periods = {**PERIODS, "kill": kill_every or PERIODS["kill"]}
    steps = []
    for fault, period in periods.items():
        count = max(1, round(seconds / period))
        for place in range(count):
            at = (place + random.random()) * seconds / count
            steps.append(Step(at, fault, random.getrandbits(32)))
    return sorted(steps)


@dataclass
class Director:
    """Carries out a plan, and takes back what must not last."""

    stage: Stage
    load: Load
    producers: list[Producer]
    log: Path
    counts: Counter[str] = field(default_factory=Counter)
    blamed_pids: set[int] = field(default_factory=set)
    findings: dict[str, list[str]] = field(default_factory=dict)
    _ends: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    def perform(self, steps: list[Step], seconds: float) -> None:
        """Do every step at its time, and heal in between what was to last only a while."""
        began = time.monotonic()
        waiting = list(steps)
        while (now := time.monotonic() - began) < seconds:
            self._take_back(time.monotonic())
            while waiting and waiting[0].at <= now:
                self._do(waiting.pop(0), now)
            time.sleep(0.02)

    def heal(self) -> None:
        """Take back everything at once, so that the house may recover."""
        self._take_back(float("inf"))
        for link in self.stage.links:
            link.heal()
        for producer in self.producers:
            change_plan(self.stage.house.app, producer.user_id, PlanTier.ENTERPRISE)

    def later(self, seconds: float, end: Callable[[], None]) -> None:
        """Have something taken back after a while."""
        self._number += 1
        heapq.heappush(self._ends, (time.monotonic() + seconds, self._number, end))

    def _take_back(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            heapq.heappop(self._ends)[2]()

    def _do(self, step: Step, now: float) -> None:
        try:
            done = FAULTS[step.fault](self, Random(step.dice))
        except (DatabaseUnreachable, RedisError) as error:
            self._log(now, f"no {step.fault}: {str(error).splitlines()[0]}")
            return
        if done is not None:
            self.counts[step.fault] += 1
            self._log(now, f"{step.fault}: {done}")

    def _log(self, now: float, line: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{now:8.2f} {line}\n")


def kill(director: Director, random: Random) -> str | None:
    """End any process of the house without a word."""
    return _send(director, random, signal.SIGKILL)


def term(director: Director, random: Random) -> str | None:
    """Ask any process to end, as a deploy does."""
    return _send(director, random, signal.SIGTERM)


def kill_child(director: Director, random: Random) -> str | None:
    """Kill one process of a worker's pool; its worker lives."""
    child = _child(director, random)
    if child is None:
        return None
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return str(child)


def freeze(director: Director, random: Random) -> str | None:
    """Stop a process and its children beyond any lease, then let them go on."""
    post = _living(director, random)
    pids = director.stage.pids(post.name)
    seconds = random.uniform(1.2, 2) * post.settings.lease_seconds
    stop_clock(pids)
    director.later(seconds, lambda: resume(pids))
    return f"{post.name} for {seconds:.1f} s"


def freeze_child(director: Director, random: Random) -> str | None:
    """Stop one process of a worker's pool beyond its lease, while its worker looks well."""
    child = _child(director, random)
    if child is None:
        return None
    stop_clock([child])
    director.later(random.uniform(4, 6), lambda: resume([child]))
    return str(child)


def crash_postgres(director: Director, random: Random) -> str:
    """Restart Postgres without a shutdown; now and then it stays away for a while."""
    away = random.choice([0.0, 0.0, 0.5, 2.0])
    director.stage.postgres.stop(immediate=True)
    time.sleep(away)
    director.stage.postgres.start()
    return f"away for {away} s"


def flush_redis(director: Director, random: Random) -> str:
    """Wipe the broker."""
    with impatient(director.stage.redis.url) as client:
        client.flushall()
    return "flushed"


def restart_redis(director: Director, random: Random) -> str:
    """Kill the broker and start it again, sometimes empty."""
    server = director.stage.redis
    server.stop(immediate=True)
    time.sleep(random.choice([0.0, 1.0]))
    server.start()
    return "restarted"


def hang_redis(director: Director, random: Random) -> str | None:
    """Stop the broker without closing a connection."""
    if not director.stage.redis.running:
        return None
    pid, seconds = director.stage.redis.pid, random.uniform(1, 5)
    stop_clock([pid])
    director.later(seconds, lambda: resume([pid]))
    return f"{seconds:.1f} s"


def break_link(director: Director, random: Random) -> str:
    """Spoil one process's way to one of its servers."""
    name, link = _link(director, random)
    moods: list[Mood | None] = [None, *(mood for mood in Mood if mood is not Mood.PASS)]
    mood = random.choice(moods)
    director.counts[f"link: {mood or 'cut'}"] += 1
    if mood is None:
        link.cut()
        return f"{name} cut"
    seconds = random.uniform(0.5, 5)
    link.become(mood, delay_seconds=random.uniform(0.05, 1))
    director.later(seconds, link.heal)
    return f"{name} {mood} for {seconds:.1f} s"


def burst(director: Director, random: Random) -> str:
    """Submit much at once."""
    director.load.burst(BURST)
    return str(BURST)


def change_a_plan(director: Director, random: Random) -> str:
    """Give a user more or less than before."""
    producer = random.choice(director.producers)
    limits = PlanLimits(random.randint(1, 8), random.choice([30, 60]), random.choice([9, 90, None]))
    tier = random.choice(list(PlanTier))
    change_plan(director.stage.house.app, producer.user_id, tier, limits=limits)
    return f"{producer.user_id} {limits}"


def revive(director: Director, random: Random) -> str | None:
    """Give dead tasks another chance."""
    rows = director.stage.house.rows(
        "SELECT task_id FROM dead_letters WHERE resolution IS NULL ORDER BY id LIMIT 50"
    )
    chosen = random.sample(rows, min(len(rows), REVIVED_AT_ONCE))
    for row in chosen:
        with suppress(Refused):
            retry(director.stage.house.app, TaskId(row["task_id"]), actor="human:chaos", attempts=1)
    return str(len(chosen)) if chosen else None


def repeat_messages(director: Director, random: Random) -> str | None:
    """Deliver messages once more, in any order: of claims that wait, that run and that are over."""
    rows = director.stage.house.rows(
        "SELECT a.task_id, a.epoch, a.token, a.user_id, a.pool, t.type FROM attempts a"
        " JOIN tasks t ON t.id = a.task_id ORDER BY a.ended_at IS NULL DESC, a.claimed_at DESC"
        " LIMIT 30"
    )
    random.shuffle(rows)
    sent = director.stage.publish(rows)
    director.counts["messages delivered twice"] += sent
    return str(sent) if sent else None


def look(director: Director, random: Random) -> str:
    """Do nothing for once but look: the invariants hold at every instant, not only at the end."""
    for server in (director.stage.postgres, director.stage.redis):
        if not server.running:
            director.findings.setdefault("servers", []).append(f"{server.log.name}: it ended")
    found = violations(director.stage.house.owner)
    if found:
        director.findings.setdefault("invariants in the middle", []).extend(
            told(found).splitlines()
        )
    return told(found) or "all well"


FAULTS: Final[dict[str, Callable[[Director, Random], str | None]]] = {
    "kill": kill,
    "kill child": kill_child,
    "freeze": freeze,
    "freeze child": freeze_child,
    "term": term,
    "crash postgres": crash_postgres,
    "flush redis": flush_redis,
    "restart redis": restart_redis,
    "hang redis": hang_redis,
    "break link": break_link,
    "burst": burst,
    "change plan": change_a_plan,
    "revive": revive,
    "repeat messages": repeat_messages,
    "look": look,
}


def _send(director: Director, random: Random, number: signal.Signals) -> str | None:
    post = _living(director, random)
    pids = director.stage.pids(post.name)
    if not pids or not director.stage.signal(post.name, number):
        return None
    # One that was frozen would hear of it only later.
    director.later(0.0, lambda: resume(pids))
    return f"{post.name} {pids[0]}"


def _living(director: Director, random: Random) -> Post:
    """Choose a post that somebody fills."""
    posts = [post for post in director.stage.posts.values() if post.process is not None]
    return random.choice(posts or list(director.stage.posts.values()))


def _child(director: Director, random: Random) -> int | None:
    workers = [post for post in director.stage.posts.values() if post.command == "worker"]
    children = director.stage.pids(random.choice(workers).name)[1:]
    if not children:
        return None
    child = random.choice(children)
    director.blamed_pids.add(child)
    return child


def _link(director: Director, random: Random) -> tuple[str, Link]:
    post = random.choice(list(director.stage.posts.values()))
    return random.choice(
        [
            (f"{post.name} to postgres", post.postgres),
            (f"{post.name} to redis", post.redis),
            ("producer to postgres", director.stage.producer_link),
        ]
    )
