"""Reasons that come from the pools: which could run a task, and why none has a slot for it."""

from collections.abc import Iterator, Sequence

from overnight.models.explain import Reason
from overnight.models.field_errors import nearest_name
from overnight_server.domain.capabilities import COMMAND, runner_capability
from overnight_server.domain.reasons import ReasonCode, ReasonScope, format_instant, join_names
from overnight_server.explain.audience import Audience
from overnight_server.explain.facts import PauseFacts, PoolFacts, TaskFacts

COMMANDS = runner_capability(COMMAND)
# How many draining workers are listed by id.
MAX_LISTED = 3


def pause_reason(
    facts: PauseFacts, audience: Audience, scope: ReasonScope, subject: str, option: str
) -> Reason:
    """Return the reason that names what is paused, since when, and who can resume it how."""
    pause = facts.pause
    command = f"overnight resume {option}"
    if facts.is_own and (audience.is_owner or not audience.is_operator):
        advice = audience.advice_for_owner("end the pause", "overnight resume --me")
    else:
        advice = audience.advice_for_operator("end the pause", command)
    note = f" ({pause.note})" if pause.note else ""
    since = pause.paused_at
    return Reason(
        code=ReasonCode.PAUSED,
        scope=scope,
        message=f"{subject} paused since {format_instant(since)}{note}: {advice}",
        details={
            "scope": pause.scope,
            "target": pause.target,
            "since": since,
            "note": pause.note,
        },
    )


def pool_reasons(facts: TaskFacts) -> Iterator[Reason]:
    """Yield why no pool has a slot for the task; nothing if one has."""
    live = [pool for pool in facts.pools if pool.is_live]
    able, capable = _able_pools(facts), capable_pools(facts)
    unpaused = [pool for pool in capable if not pool.paused]
    if not live:
        yield _no_worker(facts)
    elif not able:
        yield _no_capable_agent(facts, live)
    elif not capable:
        yield _no_handler(facts)
    elif not unpaused:
        names = {pool.name for pool in capable}
        for pause in facts.pauses:
            pool_name = pause.pause.target
            if pause.pause.scope == "pool" and pool_name in names:
                subject = f"the pool {pool_name}, which could run it, is"
                yield pause_reason(
                    pause,
                    facts.audience,
                    ReasonScope.DEPLOYMENT,
                    subject,
                    f"--pool {pool_name}",
                )
    elif not any(pool.has_free_slot for pool in unpaused):
        yield _no_free_slot(unpaused, facts.audience)
    if facts.slots_max is not None and facts.pools:
        in_all_pools = max(pool.slots.in_all_pools for pool in facts.pools)
        if in_all_pools >= facts.slots_max:
            yield Reason(
                code=ReasonCode.SLOTS_MAX,
                scope=ReasonScope.DEPLOYMENT,
                message=f"{in_all_pools} of the {facts.slots_max} slots that all pools may use"
                " together are busy: one must become free"
                + (
                    ", or raise OVERNIGHT_SLOTS_MAX of the dispatchers"
                    if facts.audience.is_operator
                    else ""
                ),
                details={"busy": in_all_pools, "slots_max": facts.slots_max},
            )


def capable_pools(facts: TaskFacts) -> list[PoolFacts]:
    """Return the live pools that offer the required capabilities and accept the task's type."""
    task_type = facts.task["type"]
    return [pool for pool in _able_pools(facts) if _accepts(pool, task_type)]


def _able_pools(facts: TaskFacts) -> list[PoolFacts]:
    """Return the live pools that offer all capabilities the task requires."""
    return [pool for pool in facts.pools if pool.is_live and facts.needs <= _capabilities(pool)]


def _no_worker(facts: TaskFacts) -> Reason:
    draining = [worker_id for pool in facts.pools for worker_id in pool.draining]
    start = facts.audience.advice_for_operator("start one", "overnight worker")
    message = f"no worker is alive: {start}"
    if draining:
        is_one = len(draining) == 1
        message = (
            f"{'the only live worker drains' if is_one else 'all live workers drain'}"
            f" ({join_names(draining[:MAX_LISTED], len(draining))}) and"
            f" {'accepts' if is_one else 'accept'} no new tasks: "
            + facts.audience.advice_for_operator(
                "let one accept tasks again", f"overnight drain {draining[0]} --undo"
            )
            + (
                ", or start another with `overnight worker`"
                if facts.audience.is_operator
                else " or to start another"
            )
        )
    return Reason(
        code=ReasonCode.NO_WORKER,
        scope=ReasonScope.DEPLOYMENT,
        message=message,
        details={"pools": [pool.name for pool in facts.pools], "draining": draining},
    )


def _no_free_slot(pools: Sequence[PoolFacts], audience: Audience) -> Reason:
    counts = [
        {"pool": pool.name, "busy": pool.slots.busy, "slots": pool.slots.slots} for pool in pools
    ]
    texts = [f"{count['pool']} ({count['busy']} of {count['slots']} busy)" for count in counts]
    return Reason(
        code=ReasonCode.SLOTS,
        scope=ReasonScope.DEPLOYMENT,
        message=f"no slot is free in {join_names(texts)}: one must become free, or"
        f" {audience.advice_for_operator('start another worker', 'overnight worker')}",
        details={"pools": counts},
    )


def _no_capable_agent(facts: TaskFacts, live: Sequence[PoolFacts]) -> Reason:
    missing = {pool.name: sorted(facts.needs - _capabilities(pool)) for pool in live}
    mixed = [
        pool.name
        for pool in live
        if any(facts.needs <= set(worker) for worker in pool.slots.capabilities)
    ]
    nearest = min(missing, key=lambda name: (len(missing[name]), name))
    if mixed:
        advice = (
            f"some workers of {join_names(mixed)} do, but any worker of a pool may get its tasks:"
            f" {_ask(facts, 'give those workers a pool of their own')}"
        )
    elif COMMANDS in missing[nearest]:
        advice = f"the workers of {nearest} can make no sandbox for a command; " + _ask(
            facts, "run `overnight doctor` on their machine, which names the remedy"
        )
    else:
        names = ",".join(missing[nearest])
        advice = f"{nearest} lacks {names}; " + facts.audience.advice_for_operator(
            "start a worker that offers them", f"overnight worker --capabilities {names}"
        )
    return Reason(
        code=ReasonCode.NO_CAPABLE_AGENT,
        scope=ReasonScope.DEPLOYMENT,
        message=f"no pool offers all of {', '.join(sorted(facts.needs))}: {advice}",
        details={"needs": sorted(facts.needs), "missing": missing, "mixed_pools": mixed},
    )


def _no_handler(facts: TaskFacts) -> Reason:
    """Return the reason of a task whose type no capable pool accepts."""
    task_type, able = facts.task["type"], _able_pools(facts)
    knowing = [pool for pool in facts.pools if task_type in pool.known_types]
    mixed = [
        pool.name for pool in able if any(task_type in (types or ()) for types in pool.slots.types)
    ]
    names = join_names([pool.name for pool in able])
    if mixed:
        problem = (
            f"not all workers of {join_names(mixed)} have a handler for the type {task_type!r}"
        )
        advice = "any worker of a pool may get its tasks: " + _ask(
            facts, "give all of them the handler, or those that have it a pool of their own"
        )
    elif not knowing:
        problem = f"no worker has a handler for the type {task_type!r}"
        advice = (
            f"{_ask(facts, 'start a worker with the handler')}, or, if the type is misspelled,"
            f" {_other_type(facts, able)}"
        )
    else:
        others = [f"{pool.name} ({_obstacle(facts, pool)})" for pool in knowing]
        problem = (
            f"the workers of {names} have no handler for the type {task_type!r}, only those of"
            f" {join_names(others)} have one"
        )
        advice = _ask(facts, f"undo that, or start workers of {able[0].name} with the handler")
    return Reason(
        code=ReasonCode.HANDLER,
        scope=ReasonScope.DEPLOYMENT,
        message=f"{problem}: {advice}",
        details={
            "type": task_type,
            "known_by": [pool.name for pool in knowing],
            "types": {pool.name: _types(pool) for pool in able},
            "mixed_pools": mixed,
        },
    )


def _ask(facts: TaskFacts, act: str) -> str:
    """Return an act of operators as advice: an operator does it, anybody else asks for it."""
    return act if facts.audience.is_operator else f"ask an operator to {act}"


def _other_type(facts: TaskFacts, able: Sequence[PoolFacts]) -> str:
    """Return the advice for a misspelled type: the nearest type that a pool accepts."""
    known = {name for pool in able for name in pool.slots.capacity.types or ()}
    nearest = nearest_name(facts.task["type"], known)
    hint = f" with the type {nearest!r}" if nearest else " with another type"
    again = f"cancel it with `overnight cancel` and submit it again{hint}"
    return again if facts.audience.is_owner else f"its owner can {again}"


def _obstacle(facts: TaskFacts, pool: PoolFacts) -> str:
    """Return why a pool whose workers have the handler cannot run the task."""
    if not any(facts.task["type"] in (types or ()) for types in pool.slots.types):
        return "draining"
    return f"without {','.join(sorted(facts.needs - _capabilities(pool)))}"


def _accepts(pool: PoolFacts, task_type: str | None) -> bool:
    """Return whether a pool accepts a type; a pull agent may declare the only ones it accepts.

    None stands for any type: `explain_next` asks about no particular task.
    """
    types = pool.slots.capacity.types
    return types is None or task_type is None or task_type in types


def _types(pool: PoolFacts) -> list[str]:
    return sorted(pool.slots.capacity.types or ())


def _capabilities(pool: PoolFacts) -> frozenset[str]:
    """Return the capabilities that all workers of a pool have: any of them may get the task."""
    return frozenset(pool.slots.capacity.capabilities)
