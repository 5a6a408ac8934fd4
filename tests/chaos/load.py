"""Producers: they submit and cancel tasks, repeat until they get a response, and record it."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from traceback import format_exception
from typing import Any, Final
from uuid import UUID

from overnight import Client
from overnight.errors import NotUnderstood, OvernightError, Refused, Unavailable, Unreachable
from overnight.errors import Refused as ServiceRefused
from overnight.models.enums import PlanTier
from overnight_server.control.keys import issue
from overnight_server.domain.ids import TaskId, UserId, parse_task, show_task
from overnight_server.intake.caps import Caps
from overnight_server.intake.submit import submit_graph
from overnight_server.store.db import DatabaseUnreachable
from tests.chaos.stack import ChaosStack
from tests.chaos.tasks import graph, random_task
from tests.support.deployment import Deployment

CAPS: Final = Caps(max_pending_per_user=1_000_000)
PRODUCERS: Final = 8
PAUSE_SECONDS: Final = 0.2
# How long a client waits for a response before it repeats the request.
ANSWER_SECONDS: Final = 4.0
# `tests.chaos.biased` replaces it.
PLANS: Sequence[tuple[PlanTier, int, Mapping[str, object]]] = (
    (PlanTier.ENTERPRISE, 6, {}),
    (PlanTier.TEAM, 4, {}),
    (PlanTier.TEAM, 4, {}),
    (PlanTier.PRO, 3, {}),
    (PlanTier.PRO, 3, {"monthly_agent_hours_limit": 4}),
    (PlanTier.FREE, 1, {}),
    (PlanTier.FREE, 1, {}),
    (PlanTier.TEAM, 2, {"monthly_agent_hours_limit": 9}),
)
ACKNOWLEDGED: Final = "submissions acknowledged"
GRAPHS_SHARE: Final = 0.03
CANCELS_SHARE: Final = 0.04


@dataclass(frozen=True)
class Ack:
    """One submission that was answered with success."""

    task_id: TaskId
    user_id: UserId
    key: str
    kind: str


@dataclass
class Record:
    """The responses that producers got."""

    acks: list[Ack] = field(default_factory=list)
    cancelled: list[TaskId] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ack(self, ack: Ack) -> None:
        """Record an acknowledged submission."""
        with self.lock:
            self.acks.append(ack)

    def count(self, what: str) -> None:
        """Add one to a count of the report."""
        with self.lock:
            self.counts[what] += 1

    def has_reached(self, minima: Mapping[str, int]) -> bool:
        """Whether the producers have got this many responses of each kind."""
        with self.lock:
            counted = {**self.counts, ACKNOWLEDGED: len(self.acks)}
        return all(counted.get(what, 0) >= count for what, count in minima.items())

    def fault(self, what: str) -> None:
        """Record a response that should never occur."""
        with self.lock:
            self.faults.append(what)


@dataclass(frozen=True)
class Producer:
    """A user and a client with the user's key."""

    user_id: UserId
    client: Client
    weight: int


def users(deployment: Deployment, url: str, random: Random, seconds: float) -> list[Producer]:
    """Create users of every plan; for half of them a billing month ends during the run."""
    made = []
    for number, (plan, weight, columns) in enumerate(PLANS):
        anchor = _anchor(deployment, random.uniform(0.2, 0.9) * seconds) if number % 2 else {}
        user_id = deployment.user(
            plan, max_pending=1_000_000, on_exhausted="hold", **{**columns, **anchor}
        )
        made.append(Producer(user_id, _client(deployment, user_id, url), weight))
    return made


def _anchor(deployment: Deployment, seconds: float) -> Mapping[str, Any]:
    """Return a billing anchor this many seconds less than four years ago."""
    return deployment.one(
        "SELECT clock() - interval '4 years' + make_interval(secs => :seconds)"
        " AS billing_anchor_at",
        seconds=seconds,
    )


def _client(deployment: Deployment, user_id: UserId, url: str) -> Client:
    # No retries by the client: the run counts lost responses and repeats with the same key.
    return Client(
        url, issue(deployment.app, user_id, name="chaos"), retries=0, timeout=ANSWER_SECONDS
    )


class Load:
    """Runs the producers in threads."""

    def __init__(
        self, stack: ChaosStack, producers: list[Producer], seed: int, per_second: float
    ) -> None:
        self._stack = stack
        self._producers = producers
        self._seed = seed
        self._pause = PRODUCERS / per_second
        self.record = Record()
        self._stop = threading.Event()
        self._numbers = iter(range(10**9))
        self._extra: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._produce, args=(place,), name=f"producer-{place}")
            for place in range(PRODUCERS)
        ]

    def start(self) -> None:
        """Start to submit."""
        for thread in self._threads:
            thread.start()

    def burst(self, count: int) -> None:
        """Submit this many more tasks without pauses."""
        for number in range(count):
            self._extra.put(number)

    def submit_graph_now(self, seed: int) -> None:
        """Submit one more graph, in a thread of its own: the other ones may wait for the API."""
        random = Random(seed)
        arguments = (random.choice(self._producers), random, next(self._numbers))
        thread = threading.Thread(target=self._submit_graph, args=arguments, name="graph")
        self._threads.append(thread)
        thread.start()

    def go_on_until(self, minima: Mapping[str, int], timeout: float) -> None:
        """Go on submitting until these counts are reached, at most for this many seconds.

        How much is submitted in a given time depends on the machine; what is checked does not.
        """
        deadline = time.monotonic() + timeout
        while not self.record.has_reached(minima) and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)

    def finish(self, timeout: float) -> bool:
        """Stop submitting; return whether every request got a response in time."""
        self._stop.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        done = not any(thread.is_alive() for thread in self._threads)
        for producer in self._producers:
            producer.client.close()
        return done

    def _produce(self, place: int) -> None:
        try:
            self._produce_until_stopped(Random(f"{self._seed}:{place}"))
        except Exception as error:  # noqa: BLE001 - a lost producer would go unnoticed
            self.record.fault(f"producer {place} died: {''.join(format_exception(error))}")

    def _produce_until_stopped(self, random: Random) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self._act(random)
            if not self._take_burst():
                # A producer that fell behind during an outage catches up.
                due += self._pause
                self._stop.wait(max(0.0, due - time.monotonic()))

    def _take_burst(self) -> bool:
        try:
            self._extra.get_nowait()
        except queue.Empty:
            return False
        return True

    def _act(self, random: Random) -> None:
        [producer] = random.choices(
            self._producers, [producer.weight for producer in self._producers]
        )
        number = next(self._numbers)
        self._submit(producer, random, number)
        if random.random() < GRAPHS_SHARE:
            self._submit_graph(producer, random, number)
        if random.random() < CANCELS_SHARE:
            self._cancel(random)

    def _submit(self, producer: Producer, random: Random, number: int) -> None:
        request = random_task(random, number)
        key = f"key-{number}"
        while True:
            try:
                task = producer.client.tasks.create(
                    f"task {number}", idempotency_key=key, tags=[request.kind], **request.fields
                )
            except (Unreachable, Unavailable):
                self.record.count("submits without a response or with 503, repeated")
                time.sleep(PAUSE_SECONDS)
                continue
            except Refused as refusal:
                self.record.count(f"submits refused: {refusal.code}")
                if refusal.status >= 500:
                    self.record.fault(f"submit answered {refusal.status}: {refusal}")
                return
            except NotUnderstood as error:
                self.record.fault(f"submit got an unreadable response: {error}")
                return
            self.record.ack(Ack(parse_task(task.id), producer.user_id, key, request.kind))
            return

    def _submit_graph(self, producer: Producer, random: Random, number: int) -> None:
        tasks, edges = graph(random, number)
        while True:
            try:
                made = submit_graph(
                    self._stack.producer,
                    producer.user_id,
                    tasks,
                    CAPS,
                    edges=edges,
                    title=f"graph {number}",
                )
            except DatabaseUnreachable:
                self.record.count("graphs whose commit got no response, repeated")
                time.sleep(PAUSE_SECONDS)
                continue
            except ServiceRefused as refusal:
                self.record.fault(f"a graph was refused: {refusal}")
                return
            self.record.count("graphs")
            for task, one in zip(tasks, made, strict=True):
                key = task.idempotency_key or ""
                self.record.ack(Ack(one.task_id, producer.user_id, key, "graph"))
            return

    def _cancel(self, random: Random) -> None:
        with self.record.lock:
            if not self.record.acks:
                return
            # One of the last 50, which may still wait or run.
            recent = self.record.acks[-50:]
        ack = random.choice(recent)
        producer = next(one for one in self._producers if one.user_id == ack.user_id)
        try:
            answer = producer.client.tasks.cancel(show_task(ack.task_id))
        except Refused as refusal:
            self.record.count("cancels too late" if refusal.status == 409 else "cancels refused")
            if refusal.status >= 500 and not isinstance(refusal, Unavailable):
                self.record.fault(f"cancel answered {refusal.status}: {refusal}")
        except OvernightError:
            self.record.count("cancels without a response")
        else:
            self.record.count(f"cancels answered {answer.state}")
            if answer.state == "cancelled":
                self.record.cancelled.append(ack.task_id)


def by_key(acks: list[Ack]) -> dict[tuple[UUID, str], set[UUID]]:
    """Return the tasks that each user got for each key; more than one is an error."""
    shown: dict[tuple[UUID, str], set[UUID]] = {}
    for ack in acks:
        shown.setdefault((ack.user_id, ack.key), set()).add(ack.task_id)
    return shown
