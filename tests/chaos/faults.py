"""The faults of a chaos run, one short function each; random choices come from the seed."""

import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Final

import psutil
from redis import Redis
from redis.exceptions import RedisError

from overnight.errors import Refused
from overnight.models.enums import PlanTier
from overnight_server.control.dead_letters import retry
from overnight_server.control.users import change_plan
from overnight_server.domain.ids import TaskId
from overnight_server.domain.plans import PlanLimits
from overnight_server.wakeups.redis_client import fail_fast_client
from tests.chaos.handler_record import HandlerRecord
from tests.chaos.injector import FaultFunction, FaultInjector
from tests.chaos.plan import CUT, LINK, LINK_FAULTS, POSTGRES, PRODUCER, TO_POSTGRES, Step
from tests.chaos.proxy import LinkFault, ProxyLink
from tests.chaos.stack import Service, is_in_sandbox, resume, suspend
from tests.chaos.tasks import REMOTE
from tests.support.invariants import describe_violations, violations
from tests.support.workers import is_gone

BURST: Final = 40
REVIVED_AT_ONCE: Final = 3
# How long a killed process may take to disappear on a busy machine.
GONE_SECONDS: Final = 5.0


def kill(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Kill a service and its children with SIGKILL."""
    return _send(injector, step, signal.SIGKILL)


def term(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Send SIGTERM to a service, as a deploy does."""
    return _send(injector, step, signal.SIGTERM)


def kill_main(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Kill only a worker's main process; the guards of its pool end its run processes."""
    service = _started_service(injector, step.on)
    if service is None or service.process is None:
        return None
    family = _processes(injector.stack.pids(service.name))
    guard, seconds = service.process.guard_pid, random.uniform(1, 4)
    # The supervisor's guard would end the children as well, which few supervisors do.
    suspend([guard])
    injector.stack.expect_end(service.process.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(service.process.pid, signal.SIGKILL)
    injector.busy.add(service.name)

    def end() -> bool:
        injector.counts["children left by a killed main process"] += len(_alive(family))
        resume([guard])
        injector.busy.discard(service.name)
        _check_gone(injector, service.name, family)
        return True

    injector.lasts(step, seconds, end)
    return f"{service.name} {family[0].pid if family else 0}, its guard away for {seconds:.1f} s"


def kill_child(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Kill one process of a worker's pool; the main process lives on."""
    child = _child(injector, random, step)
    if child is None:
        return None
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    injector.killed_pids.add(child)
    return f"{step.on} {child}"


def freeze(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Stop a service and its children for longer than a lease, then resume them."""
    service, pids = _started_service(injector, step.on), injector.stack.pids(step.on)
    if service is None or not pids:
        return None
    seconds = random.uniform(1.2, 2) * service.settings.lease_seconds
    _freeze(injector, step, pids, seconds)
    return f"{service.name} {pids[0]} for {seconds:.1f} s"


def freeze_child(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Stop one process of a worker's pool for longer than its lease."""
    child = _child(injector, random, step)
    if child is None:
        return None
    seconds = random.uniform(4, 6)
    _freeze(injector, step, [child], seconds)
    return f"{step.on} {child} for {seconds:.1f} s"


def _freeze(injector: FaultInjector, step: Step, pids: list[int], seconds: float) -> None:
    frozen, until = _processes(pids), time.monotonic() + seconds
    suspend(pids)
    injector.busy.add(step.on)

    def end() -> bool:
        outlasted = time.monotonic() >= until and any(_alive(frozen))
        resume([process.pid for process in _alive(frozen)])
        injector.busy.discard(step.on)
        return outlasted

    injector.lasts(step, seconds, end)


def crash_postgres(injector: FaultInjector, random: Random, step: Step) -> str:
    """Crash Postgres and start it again, sometimes after a pause."""
    away = random.choice([0.0, 0.0, 0.5, 2.0])
    injector.stack.postgres.stop(immediate=True)
    time.sleep(away)
    injector.stack.postgres.start()
    return f"away for {away} s"


def hang_postgres(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Stop all processes of Postgres; its connections stay open."""
    server = injector.stack.postgres
    if not server.running:
        return None
    main = psutil.Process(server.pid)
    hung, seconds = [main, *main.children(recursive=True)], random.uniform(1, 4)
    suspend([process.pid for process in hung])
    injector.busy.add(POSTGRES)

    def end() -> bool:
        left = _alive(hung)
        resume([process.pid for process in left])
        injector.busy.discard(POSTGRES)
        return main in left

    injector.lasts(step, seconds, end)
    return f"{seconds:.1f} s"


def flush_redis(injector: FaultInjector, random: Random, step: Step) -> str:
    """Delete all keys of Redis."""
    with fail_fast_client(injector.stack.redis.url) as client:
        client.flushall()
    return "flushed"


def restart_redis(injector: FaultInjector, random: Random, step: Step) -> str:
    """Kill Redis and start it again with its data."""
    return _restart_redis(injector, random, empty=False)


def empty_redis(injector: FaultInjector, random: Random, step: Step) -> str:
    """Kill Redis and start it again without its data."""
    return _restart_redis(injector, random, empty=True)


def _restart_redis(injector: FaultInjector, random: Random, *, empty: bool) -> str:
    server, away = injector.stack.redis, random.choice([0.0, 1.0])
    server.stop(immediate=True)
    if empty:
        # Redis would load the append-only files again.
        shutil.rmtree(server.server.data / "appendonlydir")
    time.sleep(away)
    server.start()
    return f"away for {away} s"


def hang_redis(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Stop the process of Redis; its connections stay open."""
    server = injector.stack.redis
    if not server.running:
        return None
    pid, seconds = server.pid, random.uniform(1, 5)
    suspend([pid])

    def end() -> bool:
        hung = server.running and server.pid == pid
        resume([pid])
        return hung

    injector.lasts(step, seconds, end)
    return f"{seconds:.1f} s"


def fill_redis(injector: FaultInjector, random: Random, step: Step) -> str:
    """Let Redis refuse every write, as it does when its memory is full."""
    url, seconds = injector.stack.redis.url, random.uniform(1, 4)
    with fail_fast_client(url) as client:
        refused = _refused_writes(client)
        client.config_set("maxmemory", 1)

    def end() -> bool:
        # A Redis that was started again meanwhile has its memory back and counts from 0.
        with suppress(RedisError), fail_fast_client(url) as client:
            client.config_set("maxmemory", 0)
            return _refused_writes(client) > refused
        return False

    injector.lasts(step, seconds, end)
    return f"{seconds:.1f} s"


def _refused_writes(client: Redis) -> int:
    return int(client.info("errorstats").get("errorstat_OOM", {}).get("count", 0))


def fill_disk(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Let the log of a service not grow any further, as on a disk that is full.

    The limit also applies to files in memory, which a full disk does not, and a process makes one
    while it starts: only a service whose start is complete is hit.
    """
    processes = _processes(injector.stack.pids(step.on))
    if _started_service(injector, step.on) is None or not processes:
        return None
    size, seconds = injector.stack.log_size(step.on), random.uniform(1, 4)
    _limit_files(processes, size)

    def end() -> bool:
        _limit_files(processes, resource.RLIM_INFINITY)
        return any(_alive(processes))

    injector.lasts(step, seconds, end)
    return f"{step.on} for {seconds:.1f} s"


def _limit_files(processes: list[psutil.Process], size: int) -> None:
    """Set the largest size to which the processes may let a file grow."""
    for process in _alive(processes):
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def break_link(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Break the connection of one service to one of its servers."""
    name, link = _link(injector, random, step.on)
    if link is None:
        return None
    fault = step.fault.removeprefix(LINK)
    if fault == CUT:
        return name if link.cut() else None
    seconds, before = random.uniform(0.5, 5), link.hits
    link.set_fault(LinkFault(fault), delay_seconds=random.uniform(0.05, 1))
    if fault == LinkFault.REFUSE:
        # Connections that are open already would otherwise continue to work.
        link.cut()
    if name.startswith(PRODUCER):
        # Graphs are rare, and the link carries nothing else.
        injector.load.submit_graph_now(step.seed)

    def end() -> bool:
        link.heal()
        return link.hits > before

    injector.lasts(step, seconds, end)
    return f"{name} for {seconds:.1f} s"


def burst(injector: FaultInjector, random: Random, step: Step) -> str:
    """Submit many tasks at once."""
    injector.load.burst(BURST)
    return str(BURST)


def change_a_plan(injector: FaultInjector, random: Random, step: Step) -> str:
    """Change the limits of a user."""
    producer = random.choice(injector.producers)
    limits = PlanLimits(random.randint(1, 8), random.choice([30, 60]), random.choice([9, 90, None]))
    tier = random.choice(list(PlanTier))
    change_plan(injector.stack.deployment.app, producer.user_id, tier, limits=limits)
    return f"{producer.user_id} {limits}"


def revive(injector: FaultInjector, random: Random, step: Step) -> str | None:
    """Retry a few dead letters."""
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
    """Publish messages of waiting, running and ended claims again, in random order."""
    rows = injector.stack.deployment.rows(
        "SELECT a.task_id, a.epoch, a.token, a.user_id, a.pool, t.type FROM attempts a"
        f" JOIN tasks t ON t.id = a.task_id WHERE t.type <> '{REMOTE}'"
        " ORDER BY a.ended_at IS NULL DESC, a.claimed_at DESC LIMIT 30"
    )
    random.shuffle(rows)
    sent = injector.stack.publish(rows)
    injector.counts["messages delivered twice"] += sent
    return str(sent) if sent else None


def check_invariants(injector: FaultInjector, random: Random, step: Step) -> str:
    """Check the invariants in the middle of the run: they hold at every instant."""
    for server in (injector.stack.postgres, injector.stack.redis):
        if not server.running:
            injector.add_finding("servers", f"{server.log.name}: the server ended by itself")
    violated = violations(injector.stack.deployment.owner)
    if violated:
        injector.add_finding(
            "invariants during the faults", *describe_violations(violated).splitlines()
        )
    return describe_violations(violated) or "no violation"


FAULTS: Final[Mapping[str, FaultFunction]] = {
    "kill": kill,
    "kill main": kill_main,
    "kill child": kill_child,
    "freeze": freeze,
    "freeze worker": freeze,
    "freeze child": freeze_child,
    "term": term,
    "crash postgres": crash_postgres,
    "hang postgres": hang_postgres,
    "flush redis": flush_redis,
    "restart redis": restart_redis,
    "empty redis": empty_redis,
    "hang redis": hang_redis,
    "fill redis": fill_redis,
    "fill disk": fill_disk,
    "burst": burst,
    "change plan": change_a_plan,
    "revive": revive,
    "repeat messages": repeat_messages,
    "look": check_invariants,
    **{f"{LINK}{fault}": break_link for fault in LINK_FAULTS},
}


def _send(injector: FaultInjector, step: Step, number: signal.Signals) -> str | None:
    service = _running_service(injector, step.on)
    family = _processes(injector.stack.pids(step.on))
    if service is None or not injector.stack.signal(step.on, number):
        return None
    if number is signal.SIGKILL:
        injector.later(GONE_SECONDS, lambda: _check_gone(injector, step.on, family))
    return f"{step.on} {family[0].pid}" if family else step.on


def _running_service(injector: FaultInjector, name: str) -> Service | None:
    """Return a service if it runs and no lasting fault hits it."""
    service = injector.stack.services[name]
    return service if service.process is not None and name not in injector.busy else None


def _started_service(injector: FaultInjector, name: str) -> Service | None:
    """Return a service if its start is complete; a worker then has children.

    A worker that loses one of its first children gives up and is started again.
    """
    service = _running_service(injector, name)
    if service is None or service.process is None:
        return None
    pid = service.process.pid
    line = (
        rf"queue=worker_joined worker=\S*:{pid}:"
        if service.command == "worker"
        else rf"queue=service_started role=\S+ pid={pid}\b"
    )
    is_started = re.search(line, injector.stack.log_text(name)) and injector.stack.pids(name)
    return service if is_started else None


def _child(injector: FaultInjector, random: Random, step: Step) -> int | None:
    """Choose a process that runs tasks, preferably a handler now; no guard and no command."""
    service = _started_service(injector, step.on)
    main, *below = (injector.stack.pids(service.name) if service else []) or [0]
    children = [
        process.pid
        for process in _processes(below)
        if _parent_of(process) != main and not is_in_sandbox(process)
    ]
    running_pids = HandlerRecord.read(injector.stack.handler_record).running_pids()
    busy = [child for child in children if child in running_pids]
    return random.choice(busy or children) if children else None


def _processes(pids: list[int]) -> list[psutil.Process]:
    """Return process objects, which stay valid if a pid is used again."""
    processes = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    return processes


def _parent_of(process: psutil.Process) -> int:
    """Return the pid of the parent, 0 if the process has ended."""
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return 0


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and not is_gone(process)]


def _check_gone(injector: FaultInjector, name: str, family: list[psutil.Process]) -> None:
    """Add a finding if a killed process or one of its children is still alive."""
    deadline = time.monotonic() + GONE_SECONDS
    while (left := _alive(family)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        injector.add_finding(
            "processes that survived a kill", *(f"{name}: {one.pid}" for one in left)
        )


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
