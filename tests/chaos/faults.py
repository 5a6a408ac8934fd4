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
from overnight.models.enums import PlanTier
from overnight_server.control.dead_letters import retry
from overnight_server.control.users import change_plan
from overnight_server.domain.ids import TaskId
from overnight_server.domain.plans import PlanLimits
from overnight_server.wakeups.redis_client import fail_fast_client
from tests.chaos.handler_record import HandlerRecord
from tests.chaos.injector import Act, FaultInjector
from tests.chaos.plan import CUT, LINK, PRODUCER, SPOILED, TO_POSTGRES, Step
from tests.chaos.proxy import LinkFault, ProxyLink
from tests.chaos.stack import Service, resume, stop_clock
from tests.support.invariants import describe_violations, violations
from tests.support.workers import is_gone

BURST: Final = 40
REVIVED_AT_ONCE: Final = 3
# How long what was killed may take to be gone, on a busy machine.
GONE_SECONDS: Final = 5.0


def kill(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """End any process of the deployment without a word."""
    return _send(injector, step, signal.SIGKILL)


def term(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Ask any process to end, as a deploy does."""
    return _send(injector, step, signal.SIGTERM)


def kill_main(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Kill a worker's main process alone: for a while, nobody ends the children it left."""
    service = _staffed(injector, step.on)
    if service is None or service.process is None:
        return None
    family = _processes(injector.stack.pids(service.name))
    guard, seconds = service.process.guard_pid, random.uniform(1, 4)
    # The guard would end the children at once, which few supervisors do.
    stop_clock([guard])
    injector.stack.expect_end(service.process.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(service.process.pid, signal.SIGKILL)
    injector.busy.add(service.name)

    def end() -> bool:
        injector.counts["children left by a killed main process"] += len(_living(family))
        resume([guard])
        injector.busy.discard(service.name)
        _see_gone(injector, service.name, family)
        return True

    injector.lasts(step, seconds, end)
    return f"{service.name} {family[0].pid if family else 0}, its guard away for {seconds:.1f} s"


def kill_child(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Kill one process of a worker's pool; its worker lives."""
    child = _child(injector, random, step)
    if child is None:
        return None
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    injector.killed_pids.add(child)
    return f"{step.on} {child}"


def freeze(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Stop a process and its children beyond any lease, then let them go on."""
    service, pids = _staffed(injector, step.on), injector.stack.pids(step.on)
    if service is None or not pids:
        return None
    seconds = random.uniform(1.2, 2) * service.settings.lease_seconds
    _freeze(injector, step, pids, seconds)
    return f"{service.name} {pids[0]} for {seconds:.1f} s"


def freeze_child(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Stop one process of a worker's pool beyond its lease, while its worker looks well."""
    child = _child(injector, random, step)
    if child is None:
        return None
    seconds = random.uniform(4, 6)
    _freeze(injector, step, [child], seconds)
    return f"{step.on} {child} for {seconds:.1f} s"


def _freeze(injector: FaultInjector, step: Step, pids: list[int], seconds: float) -> None:
    frozen, until = _processes(pids), time.monotonic() + seconds
    stop_clock(pids)
    injector.busy.add(step.on)

    def end() -> bool:
        outlasted = time.monotonic() >= until and any(_living(frozen))
        resume([process.pid for process in _living(frozen)])
        injector.busy.discard(step.on)
        return outlasted

    injector.lasts(step, seconds, end)


def crash_postgres(injector: FaultInjector, random: Random, step: Step) -> str:
    """Restart Postgres without a shutdown; now and then it stays away for a while."""
    away = random.choice([0.0, 0.0, 0.5, 2.0])
    injector.stack.postgres.stop(immediate=True)
    time.sleep(away)
    injector.stack.postgres.start()
    return f"away for {away} s"


def flush_redis(injector: FaultInjector, random: Random, step: Step) -> str:
    """Wipe the broker."""
    with fail_fast_client(injector.stack.redis.url) as client:
        client.flushall()
    return "flushed"


def restart_redis(injector: FaultInjector, random: Random, step: Step) -> str:
    """Kill the broker and start it again with what it had written down."""
    return _restart_redis(injector, random, empty=False)


def empty_redis(injector: FaultInjector, random: Random, step: Step) -> str:
    """Kill the broker and start another in its place that knows nothing."""
    return _restart_redis(injector, random, empty=True)


def _restart_redis(injector: FaultInjector, random: Random, *, empty: bool) -> str:
    server, away = injector.stack.redis, random.choice([0.0, 1.0])
    server.stop(immediate=True)
    if empty:
        # It appends every write to files here; Redis would read them again.
        shutil.rmtree(server.server.data / "appendonlydir")
    time.sleep(away)
    server.start()
    return f"away for {away} s"


def hang_redis(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Stop the broker without closing a connection."""
    server = injector.stack.redis
    if not server.running:
        return None
    pid, seconds = server.pid, random.uniform(1, 5)
    stop_clock([pid])

    def end() -> bool:
        hung = server.running and server.pid == pid
        resume([pid])
        return hung

    injector.lasts(step, seconds, end)
    return f"{seconds:.1f} s"


def break_link(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Spoil one process's way to one of its servers."""
    name, link = _link(injector, random, step.on)
    if link is None:
        return None
    fault = step.fault.removeprefix(LINK)
    if fault == CUT:
        return name if link.cut() else None
    seconds, before = random.uniform(0.5, 5), link.spoiled
    link.become(LinkFault(fault), delay_seconds=random.uniform(0.05, 1))
    if fault == LinkFault.REFUSE:
        # Those it has already would go on as if nothing were the matter.
        link.cut()

    def end() -> bool:
        link.heal()
        return link.spoiled > before

    injector.lasts(step, seconds, end)
    return f"{name} for {seconds:.1f} s"


def burst(injector: FaultInjector, random: Random, step: Step) -> str:
    """Submit much at once."""
    injector.load.burst(BURST)
    return str(BURST)


def change_a_plan(injector: FaultInjector, random: Random, step: Step) -> str:
    """Give a user more or less than before."""
    producer = random.choice(injector.producers)
    limits = PlanLimits(random.randint(1, 8), random.choice([30, 60]), random.choice([9, 90, None]))
    tier = random.choice(list(PlanTier))
    change_plan(injector.stack.deployment.app, producer.user_id, tier, limits=limits)
    return f"{producer.user_id} {limits}"


def revive(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Give dead tasks another chance."""
    rows = injector.stack.deployment.rows(
        "SELECT task_id FROM dead_letters WHERE resolution IS NULL ORDER BY id LIMIT 50"
    )
    chosen = random.sample(rows, min(len(rows), REVIVED_AT_ONCE))
    for row in chosen:
        with suppress(Refused):
            retry(
                injector.stack.deployment.app,
                TaskId(row["task_id"]),
                actor="human:chaos",
                attempts=1,
            )
    return str(len(chosen)) if chosen else None


def repeat_messages(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Deliver messages once more, in any order: of claims that wait, that run and that are over."""
    rows = injector.stack.deployment.rows(
        "SELECT a.task_id, a.epoch, a.token, a.user_id, a.pool, t.type FROM attempts a"
        " JOIN tasks t ON t.id = a.task_id ORDER BY a.ended_at IS NULL DESC, a.claimed_at DESC"
        " LIMIT 30"
    )
    random.shuffle(rows)
    sent = injector.stack.publish(rows)
    injector.counts["messages delivered twice"] += sent
    return str(sent) if sent else None


def look(injector: FaultInjector, random: Random, step: Step) -> str:
    """Do nothing for once but look: the invariants hold at every instant, not only at the end."""
    for server in (injector.stack.postgres, injector.stack.redis):
        if not server.running:
            injector.found("servers", f"{server.log.name}: it ended")
    found = violations(injector.stack.deployment.owner)
    if found:
        injector.found("invariants in the middle", *describe_violations(found).splitlines())
    return describe_violations(found) or "all well"


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
    **{f"{LINK}{fault}": break_link for fault in SPOILED},
}


def _send(injector: FaultInjector, step: Step, number: signal.Signals) -> str | None:
    service = _filled(injector, step.on)
    family = _processes(injector.stack.pids(step.on))
    if service is None or not injector.stack.signal(step.on, number):
        return None
    if number is signal.SIGKILL:
        injector.later(GONE_SECONDS, lambda: _see_gone(injector, step.on, family))
    return f"{step.on} {family[0].pid}" if family else step.on


def _filled(injector: FaultInjector, name: str) -> Service | None:
    """Return a service if somebody fills it and nothing is being done to them."""
    service = injector.stack.services[name]
    return service if service.process is not None and name not in injector.busy else None


def _staffed(injector: FaultInjector, name: str) -> Service | None:
    """Return a service if somebody fills it who is past the start; a worker then has children.

    A worker that loses one of its first children gives up, and its supervisor tries again.
    """
    service = _filled(injector, name)
    if service is None or service.process is None:
        return None
    joined = rf"queue=worker_joined worker=\S*:{service.process.pid}:"
    if service.command == "worker" and not re.search(joined, injector.stack.log_text(name)):
        return None
    return service if injector.stack.pids(name) else None


def _child(injector: FaultInjector, random: Random, step: Step) -> int | None:
    """Choose a process of a worker's pool, one that runs something if there is one."""
    service = _staffed(injector, step.on)
    children = [] if service is None else injector.stack.pids(service.name)[1:]
    at_work = HandlerRecord.read(injector.stack.truth).at_work()
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


def _see_gone(injector: FaultInjector, name: str, family: list[psutil.Process]) -> None:
    """See that nothing is left of a process that was killed, its children included."""
    deadline = time.monotonic() + GONE_SECONDS
    while (left := _living(family)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        injector.found("outlived a killed process", *(f"{name}: {one.pid}" for one in left))


def _link(injector: FaultInjector, random: Random, way: str) -> tuple[str, ProxyLink | None]:
    """Choose a link for a way: one of those that carry something now."""
    who, _, server = way.partition(" to ")
    if who == PRODUCER:
        return way, injector.stack.producer_link
    links = {
        f"{service.name} to {server}": service.postgres
        if way.endswith(TO_POSTGRES)
        else service.redis
        for service in injector.stack.services.values()
        if service.command == who
    }
    used = [(name, link) for name, link in links.items() if link.open_connections]
    return random.choice(used) if used else (way, None)
