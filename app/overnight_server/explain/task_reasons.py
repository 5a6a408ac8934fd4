"""Why a task is not running: the gate's conditions, each judged by itself and said in words.

`held_back` judges what holds a task back whoever else waits; it is pure, and takes the facts as
they were read at one instant. Only if it finds nothing does the order matter, which is not judged
here but looked at (`app/overnight_server/explain/next_pass.py`), and `behind` says what was seen.

**What "nothing" means.** A ready task has no reason exactly if, were the dispatchers to pass over
the pools now and nobody else to act, the next pass of at least one pool would claim it. Each pool
is looked at as if it came first. A pass fills the pool's free slots once: it shares them among the
users, takes one task of those that want the same lock, promises the month's hours one task after
the other, and stops when slots, room or hours are used up. Whoever would go in the pass after it
is `behind`. Lanes that somebody holds at this instant count as free. Slots that workers refill
themselves when they finish are not looked at: those are not free now.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from overnight_server.domain.budgets import Budget
from overnight_server.domain.graphs import Because
from overnight_server.domain.ids import show_task
from overnight_server.domain.lifecycle import ACTIVE, FINAL, State
from overnight_server.domain.pauses import Scope
from overnight_server.domain.reasons import Code, Reason, at, lasting, listed
from overnight_server.explain.edge_reasons import blocked, in_vain
from overnight_server.explain.facts import Facts, Pool
from overnight_server.explain.next_pass import Outcome, Stage
from overnight_server.explain.pool_reasons import capable, paused, pool_reasons

# What a budget is the budget of, in a sentence.
OF = {
    Budget.TASK: "its own ceiling",
    Budget.DAG: "its graph's budget",
    Budget.AGENT: "the budget of the agents that could run it",
    Budget.NIGHT: "the night's budget",
}


def held_back(facts: Facts) -> list[Reason]:
    """Return everything that holds a task back, whoever else waits."""
    state = State(facts.task["state"])
    if state in FINAL:
        return [_ended(facts)]
    if state in ACTIVE:
        return [_active(facts.task)]
    judges = (_waits, _deadline, _pauses, _window, _plan, _hours, _money, _locks, pool_reasons)
    return [reason for judge in judges for reason in judge(facts)]


def open_pools(facts: Facts) -> list[Pool]:
    """Return the pools whose next pass could take the task."""
    return [pool for pool in capable(facts) if not pool.paused and pool.offer.capacity.free > 0]


def behind(facts: Facts, outcomes: Sequence[Outcome]) -> list[Reason]:
    """Say who goes first, from what the next pass of each pool would do; nothing if one takes it.

    The pool in which the task comes furthest speaks for all.
    """
    best = max(outcomes, key=lambda one: one.stage, default=None)
    if best is None or best.stage is Stage.TAKEN:
        return []
    own = [show_task(task) for task in best.before]
    details = {
        "pool": best.pool,
        "free": best.free,
        "for": _sought(facts, best).name.lower(),
        "own_tasks_first": own,
        "place": best.place,
    }
    return [Reason(Code.BEHIND, _first(facts, best, own), details)]


def _first(facts: Facts, best: Outcome, own: list[str]) -> str:
    goes = "goes" if len(own) == 1 else "go"
    ahead = f"{listed(own)} {goes} first" if own else "others go first"
    free = "1 slot is free" if best.free == 1 else f"{best.free} slots are free"
    match _sought(facts, best):
        case Stage.ROOM:
            allowed = f"your plan has room for {_room(facts)} more at once"
            return f"{allowed}, and {ahead}: wait, or make this task more urgent"
        case Stage.LOCK:
            return f"{ahead} and may need the same locks: the next pass looks again"
        case Stage.HOURS:
            return f"{ahead} and use up the month's hours: lower its timeout or wait"
        case Stage.MONEY:
            return f"{ahead} and use up the budget: raise it, or wait for what they really cost"
        case Stage.SLOTS if best.place is None:
            return f"{free} in the pool {best.pool} for all who wait, and of yours {ahead}"
        case Stage.SLOTS:
            return (
                f"{free} in the pool {best.pool} and the task is number {best.place} in line:"
                " users with fewer running tasks, and your more urgent ones, go first"
            )
        case _ if best.pool in facts.task["skipped_by_pools"]:
            return (
                f"the pool {best.pool} found nothing to start in your queue and looks again when"
                " something in it or a worker changes"
            )
        case _:
            return f"the next free slots of the pool {best.pool} go to users served longer ago"


def _sought(facts: Facts, best: Outcome) -> Stage:
    """Return what others go first for; a user's room in a pass may be a mere share of its slots."""
    is_share = best.stage is Stage.ROOM and best.room is not None and best.room < _room(facts)
    return Stage.SLOTS if is_share else best.stage


def _room(facts: Facts) -> int:
    room: int = facts.task["max_active"] - facts.task["active"]
    return room


def _waits(facts: Facts) -> Iterator[Reason]:
    task = facts.task
    if task["unmet"]:
        yield blocked(task, facts.parents)
    elif task["state"] == State.RETRYING:
        retry, attempts = task["retry_at"], f"{task['attempts']} of {task['max_attempts']}"
        due = "is due again since" if retry <= task["now"] else "is tried again at"
        yield Reason(
            Code.RETRY_AT,
            f"{attempts} attempts are spent ({task['failure_reason'] or 'failed'});"
            f" the task {due} {at(retry)}",
            {
                "retry_at": retry,
                "attempts": task["attempts"],
                "max_attempts": task["max_attempts"],
                "failure_reason": task["failure_reason"],
            },
        )
    elif task["awaits_budget"] is not None:
        yield _approval(task)
    elif task["state"] != State.READY:
        yield Reason(
            Code.STATE,
            f"the task is {task['state']}: it is not ready to start",
            {"state": task["state"], "since": task["updated_at"]},
        )


def _approval(task: Mapping[str, Any]) -> Reason:
    budget = Budget(task["awaits_budget"])
    spent = task["cost_usd"]
    return Reason(
        Code.APPROVAL,
        f"it has cost ${spent:.2f} and reached {OF[budget]}: ask an operator, who lets it go on"
        f" with `overnight approve` or ends it with `overnight stop`{_by_itself(task, budget)}",
        {"budget": budget.value, "cost_usd": float(spent), "since": task["updated_at"]},
    )


def _by_itself(task: Mapping[str, Any], budget: Budget) -> str:
    if budget is not Budget.NIGHT or task["night_ends_at"] is None:
        return ""
    return f"; by itself it goes on when the next night begins at {at(task['night_ends_at'])}"


def _money(facts: Facts) -> Iterator[Reason]:
    """Ask the budgets as the gate does: one that is used up pays for nothing."""
    task = facts.task
    if task["awaits_budget"] is not None:
        return
    needs, ceiling, spent = task["needs_usd"], task["max_cost_usd"], task["cost_usd"]
    dag, night = task["dag_left_usd"], task["night_left_usd"]
    purses = [pool.offer.capacity.usd_left for pool in capable(facts) if not pool.paused]
    limited = [left for left in purses if left is not None]
    agent = max(limited) if limited and len(limited) == len(purses) else None
    if ceiling is not None and 0 < spent >= ceiling:
        yield _unpaid(task, Budget.TASK, ceiling - spent, ceiling)
    if dag is not None and (dag <= 0 or needs > dag):
        yield _unpaid(task, Budget.DAG, dag, task["dag_limit_usd"])
    if agent is not None and (agent <= 0 or needs > agent):
        yield _unpaid(task, Budget.AGENT, agent)
    if night is not None and (night <= 0 or needs > night):
        yield _unpaid(task, Budget.NIGHT, night, task["night_limit_usd"])


def _unpaid(
    task: Mapping[str, Any], budget: Budget, left: Decimal, limit: Decimal | None = None
) -> Reason:
    needs: Decimal = task["needs_usd"]
    details = {
        "budget": budget.value,
        "needs_usd": float(needs),
        "left_usd": float(left),
        "limit_usd": None if limit is None else float(limit),
    }
    if budget is Budget.NIGHT:
        details["next_night_at"] = task["night_ends_at"]
    wants = f"needs ${needs:.2f}, and " if needs else ""
    if limit == 0:
        stands = f"{OF[budget]} is $0.00: it pays for nothing"
    elif limit is not None and needs > limit:
        return Reason(
            Code.BUDGET,
            f"needs ${needs:.2f}, more than the whole of {OF[budget]}, ${limit:.2f}: lower its"
            f" estimate, or {_raising(budget)}",
            details,
        )
    elif left <= 0:
        stands = f"{OF[budget]} is used up or promised to runs"
        stands += f", ${limit:.2f}" if limit is not None else ""
    else:
        stands = f"${left:.2f} is left of {OF[budget]}"
    if budget is Budget.NIGHT and limit:
        wait = f"the next night begins at {at(task['night_ends_at'])}, or "
    else:
        wait = ""
    return Reason(Code.BUDGET, f"{wants}{stands}: {wait}{_raising(budget)}", details)


def _raising(budget: Budget) -> str:
    return {
        Budget.TASK: "ask an operator to approve more with `overnight approve`",
        Budget.DAG: "ask an operator to raise it with `overnight budget dag`",
        Budget.AGENT: "ask an operator to raise it with `overnight budget agent`",
        Budget.NIGHT: "ask an operator to raise it with `overnight budget user`",
    }[budget]


def _deadline(facts: Facts) -> Iterator[Reason]:
    deadline = facts.task["deadline_at"]
    if deadline is not None and deadline <= facts.task["now"]:
        yield Reason(
            Code.DEADLINE,
            f"its deadline {at(deadline)} has passed: the next sweep ends it; submit it again"
            " with a later one",
            {"deadline_at": deadline},
        )


def _pauses(facts: Facts) -> Iterator[Reason]:
    for pause in facts.pauses:
        if pause.scope is Scope.ALL:
            yield paused(pause, "everything is", "--all")
        elif pause.scope is Scope.USER and facts.task["paused"]:
            yield paused(pause, "the user is", f"--user {pause.target}")


def _window(facts: Facts) -> Iterator[Reason]:
    task = facts.task
    carried = task["carried_until"]
    is_late = carried is not None and task["created_at"] >= carried
    if not task["window_closed"] and not is_late:
        return
    opens = task["window_turns_at"]
    details = {"opens_at": opens, "window": facts.window}
    if not facts.zone_is_known:
        yield Reason(
            Code.WINDOW,
            f"the night window {facts.window} stays shut, because this server cannot read its"
            " time zone: an operator can set another",
            details | {"opens_at": None},
        )
        return
    late = "; what was waiting at closing time may still start" if is_late else ""
    yield Reason(
        Code.WINDOW, f"the night window {facts.window} opens at {at(opens)}{late}", details
    )


def _plan(facts: Facts) -> Iterator[Reason]:
    active, most = facts.task["active"], facts.task["max_active"]
    if active < most:
        return
    shut = facts.task["disabled_at"]
    if shut is not None:
        said = (
            f"the user is disabled since {at(shut)}: an operator lets them in again with"
            " `overnight user enable`"
        )
    elif most == 0:
        said = "you may run no task at all: an operator can change it with `overnight user limits`"
    else:
        allowed = "the 1 task" if most == 1 else f"the {most} tasks"
        are = "is" if active == 1 else "are"
        said = (
            f"{active} of {allowed} your plan allows at once {are} running: one must end first, or"
            " the plan be raised"
        )
    yield Reason(Code.PLAN_CONCURRENCY, said, {"active": active, "max_active": most})


def _hours(facts: Facts) -> Iterator[Reason]:
    task = facts.task
    limit, needs = task["limit_seconds"], task["granted"]
    if limit is None:
        return
    used, reserved = float(task["used_seconds"]), task["reserved_seconds"]
    left = limit - used - reserved
    if needs <= left:
        return
    resets = task["resets_at"]
    if limit == 0:
        said = "you have no hours at all: an operator can give some with `overnight user limits`"
    elif needs > limit:
        said = (
            f"needs {lasting(needs)}, more than the {lasting(limit)} of a whole month: lower its"
            " timeout"
        )
    elif used >= limit:
        said = f"the month's {lasting(limit)} are used up: they come back at {at(resets)}"
    elif reserved and needs <= left + reserved:
        said = (
            f"needs {lasting(needs)}, {lasting(left)} left until {at(resets)}: lower its timeout,"
            f" or wait for what is promised to running tasks ({lasting(reserved)})"
        )
    else:
        said = (
            f"needs {lasting(needs)}, {lasting(left)} left until {at(resets)}: lower its timeout"
            " or wait"
        )
    yield Reason(
        Code.MONTHLY_HOURS,
        said,
        {
            "needs_seconds": needs,
            "left_seconds": max(0.0, left),
            "used_seconds": used,
            "reserved_seconds": reserved,
            "limit_seconds": limit,
            "resets_at": resets,
        },
    )


def _locks(facts: Facts) -> Iterator[Reason]:
    for lock in facts.locks:
        holder = show_task(lock["task_id"])
        yield Reason(
            Code.LOCK,
            f"{lock['key']} is held by {holder} since {at(lock['since'])}: it starts when that one"
            " ends",
            {
                "key": lock["key"],
                "held_by": holder,
                "since": lock["since"],
                "expires_at": lock["expires_at"],
            },
        )


def _active(task: Mapping[str, Any]) -> Reason:
    state, since = task["state"], task["started_at"] or task["claimed_at"]
    where = f"by {task['claimed_by']} in the pool {task['pool']}"
    said = {State.CLAIMED: "is on its way to a worker", State.VALIDATING: "has run and is checked"}
    told = said.get(State(state), "is running")
    asked = task["cancel_requested_at"]
    stop = f"; it was asked to stop at {at(asked)}" if asked else ""
    return Reason(
        Code.STATE,
        f"it {told} since {at(since)}, held {where}{stop}",
        {
            "state": state,
            "since": since,
            "held_by": task["claimed_by"],
            "pool": task["pool"],
            "cancel_requested_at": asked,
        },
    )


def _ended(facts: Facts) -> Reason:
    task = facts.task
    state, why = task["state"], task["failure_reason"]
    because = f" ({why})" if why else ""
    if why in set(Because) and facts.parents:
        return in_vain(task, facts.parents)
    again = {
        State.DEAD_LETTERED: ": an operator can retry it with `overnight dead retry`",
        State.CANCELLED: ": submit it again if it is still wanted",
    }.get(State(state), "")
    return Reason(
        Code.STATE,
        f"it ended as {state} at {at(task['finished_at'])}{because}{again}",
        {"state": state, "since": task["finished_at"], "failure_reason": why},
    )
