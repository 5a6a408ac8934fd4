"""Inject the faults of a plan at their times, end those that last, and count them."""

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
from tests.chaos.plan import LASTING, POSTGRES, USE_POSTGRES, Step, another
from tests.chaos.stack import ChaosStack

# A step without a target is tried again after this time.
AGAIN_SECONDS: Final = 0.5
# How much longer than planned a run may last for a kind of fault that has not occurred yet.
OVERTIME_SECONDS: Final = 30.0
# Injects one fault; returns a description of it, or None if there was no target.
FaultFunction: TypeAlias = "Callable[[FaultInjector, Random, Step], str | None]"


@dataclass
class FaultInjector:
    """Carries out a plan and ends the faults that last."""

    stack: ChaosStack
    load: Load
    producers: list[Producer]
    log: Path
    functions: "Mapping[str, FaultFunction]"
    counts: Counter[str] = field(default_factory=Counter)
    killed_pids: set[int] = field(default_factory=set)
    findings: dict[str, list[str]] = field(default_factory=dict)
    # Services and servers that nothing else happens to until what was begun there has ended.
    busy: set[str] = field(default_factory=set)
    _planned: set[str] = field(default_factory=set)
    _steps: list[Step] = field(default_factory=list)
    _ends: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0
    _began: float = 0.0

    def perform(self, steps: Sequence[Step], seconds: float) -> None:
        """Carry out every step at its time, and end lasting faults when their time is over."""
        self._planned = {step.fault for step in steps}
        self._steps = sorted(steps)
        self._began = time.monotonic()
        while (now := self._now()) < seconds + (OVERTIME_SECONDS if self.missing_faults() else 0):
            self._end_due_faults(time.monotonic())
            while self._steps and self._steps[0].at <= now:
                step = heapq.heappop(self._steps)
                if now < seconds or not self.counts[step.fault]:
                    self._inject(step)
            time.sleep(0.02)

    def missing_faults(self) -> list[str]:
        """Return the planned kinds of fault that have not occurred."""
        return sorted(fault for fault in self._planned if not self.counts[fault])

    def heal(self) -> None:
        """End all faults and restore the plans of all users, so that the stack can recover."""
        self.end_all()
        for producer in self.producers:
            change_plan(self.stack.deployment.app, producer.user_id, PlanTier.ENTERPRISE)

    def end_all(self) -> None:
        """End every lasting fault and every fault of a link."""
        self._end_due_faults(float("inf"))
        for link in self.stack.links:
            link.heal()

    def later(self, seconds: float, end: Callable[[], None]) -> None:
        """Call `end` after this time."""
        self._number += 1
        heapq.heappush(self._ends, (time.monotonic() + seconds, self._number, end))

    def lasts(self, step: Step, seconds: float, end: Callable[[], bool]) -> None:
        """End a fault after this time; count it if `end` returns True, else repeat it."""

        def finish() -> None:
            if end():
                self.counts[step.fault] += 1
            else:
                self._repeat(step, "it had no effect")

        self.later(seconds, finish)

    def add_finding(self, what: str, *details: str) -> None:
        """Add something that must not happen to the report."""
        self.findings.setdefault(what, []).extend(details)

    def _end_due_faults(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            heapq.heappop(self._ends)[2]()

    def _inject(self, step: Step) -> None:
        if POSTGRES in self.busy and step.fault in USE_POSTGRES:
            self._repeat(step, "Postgres hangs")
            return
        try:
            description = self.functions[step.fault](self, Random(step.seed), step)
        except (DatabaseUnreachable, RedisError) as error:
            self._repeat(step, str(error).splitlines()[0])
            return
        if description is None:
            self._repeat(step, "no target")
            return
        if step.fault not in LASTING:
            self.counts[step.fault] += 1
        self._log(f"{step.fault}: {description}")

    def _repeat(self, step: Step, reason: str) -> None:
        self._log(f"no {step.fault} {step.on} yet: {reason}")
        repeated = replace(step, at=self._now() + AGAIN_SECONDS, on=another(step))
        heapq.heappush(self._steps, repeated)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _log(self, line: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{self._now():8.2f} {line}\n")
