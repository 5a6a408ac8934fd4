"""Which pools could run a task, and in words why none has a slot for it."""

from collections.abc import Iterator, Sequence

from overnight_server.domain.pauses import Scope
from overnight_server.domain.reasons import Code, Reason, at, listed
from overnight_server.explain.facts import Facts, Pause, Pool

# Of the workers that drain, how many are named.
NAMED = 3


def paused(pause: Pause, what: str, option: str) -> Reason:
    """Say what is paused, since when, and how whoever may end it does so."""
    by_user = "its user ends it with `overnight resume --me`, an operator with"
    ends = by_user if pause.is_own else "an operator ends it with"
    note = f" ({pause.note})" if pause.note else ""
    return Reason(
        Code.PAUSED,
        f"{what} paused since {at(pause.since)}{note}: {ends} `overnight resume {option}`",
        {
            "scope": pause.scope.value,
            "target": pause.target,
            "since": pause.since,
            "note": pause.note,
        },
    )


def pool_reasons(facts: Facts) -> Iterator[Reason]:
    """Say why no pool has a slot for the task, if none has."""
    live = [pool for pool in facts.pools if pool.is_live]
    able, fit = _able(facts), capable(facts)
    is_open = [pool for pool in fit if not pool.paused]
    if not live:
        yield _nobody(facts)
    elif not able:
        yield _incapable(facts, live)
    elif not fit:
        yield _unknown(facts)
    elif not is_open:
        named = {pool.name for pool in fit}
        for pause in facts.pauses:
            if pause.scope is Scope.POOL and pause.target in named:
                what = f"the pool {pause.target}, which could run it, is"
                yield paused(pause, what, f"--pool {pause.target}")
    elif not any(pool.has_room for pool in is_open):
        yield _busy(is_open)
    if facts.slots_max is not None and facts.pools:
        in_all_pools = max(pool.offer.in_all_pools for pool in facts.pools)
        if in_all_pools >= facts.slots_max:
            yield Reason(
                Code.SLOTS_MAX,
                f"{in_all_pools} of the {facts.slots_max} slots that all pools may use together are"
                " busy: one must come free",
                {"busy": in_all_pools, "slots_max": facts.slots_max},
            )


def _nobody(facts: Facts) -> Reason:
    draining = [agent for pool in facts.pools for agent in pool.draining]
    why = "no worker is alive: start one with `overnight worker`"
    if draining:
        one = len(draining) == 1
        why = (
            f"{'the only worker that lives drains' if one else 'all workers that live drain'}"
            f" ({listed(draining[:NAMED], len(draining))}) and"
            f" {'takes' if one else 'take'} on nothing new: `overnight drain {draining[0]} --undo`"
            " gives it work again, or start another with `overnight worker`"
        )
    return Reason(
        Code.NO_WORKER,
        why,
        {"pools": [pool.name for pool in facts.pools], "draining": draining},
    )


def _busy(pools: Sequence[Pool]) -> Reason:
    counted = [
        {"pool": pool.name, "busy": pool.offer.busy, "slots": pool.offer.slots} for pool in pools
    ]
    told = [f"{one['pool']} ({one['busy']} of {one['slots']} busy)" for one in counted]
    return Reason(
        Code.SLOTS,
        f"no slot is free in {listed(told)}: one must come free, or a worker join",
        {"pools": counted},
    )


def _incapable(facts: Facts, live: Sequence[Pool]) -> Reason:
    missing = {pool.name: sorted(facts.needs - _shared(pool)) for pool in live}
    mixed = [
        pool.name
        for pool in live
        if any(facts.needs <= set(worker) for worker in pool.offer.capabilities)
    ]
    nearest = min(missing, key=lambda name: (len(missing[name]), name))
    lacks = f"no pool offers all of {', '.join(sorted(facts.needs))}"
    if mixed:
        advice = (
            f"some workers of {listed(mixed)} do, but any worker of a pool may get its tasks:"
            " give those a pool of their own"
        )
    else:
        wants = ",".join(missing[nearest])
        advice = f"{nearest} lacks {wants}; start a worker with `--capabilities {wants}`"
    return Reason(
        Code.NO_CAPABLE_AGENT,
        f"{lacks}: {advice}",
        {"needs": sorted(facts.needs), "missing": missing, "mixed_pools": mixed},
    )


def _unknown(facts: Facts) -> Reason:
    """Say who knows a type that every pool which could run the task leaves to others."""
    type_, able = facts.task["type"], _able(facts)
    knowing = [pool for pool in facts.pools if pool.knowing]
    mixed = [pool.name for pool in able if any(type_ in types for types in pool.offer.types)]
    named = listed([pool.name for pool in able])
    if mixed:
        known = f"not all workers of {listed(mixed)} know the type {type_!r}"
        advice = (
            "any worker of a pool may get its tasks: give all of them the handler, or those that"
            " have it a pool of their own"
        )
    elif not knowing and not any(type_ in pool.offer.capacity.elsewhere for pool in able):
        known = f"{named} {'takes' if len(able) == 1 else 'take'} no tasks of the type {type_!r}"
        advice = "register an agent that does, or start a worker with the handler"
    elif not knowing:
        known = (
            f"the workers of {named} do not know the type {type_!r}, and the agents outside that"
            " do are away"
        )
        advice = f"start one of them again, or workers of {able[0].name} with the handler"
    else:
        others = [f"{pool.name} ({_hindrance(facts, pool)})" for pool in knowing]
        known = (
            f"the workers of {named} do not know the type {type_!r}, only those of"
            f" {listed(others)} do"
        )
        advice = f"undo that, or start workers of {able[0].name} with the handler"
    return Reason(
        Code.HANDLER,
        f"{known}: {advice}",
        {
            "type": type_,
            "known_by": [pool.name for pool in knowing],
            "types": {pool.name: _types(pool) for pool in able},
            "mixed_pools": mixed,
        },
    )


def _hindrance(facts: Facts, pool: Pool) -> str:
    """Say why a pool whose workers know a type cannot run the task."""
    if not any(facts.task["type"] in types for types in pool.offer.types):
        return "draining"
    return f"without {','.join(sorted(facts.needs - _shared(pool)))}"


def _able(facts: Facts) -> list[Pool]:
    """Return the pools that live and offer all capabilities the task requires."""
    return [pool for pool in facts.pools if pool.is_live and facts.needs <= _shared(pool)]


def capable(facts: Facts) -> list[Pool]:
    """Return those of them that do not leave the task's type to others."""
    return [
        pool
        for pool in _able(facts)
        if facts.task["type"] not in pool.offer.capacity.elsewhere
        and _takes(pool, facts.task["type"])
    ]


def _takes(pool: Pool, kind: str) -> bool:
    """Whether a pool takes tasks of a type: agents outside may name the only ones they take."""
    types = pool.offer.capacity.types
    return types is None or kind in types


def _types(pool: Pool) -> list[str]:
    return sorted(set.intersection(*map(set, pool.offer.types)))


def _shared(pool: Pool) -> frozenset[str]:
    """Return what all of a pool's workers can do: any of them may get the message."""
    return frozenset(pool.offer.capacity.capabilities)
