"""Everything that is done to the deployment, each a short function with its chances from a seed."""

import os
import re
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Final

import psutil

from overnight.errors import Refused
from overnight_server.control.dead_letters import retry
from overnight_server.control.users import change_plan
from overnight_server.domain.ids import TaskId
from overnight_server.domain.plans import PlanLimits, PlanTier
from overnight_server.wakeups.redis_client import fail_fast_client
from tests.chaos.director import Act, Director
from tests.chaos.plan import CUT, LINK, PRODUCER, SPOILED, TO_POSTGRES, Step
from tests.chaos.proxy import Link, Mood
from tests.chaos.stage import Post, resume, stop_clock
from tests.chaos.truth import Truth
from tests.support.invariants import told, violations
from tests.support.workers import is_gone

BURST: Final = 40
REVIVED_AT_ONCE: Final = 3
# How long what was killed may take to be gone, on a busy machine.
GONE_SECONDS: Final = 5.0


def kill(director: Director, random: Random, step: Step) -> str | None:
    """End any process of the deployment without a word."""
    return _send(director, step, signal.SIGKILL)


def term(director: Director, random: Random, step: Step) -> str | None:
    """Ask any process to end, as a deploy does."""
    return _send(director, step, signal.SIGTERM)


def kill_main(director: Director, random: Random, step: Step) -> str | None:
    """Kill a worker's main process alone: for a while, nobody ends the children it left."""
    post = _staffed(director, step.on)
    if post is None or post.process is None:
        return None
    family = _processes(director.stage.pids(post.name))
    guard, seconds = post.process.guard_pid, random.uniform(1, 4)
    # The guard would end the children at once, which few supervisors do.
    stop_clock([guard])
    director.stage.expect_end(post.process.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(post.process.pid, signal.SIGKILL)
    director.busy.add(post.name)

    def end() -> bool:
        director.counts["children left by a killed main process"] += len(_living(family))
        resume([guard])
        director.busy.discard(post.name)
        _see_gone(director, post.name, family)
        return True

    director.lasts(step, seconds, end)
    return f"{post.name} {family[0].pid if family else 0}, its guard away for {seconds:.1f} s"


def kill_child(director: Director, random: Random, step: Step) -> str | None:
    """Kill one process of a worker's pool; its worker lives."""
    child = _child(director, random, step)
    if child is None:
        return None
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    director.killed_pids.add(child)
    return f"{step.on} {child}"


def freeze(director: Director, random: Random, step: Step) -> str | None:
    """Stop a process and its children beyond any lease, then let them go on."""
    post, pids = _staffed(director, step.on), director.stage.pids(step.on)
    if post is None or not pids:
        return None
    seconds = random.uniform(1.2, 2) * post.settings.lease_seconds
    _freeze(director, step, pids, seconds)
    return f"{post.name} {pids[0]} for {seconds:.1f} s"


def freeze_child(director: Director, random: Random, step: Step) -> str | None:
    """Stop one process of a worker's pool beyond its lease, while its worker looks well."""
    child = _child(director, random, step)
    if child is None:
        return None
    seconds = random.uniform(4, 6)
    _freeze(director, step, [child], seconds)
    return f"{step.on} {child} for {seconds:.1f} s"


def _freeze(director: Director, step: Step, pids: list[int], seconds: float) -> None:
    frozen, until = _processes(pids), time.monotonic() + seconds
    stop_clock(pids)
    director.busy.add(step.on)

    def end() -> bool:
        outlasted = time.monotonic() >= until and any(_living(frozen))
        resume([process.pid for process in _living(frozen)])
        director.busy.discard(step.on)
        return outlasted

    director.lasts(step, seconds, end)


def crash_postgres(director: Director, random: Random, step: Step) -> str:
    """Restart Postgres without a shutdown; now and then it stays away for a while."""
    away = random.choice([0.0, 0.0, 0.5, 2.0])
    director.stage.postgres.stop(immediate=True)
    time.sleep(away)
    director.stage.postgres.start()
    return f"away for {away} s"


def flush_redis(director: Director, random: Random, step: Step) -> str:
    """Wipe the broker."""
    with fail_fast_client(director.stage.redis.url) as client:
        client.flushall()
    return "flushed"


def restart_redis(director: Director, random: Random, step: Step) -> str:
    """Kill the broker and start it again with what it had written down."""
    return _restart_redis(director, random, empty=False)


def empty_redis(director: Director, random: Random, step: Step) -> str:
    """Kill the broker and start another in its place that knows nothing."""
    return _restart_redis(director, random, empty=True)


def _restart_redis(director: Director, random: Random, *, empty: bool) -> str:
    server, away = director.stage.redis, random.choice([0.0, 1.0])
    server.stop(immediate=True)
    if empty:
        # It appends every write to files here; Redis would read them again.
        shutil.rmtree(server.server.data / "appendonlydir")
    time.sleep(away)
    server.start()
    return f"away for {away} s"


def hang_redis(director: Director, random: Random, step: Step) -> str | None:
    """Stop the broker without closing a connection."""
    server = director.stage.redis
    if not server.running:
        return None
    pid, seconds = server.pid, random.uniform(1, 5)
    stop_clock([pid])

    def end() -> bool:
        hung = server.running and server.pid == pid
        resume([pid])
        return hung

    director.lasts(step, seconds, end)
    return f"{seconds:.1f} s"


def break_link(director: Director, random: Random, step: Step) -> str | None:
    """Spoil one process's way to one of its servers."""
    name, link = _link(director, random, step.on)
    if link is None:
        return None
    mood = step.fault.removeprefix(LINK)
    if mood == CUT:
        return name if link.cut() else None
    seconds, before = random.uniform(0.5, 5), link.spoiled
    link.become(Mood(mood), delay_seconds=random.uniform(0.05, 1))
    if mood == Mood.REFUSE:
        # Those it has already would go on as if nothing were the matter.
        link.cut()

    def end() -> bool:
        link.heal()
        return link.spoiled > before

    director.lasts(step, seconds, end)
    return f"{name} for {seconds:.1f} s"


def burst(director: Director, random: Random, step: Step) -> str:
    """Submit much at once."""
    director.load.burst(BURST)
    return str(BURST)


def change_a_plan(director: Director, random: Random, step: Step) -> str:
    """Give a user more or less than before."""
    producer = random.choice(director.producers)
    limits = PlanLimits(random.randint(1, 8), random.choice([30, 60]), random.choice([9, 90, None]))
    tier = random.choice(list(PlanTier))
    change_plan(director.stage.deployment.app, producer.user_id, tier, limits=limits)
    return f"{producer.user_id} {limits}"


def revive(director: Director, random: Random, step: Step) -> str | None:
    """Give dead tasks another chance."""
    rows = director.stage.deployment.rows(
        "SELECT task_id FROM dead_letters WHERE resolution IS NULL ORDER BY id LIMIT 50"
    )
    chosen = random.sample(rows, min(len(rows), REVIVED_AT_ONCE))
    for row in chosen:
        with suppress(Refused):
            retry(
                director.stage.deployment.app,
                TaskId(row["task_id"]),
                actor="human:chaos",
                attempts=1,
            )
    return str(len(chosen)) if chosen else None


def repeat_messages(director: Director, random: Random, step: Step) -> str | None:
    """Deliver messages once more, in any order: of claims that wait, that run and that are over."""
    rows = director.stage.deployment.rows(
        "SELECT a.task_id, a.epoch, a.token, a.user_id, a.pool, t.type FROM attempts a"
        " JOIN tasks t ON t.id = a.task_id ORDER BY a.ended_at IS NULL DESC, a.claimed_at DESC"
        " LIMIT 30"
    )
    random.shuffle(rows)
    sent = director.stage.publish(rows)
    director.counts["messages delivered twice"] += sent
    return str(sent) if sent else None


def look(director: Director, random: Random, step: Step) -> str:
    """Do nothing for once but look: the invariants hold at every instant, not only at the end."""
    for server in (director.stage.postgres, director.stage.redis):
        if not server.running:
            director.found("servers", f"{server.log.name}: it ended")
    found = violations(director.stage.deployment.owner)
    if found:
        director.found("invariants in the middle", *told(found).splitlines())
    return told(found) or "all well"


FAULTS: Final[Mapping[str, Act]] = {
    "kill": kill,
    "kill main": kill_main,
    "kill child": kill_child,
    "freeze": freeze,
    "freeze worker": freeze,
    "freeze child": freeze_child,
    "term": term,
    "crash postgres": crash_postgres,
    "flush redis": flush_redis,
    "restart redis": restart_redis,
    "empty redis": empty_redis,
    "hang redis": hang_redis,
    "burst": burst,
    "change plan": change_a_plan,
    "revive": revive,
    "repeat messages": repeat_messages,
    "look": look,
    **{f"{LINK}{mood}": break_link for mood in SPOILED},
}


def _send(director: Director, step: Step, number: signal.Signals) -> str | None:
    post = _filled(director, step.on)
    family = _processes(director.stage.pids(step.on))
    if post is None or not director.stage.signal(step.on, number):
        return None
    if number is signal.SIGKILL:
        director.later(GONE_SECONDS, lambda: _see_gone(director, step.on, family))
    return f"{step.on} {family[0].pid}" if family else step.on


def _filled(director: Director, name: str) -> Post | None:
    """Return a post if somebody fills it and nothing is being done to them."""
    post = director.stage.posts[name]
    return post if post.process is not None and name not in director.busy else None


def _staffed(director: Director, name: str) -> Post | None:
    """Return a post if somebody fills it who is past the start; a worker then has children.

    A worker that loses one of its first children gives up, and its supervisor tries again.
    """
    post = _filled(director, name)
    if post is None or post.process is None:
        return None
    joined = rf"queue=worker_joined worker=\S*:{post.process.pid}:"
    if post.command == "worker" and not re.search(joined, director.stage.said(name)):
        return None
    return post if director.stage.pids(name) else None


def _child(director: Director, random: Random, step: Step) -> int | None:
    """Choose a process of a worker's pool, one that runs something if there is one."""
    post = _staffed(director, step.on)
    children = [] if post is None else director.stage.pids(post.name)[1:]
    at_work = Truth.read(director.stage.truth).at_work()
    busy = [child for child in children if child in at_work]
    return random.choice(busy or children) if children else None


def _processes(pids: list[int]) -> list[psutil.Process]:
    """Return processes that are known again even if others get their numbers."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def _living(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and not is_gone(one)]


def _see_gone(director: Director, name: str, family: list[psutil.Process]) -> None:
    """See that nothing is left of a process that was killed, its children included."""
    deadline = time.monotonic() + GONE_SECONDS
    while (left := _living(family)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        director.found("outlived a killed process", *(f"{name}: {one.pid}" for one in left))


def _link(director: Director, random: Random, way: str) -> tuple[str, Link | None]:
    """Choose a link for a way: one of those that carry something now."""
    who, _, server = way.partition(" to ")
    if who == PRODUCER:
        return way, director.stage.producer_link
    links = {
        f"{post.name} to {server}": post.postgres if way.endswith(TO_POSTGRES) else post.redis
        for post in director.stage.posts.values()
        if post.command == who
    }
    used = [(name, link) for name, link in links.items() if link.open_connections]
    return random.choice(used) if used else (way, None)
