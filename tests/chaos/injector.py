"""Who carries out a plan of faults: each at its time, none of it for ever, all of it counted."""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

from redis import RedisError

from overnight.models.enums import PlanTier
from overnight_server.control.users import change_plan
from overnight_server.store.db import DatabaseUnreachable
from tests.chaos.load import Load, Producer
from tests.chaos.plan import LASTING, Step, another
from tests.chaos.stack import ChaosStack

# A step that found nobody to hit is tried again so much later.
AGAIN_SECONDS: Final = 0.5
# How much longer than planned a run may go on for a kind of fault that has not come yet.
OVERTIME_SECONDS: Final = 30.0
# What carries out a step: it says what it did, or None if there was nobody to do it to.
Act: TypeAlias = "Callable[[FaultInjector, Random, Step], str | None]"


@dataclass
class FaultInjector:
    """Carries out a plan, and takes back what must not last."""

    stack: ChaosStack
    load: Load
    producers: list[Producer]
    log: Path
    acts: "Mapping[str, Act]"
    counts: Counter[str] = field(default_factory=Counter)
    killed_pids: set[int] = field(default_factory=set)
    findings: dict[str, list[str]] = field(default_factory=dict)
    # Service that nothing else happens to, so that what was begun there runs its course.
    busy: set[str] = field(default_factory=set)
    _planned: set[str] = field(default_factory=set)
    _waiting: list[Step] = field(default_factory=list)
    _ends: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0
    _began: float = 0.0

    def perform(self, steps: Sequence[Step], seconds: float) -> None:
        """Do every step at its time, and heal in between what was to last only a while."""
        self._planned = {step.fault for step in steps}
        self._waiting = sorted(steps)
        self._began = time.monotonic()
        while (now := self._now()) < seconds + (OVERTIME_SECONDS if self.undone() else 0):
            self._take_back(time.monotonic())
            while self._waiting and self._waiting[0].at <= now:
                step = heapq.heappop(self._waiting)
                if now < seconds or not self.counts[step.fault]:
                    self._do(step)
            time.sleep(0.02)

    def undone(self) -> list[str]:
        """Name the planned kinds of fault that have not come to anything."""
        return sorted(fault for fault in self._planned if not self.counts[fault])

    def heal(self) -> None:
        """Take back everything at once, so that the deployment may recover."""
        self.let_go()
        for producer in self.producers:
            change_plan(self.stack.deployment.app, producer.user_id, PlanTier.ENTERPRISE)

    def let_go(self) -> None:
        """Hold nothing and nobody any longer."""
        self._take_back(float("inf"))
        for link in self.stack.links:
            link.heal()

    def later(self, seconds: float, end: Callable[[], None]) -> None:
        """Have something taken back after a while."""
        self._number += 1
        heapq.heappush(self._ends, (time.monotonic() + seconds, self._number, end))

    def lasts(self, step: Step, seconds: float, end: Callable[[], bool]) -> None:
        """Have a fault taken back after a while; it counts if it was one, else it is repeated."""

        def over() -> None:
            if end():
                self.counts[step.fault] += 1
            else:
                self._again(step, "it came to nothing")

        self.later(seconds, over)

    def found(self, what: str, *ones: str) -> None:
        """Note what must not be."""
        self.findings.setdefault(what, []).extend(ones)

    def _take_back(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            heapq.heappop(self._ends)[2]()

    def _do(self, step: Step) -> None:
        try:
            done = self.acts[step.fault](self, Random(step.dice), step)
        except (DatabaseUnreachable, RedisError) as error:
            self._again(step, str(error).splitlines()[0])
            return
        if done is None:
            self._again(step, "nobody to do it to")
            return
        if step.fault not in LASTING:
            self.counts[step.fault] += 1
        self._log(f"{step.fault}: {done}")

    def _again(self, step: Step, reason: str) -> None:
        self._log(f"no {step.fault} {step.on} yet: {reason}")
        again = replace(step, at=self._now() + AGAIN_SECONDS, on=another(step))
        heapq.heappush(self._waiting, again)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _log(self, line: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{self._now():8.2f} {line}\n")
