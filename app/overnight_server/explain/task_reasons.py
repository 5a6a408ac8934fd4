"""The reasons why a task is not running: one function per condition of the gate.

`task_reasons` evaluates the conditions that do not depend on other tasks in the queue. It is pure
and takes facts that were read at one instant. Only if it finds no reason does the order among
tasks matter; `explain/next_pass.py` reads that order and `order_reasons` describes it.

**What no reason means.** A ready task has no reason exactly if, were the dispatchers to pass over
the pools now and nobody else to act, the next pass of at least one pool would claim it. Each pool
is considered as if it came first. A pass fills the free slots of a pool once: it shares them among
the users, takes one of several tasks that need the same lock, reserves the month's hours task by
task, and stops when slots, room or hours are used up. A task that would only be claimed by a later
pass has the reason `behind`. Lanes that another transaction has locked at this instant count as
unlocked. Slots that workers refill themselves when a run ends do not count: they are not free now.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from overnight.models.explain import Reason
from overnight_server.domain.budgets import Budget
from overnight_server.domain.graphs import CancelReason
from overnight_server.domain.ids import show_task
from overnight_server.domain.lifecycle import ACTIVE, FINAL, State
from overnight_server.domain.reasons import ReasonCode, format_duration, format_instant, join_names
from overnight_server.explain.edge_reasons import cancelled_by_parent_reason, dependency_reason
from overnight_server.explain.facts import PoolFacts, TaskFacts
from overnight_server.explain.next_pass import PassOutcome, Stage
from overnight_server.explain.pool_reasons import capable_pools, pause_reason, pool_reasons

# How a message names each budget.
BUDGET_NAME = {
    Budget.TASK: "its own cost limit",
    Budget.DAG: "its graph's budget",
    Budget.AGENT: "the budget of the agents that could run it",
    Budget.NIGHT: "the night's budget",
}
# How a message says what raises each budget.
HOW_TO_RAISE = {
    Budget.TASK: "ask an operator to approve more with `overnight approve`",
    Budget.DAG: "ask an operator to raise it with `overnight budget dag`",
    Budget.AGENT: "ask an operator to raise it with `overnight budget agent`",
    Budget.NIGHT: "ask an operator to raise it with `overnight budget user`",
}


def task_reasons(facts: TaskFacts) -> list[Reason]:
    """Return every reason that does not depend on the other tasks in the queue."""
    state = State(facts.task["state"])
    if state in FINAL:
        return [_final_state(facts)]
    if state in ACTIVE:
        return [_active_state(facts.task)]
    conditions = (
        _not_ready,
        _deadline,
        _pauses,
        _window,
        _plan_concurrency,
        _monthly_hours,
        _budgets,
        _locks,
        pool_reasons,
    )
    return [reason for condition in conditions for reason in condition(facts)]


def open_pools(facts: TaskFacts) -> list[PoolFacts]:
    """Return the pools whose next pass could claim the task."""
    return [
        pool for pool in capable_pools(facts) if not pool.paused and pool.slots.capacity.free > 0
    ]


def order_reasons(facts: TaskFacts, outcomes: Sequence[PassOutcome]) -> list[Reason]:
    """Return the reason `behind` from the pools' predicted passes; nothing if one takes the task.

    The pool in which the task comes furthest is described.
    """
    best = max(outcomes, key=lambda outcome: outcome.stage, default=None)
    if best is None or best.stage is Stage.TAKEN:
        return []
    own_tasks = [show_task(task_id) for task_id in best.before]
    return [
        Reason(
            code=ReasonCode.BEHIND,
            message=_describe_order(facts, best, own_tasks),
            details={
                "pool": best.pool,
                "free": best.free,
                "for": _limiting_stage(facts, best).name.lower(),
                "own_tasks_first": own_tasks,
                "place": best.place,
            },
        )
    ]


def _describe_order(facts: TaskFacts, best: PassOutcome, own_tasks: list[str]) -> str:
    verb = "goes" if len(own_tasks) == 1 else "go"
    ahead = f"{join_names(own_tasks)} {verb} first" if own_tasks else "others go first"
    free = "1 slot is free" if best.free == 1 else f"{best.free} slots are free"
    match _limiting_stage(facts, best):
        case Stage.ROOM:
            allowed = f"your plan has room for {_room(facts)} more at once"
            return f"{allowed}, and {ahead}: wait, or make this task more urgent"
        case Stage.LOCK:
            return f"{ahead} and may need the same locks: the next pass checks again"
        case Stage.HOURS:
            return f"{ahead} and use up the month's hours: lower its timeout or wait"
        case Stage.MONEY:
            return f"{ahead} and use up the budget: raise it, or wait for their actual cost"
        case Stage.SLOTS if best.place is None:
            return f"{free} in the pool {best.pool} for all users, and of your tasks {ahead}"
        case Stage.SLOTS:
            return (
                f"{free} in the pool {best.pool} and the task is number {best.place} in line:"
                " users with fewer running tasks, and your more urgent ones, go first"
            )
        case _ if best.pool in facts.task["skipped_by_pools"]:
            return (
                f"the pool {best.pool} found nothing to start in your queue and checks it again"
                " when a task in it or a worker changes"
            )
        case _:
            return f"the next free slots of the pool {best.pool} go to users served longer ago"


def _limiting_stage(facts: TaskFacts, best: PassOutcome) -> Stage:
    """Return the stage at which the task stops.

    A pass may give a user less room than the plan does, as a share of the slots. Then the slots
    are what limits the task.
    """
    is_share = best.stage is Stage.ROOM and best.room is not None and best.room < _room(facts)
    return Stage.SLOTS if is_share else best.stage


def _room(facts: TaskFacts) -> int:
    room: int = facts.task["max_active"] - facts.task["active"]
    return room


def _not_ready(facts: TaskFacts) -> Iterator[Reason]:
    task = facts.task
    if task["unmet"]:
        yield dependency_reason(task, facts.parents)
    elif task.get("awaits_start"):
        start_at = task["start_at"]
        due = "is due since" if start_at <= task["now"] else "may not start before"
        yield Reason(
            code=ReasonCode.START_AT,
            message=f"the task {due} {format_instant(start_at)}, as it was submitted",
            details={"start_at": start_at},
        )
    elif task["state"] == State.RETRYING:
        retry_at, attempts = task["retry_at"], f"{task['attempts']} of {task['max_attempts']}"
        due = "is due again since" if retry_at <= task["now"] else "is tried again at"
        yield Reason(
            code=ReasonCode.RETRY_AT,
            message=f"{attempts} attempts are spent ({task['failure_reason'] or 'failed'});"
            f" the task {due} {format_instant(retry_at)}",
            details={
                "retry_at": retry_at,
                "attempts": task["attempts"],
                "max_attempts": task["max_attempts"],
                "failure_reason": task["failure_reason"],
            },
        )
    elif task["awaits_budget"] is not None:
        yield _approval(task)
    elif task["state"] != State.READY:
        yield Reason(
            code=ReasonCode.STATE,
            message=f"the task is {task['state']}: it is not ready to start",
            details={"state": task["state"], "since": task["updated_at"]},
        )


def _approval(task: Mapping[str, Any]) -> Reason:
    budget = Budget(task["awaits_budget"])
    spent = task["cost_usd"]
    night_ends_at = task["night_ends_at"]
    next_night = (
        "; without approval it continues when the next night begins at"
        f" {format_instant(night_ends_at)}"
        if budget is Budget.NIGHT and night_ends_at is not None
        else ""
    )
    return Reason(
        code=ReasonCode.APPROVAL,
        message=f"it has cost ${spent:.2f} and reached {BUDGET_NAME[budget]}: ask an operator, who"
        f" lets it continue with `overnight approve` or ends it with `overnight stop`{next_night}",
        details={"budget": budget.value, "cost_usd": float(spent), "since": task["updated_at"]},
    )


def _budgets(facts: TaskFacts) -> Iterator[Reason]:
    """Yield each budget that cannot pay for the task; one that is used up pays for nothing."""
    task = facts.task
    if task["awaits_budget"] is not None:
        return
    needs, ceiling, spent = task["needs_usd"], task["max_cost_usd"], task["cost_usd"]
    dag, night = task["dag_left_usd"], task["night_left_usd"]
    left_by_pool = [
        pool.slots.capacity.usd_left for pool in capable_pools(facts) if not pool.paused
    ]
    limited = [left for left in left_by_pool if left is not None]
    agent = max(limited) if limited and len(limited) == len(left_by_pool) else None
    if ceiling is not None and 0 < spent >= ceiling:
        yield _budget_reason(task, Budget.TASK, ceiling - spent, ceiling)
    if dag is not None and (dag <= 0 or needs > dag):
        yield _budget_reason(task, Budget.DAG, dag, task["dag_limit_usd"])
    if agent is not None and (agent <= 0 or needs > agent):
        yield _budget_reason(task, Budget.AGENT, agent)
    if night is not None and (night <= 0 or needs > night):
        yield _budget_reason(task, Budget.NIGHT, night, task["night_limit_usd"])


def _budget_reason(
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
    return Reason(
        code=ReasonCode.BUDGET,
        message=_describe_shortage(task, budget, left, limit),
        details=details,
    )


def _describe_shortage(
    task: Mapping[str, Any], budget: Budget, left: Decimal, limit: Decimal | None
) -> str:
    needs, name = task["needs_usd"], BUDGET_NAME[budget]
    if limit and needs > limit:
        return (
            f"needs ${needs:.2f}, more than the whole of {name}, ${limit:.2f}: lower its estimate,"
            f" or {HOW_TO_RAISE[budget]}{_without_answer(task, budget)}"
        )
    if limit == 0:
        shortage = f"{name} is $0.00: it pays for nothing"
    elif left <= 0:
        shortage = f"{name} is used up or reserved for running tasks"
        shortage += f", ${limit:.2f}" if limit is not None else ""
    else:
        shortage = f"${left:.2f} is left of {name}"
    need = f"needs ${needs:.2f}, and " if needs else ""
    next_night = (
        f"the next night begins at {format_instant(task['night_ends_at'])}, or "
        if budget is Budget.NIGHT and limit
        else ""
    )
    return f"{need}{shortage}: {next_night}{HOW_TO_RAISE[budget]}{_without_answer(task, budget)}"


def _without_answer(task: Mapping[str, Any], budget: Budget) -> str:
    """Return what happens to a ready task that asks for a budget and gets no answer."""
    if task.get("requested_budget") != budget.value:
        return ""
    listed = "; it is in `overnight approvals list`, and without an answer it"
    if budget is Budget.NIGHT and task["needs_usd"] <= task["night_limit_usd"]:
        return f"{listed} starts in the next night"
    return f"{listed} waits, and its graph does not end"


def _deadline(facts: TaskFacts) -> Iterator[Reason]:
    deadline = facts.task["deadline_at"]
    if deadline is not None and deadline <= facts.task["now"]:
        yield Reason(
            code=ReasonCode.DEADLINE,
            message=f"its deadline {format_instant(deadline)} has passed: the next sweep ends it;"
            " submit it again with a later one",
            details={"deadline_at": deadline},
        )


def _pauses(facts: TaskFacts) -> Iterator[Reason]:
    for pause in facts.pauses:
        scope = pause.pause.scope
        if scope == "all":
            yield pause_reason(pause, "everything is", "--all")
        elif scope == "user" and facts.task["paused"]:
            yield pause_reason(pause, "the user is", f"--user {pause.pause.target}")


def _window(facts: TaskFacts) -> Iterator[Reason]:
    task = facts.task
    carried = task["carry_over_until"]
    is_late = carried is not None and task["created_at"] >= carried
    if not task["window_closed"] and not is_late:
        return
    opens_at = task["window_changes_at"]
    details = {"opens_at": opens_at, "window": facts.window}
    if not facts.zone_is_known:
        yield Reason(
            code=ReasonCode.WINDOW,
            message=f"the night window {facts.window} stays closed, because this server does not"
            " know its time zone: an operator can set another window",
            details=details | {"opens_at": None},
        )
        return
    late = "; only tasks that were waiting when it closed may start before" if is_late else ""
    yield Reason(
        code=ReasonCode.WINDOW,
        message=f"the night window {facts.window} opens at {format_instant(opens_at)}{late}",
        details=details,
    )


def _plan_concurrency(facts: TaskFacts) -> Iterator[Reason]:
    active, most = facts.task["active"], facts.task["max_active"]
    if active < most:
        return
    disabled_at = facts.task["disabled_at"]
    if disabled_at is not None:
        message = (
            f"the user is disabled since {format_instant(disabled_at)}: an operator enables the"
            " user again with"
            " `overnight user enable`"
        )
    elif most == 0:
        message = (
            "your limit is 0 tasks at once: an operator raises it with `overnight user limits`"
        )
    else:
        allowed = "the 1 task" if most == 1 else f"the {most} tasks"
        verb = "is" if active == 1 else "are"
        message = (
            f"{active} of {allowed} your plan allows at once {verb} running: one must end first,"
            " or an operator raise the limit"
        )
    yield Reason(
        code=ReasonCode.PLAN_CONCURRENCY,
        message=message,
        details={"active": active, "max_active": most},
    )


def _monthly_hours(facts: TaskFacts) -> Iterator[Reason]:
    task = facts.task
    limit, needs = task["limit_seconds"], task["granted"]
    if limit is None:
        return
    used, reserved = float(task["used_seconds"]), task["reserved_seconds"]
    left = limit - used - reserved
    if needs <= left:
        return
    resets_at = task["resets_at"]
    if limit == 0:
        message = (
            "your limit is 0 hours a month: an operator raises it with `overnight user limits`"
        )
    elif needs > limit:
        message = (
            f"needs {format_duration(needs)}, more than the {format_duration(limit)} of a whole"
            " month: lower its"
            " timeout"
        )
    elif used >= limit:
        message = (
            f"the month's {format_duration(limit)} are used up: the next month begins at"
            f" {format_instant(resets_at)}"
        )
    elif reserved and needs <= left + reserved:
        message = (
            f"needs {format_duration(needs)}, {format_duration(left)} left until"
            f" {format_instant(resets_at)}: lower its"
            f" timeout, or wait for the {format_duration(reserved)} that are reserved for running"
            " tasks"
        )
    else:
        message = (
            f"needs {format_duration(needs)}, {format_duration(left)} left until"
            f" {format_instant(resets_at)}: lower its timeout"
            " or wait"
        )
    yield Reason(
        code=ReasonCode.MONTHLY_HOURS,
        message=message,
        details={
            "needs_seconds": needs,
            "left_seconds": max(0.0, left),
            "used_seconds": used,
            "reserved_seconds": reserved,
            "limit_seconds": limit,
            "resets_at": resets_at,
        },
    )


def _locks(facts: TaskFacts) -> Iterator[Reason]:
    for lock in facts.locks:
        holder = show_task(lock["task_id"])
        yield Reason(
            code=ReasonCode.LOCK,
            message=f"{lock['key']} is held by {holder} since {format_instant(lock['since'])}:"
            " this task can start when that one ends",
            details={
                "key": lock["key"],
                "held_by": holder,
                "since": lock["since"],
                "expires_at": lock["expires_at"],
            },
        )


def _active_state(task: Mapping[str, Any]) -> Reason:
    state, since = task["state"], task["started_at"] or task["claimed_at"]
    phases = {
        State.CLAIMED: "is on its way to a worker",
        State.VALIDATING: "has run and is checked",
    }
    phase = phases.get(State(state), "is running")
    cancel_requested_at = task["cancel_requested_at"]
    stop = (
        f"; it was asked to stop at {format_instant(cancel_requested_at)}"
        if cancel_requested_at
        else ""
    )
    return Reason(
        code=ReasonCode.STATE,
        message=f"it {phase} since {format_instant(since)}, claimed by {task['claimed_by']} in the"
        f" pool {task['pool']}{stop}",
        details={
            "state": state,
            "since": since,
            "held_by": task["claimed_by"],
            "pool": task["pool"],
            "cancel_requested_at": cancel_requested_at,
        },
    )


def _final_state(facts: TaskFacts) -> Reason:
    task = facts.task
    state, failure = State(task["state"]), task["failure_reason"]
    if failure in set(CancelReason) and facts.parents:
        return cancelled_by_parent_reason(task, facts.parents)
    end = {
        State.COMPLETED: "completed",
        State.DEAD_LETTERED: "failed for good",
        State.CANCELLED: "was cancelled",
    }[state]
    because = f" ({failure})" if failure else ""
    advice = {
        State.DEAD_LETTERED: ": run it again with `overnight retry`",
        State.CANCELLED: ": run it again with `overnight retry` if it is still needed",
    }.get(state, "")
    return Reason(
        code=ReasonCode.STATE,
        message=f"it {end} at {format_instant(task['finished_at'])}{because}{advice}",
        details={"state": state.value, "since": task["finished_at"], "failure_reason": failure},
    )
