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
from overnight_server.domain.reasons import (
    ReasonCode,
    ReasonScope,
    format_duration,
    format_instant,
    format_rest,
    join_names,
)
from overnight_server.explain.edge_reasons import cancelled_by_parent_reason, dependency_reason
from overnight_server.explain.facts import PoolFacts, TaskFacts
from overnight_server.explain.next_pass import PassOutcome, Stage
from overnight_server.explain.pool_reasons import capable_pools, pause_reason, pool_reasons

SCOPES = list(ReasonScope)
# How a message names each budget.
BUDGET_NAME = {
    Budget.TASK: "its own cost limit",
    Budget.DAG: "its graph's budget",
    Budget.AGENT: "the budget of the agents that could run it",
    Budget.NIGHT: "the night's budget",
}
# What each budget limits.
BUDGET_SCOPE = {
    Budget.TASK: ReasonScope.TASK,
    Budget.DAG: ReasonScope.TASK,
    Budget.AGENT: ReasonScope.DEPLOYMENT,
    Budget.NIGHT: ReasonScope.USER,
}
# The command with which an operator raises each budget.
RAISED_BY = {
    Budget.DAG: "overnight budget dag",
    Budget.AGENT: "overnight budget agent",
    Budget.NIGHT: "overnight budget user",
}


def task_reasons(facts: TaskFacts) -> list[Reason]:
    """Return every reason that does not depend on the other tasks in the queue.

    Those that concern the task come first, then those of its user, then those of the deployment.
    """
    state = State(facts.task["state"])
    if state in FINAL:
        return [_final_state(facts)]
    if state in ACTIVE:
        return [_active_state(facts.task)]
    conditions = (
        _not_ready,
        _deadline,
        _budgets,
        _locks,
        _plan_concurrency,
        _monthly_hours,
        _window,
        pool_reasons,
        _pauses,
    )
    reasons = [reason for condition in conditions for reason in condition(facts)]
    # A stable sort: budgets and pauses are of several scopes.
    return sorted(reasons, key=lambda reason: SCOPES.index(ReasonScope(reason.scope)))


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
            scope=ReasonScope.DEPLOYMENT
            if _limiting_stage(facts, best) in {Stage.LANE, Stage.SLOTS}
            else ReasonScope.USER,
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
            allowed = f"{facts.audience.whose} plan has room for {_room(facts)} more at once"
            return f"{allowed}, and {ahead}: wait, or {_more_urgent(facts)}"
        case Stage.LOCK:
            return f"{ahead} and may need the same locks: the next pass checks again"
        case Stage.HOURS:
            return f"{ahead} and use up the month's hours: wait, or {_lower_timeout(facts)}"
        case Stage.MONEY:
            return f"{ahead} and use up the budget: wait until their actual cost is known"
        case Stage.SLOTS if best.place is None:
            whose = facts.audience.whose
            return f"{free} in the pool {best.pool} for all users, and of {whose} tasks {ahead}"
        case Stage.SLOTS:
            return (
                f"{free} in the pool {best.pool} and the task is number {best.place} in line:"
                " users with fewer running tasks, and more urgent tasks of the same user, go first"
            )
        case _ if best.pool in facts.task["skipped_by_pools"]:
            return (
                f"the pool {best.pool} found nothing to start in {facts.audience.whose} queue and"
                " checks it again"
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


def _more_urgent(facts: TaskFacts) -> str:
    return facts.audience.advice_for_owner(
        "make this task more urgent", "overnight edit --priority"
    )


def _lower_timeout(facts: TaskFacts) -> str:
    return facts.audience.advice_for_owner("lower its timeout", "overnight edit --timeout")


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
            scope=ReasonScope.TASK,
            message=f"the task {due} {format_instant(start_at)}: wait, or "
            + facts.audience.advice_for_owner("change its start", "overnight edit --at"),
            details={"start_at": start_at},
        )
    elif task["state"] == State.RETRYING:
        retry_at, attempts = task["retry_at"], f"{task['attempts']} of {task['max_attempts']}"
        due = "is due again since" if retry_at <= task["now"] else "is tried again at"
        yield Reason(
            code=ReasonCode.RETRY_AT,
            scope=ReasonScope.TASK,
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
        yield _approval(facts)
    elif task["state"] != State.READY:
        yield Reason(
            code=ReasonCode.STATE,
            scope=ReasonScope.TASK,
            message=f"the task is {task['state']}: it is not ready to start",
            details={"state": task["state"], "since": task["updated_at"]},
        )


def _approval(facts: TaskFacts) -> Reason:
    task = facts.task
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
        scope=ReasonScope.TASK,
        message=f"it has cost ${spent:.2f} and reached {BUDGET_NAME[budget]}: "
        + _approve_or_ask(facts, "let it continue")
        + f", or end it with `overnight stop{'' if facts.audience.is_owner else ' --all-users'}`"
        f"{next_night}",
        details={
            "budget": budget.value,
            "cost_usd": float(spent),
            "needs_usd": float(task["needs_usd"]),
            "raised_by": "operator" if task["budget_by_operator"] else "owner",
            "since": task["updated_at"],
        },
    )


def _approve_or_ask(facts: TaskFacts, act: str) -> str:
    """Return who can approve more money: what an operator set, only an operator raises."""
    audience = facts.audience
    if audience.is_owner and (audience.is_operator or not facts.task["budget_by_operator"]):
        return f"{act} with `overnight approve`"
    return audience.advice_for_operator(act, "overnight approve --all-users")


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
        yield _budget_reason(facts, Budget.TASK, ceiling - spent, ceiling)
    if dag is not None and (dag <= 0 or needs > dag):
        yield _budget_reason(facts, Budget.DAG, dag, task["dag_limit_usd"])
    if agent is not None and (agent <= 0 or needs > agent):
        yield _budget_reason(facts, Budget.AGENT, agent)
    if night is not None and (night <= 0 or needs > night):
        yield _budget_reason(facts, Budget.NIGHT, night, task["night_limit_usd"])


def _budget_reason(
    facts: TaskFacts, budget: Budget, left: Decimal, limit: Decimal | None = None
) -> Reason:
    task = facts.task
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
        scope=BUDGET_SCOPE[budget],
        message=_describe_shortage(facts, budget, left, limit),
        details=details,
    )


def _describe_shortage(
    facts: TaskFacts, budget: Budget, left: Decimal, limit: Decimal | None
) -> str:
    task = facts.task
    needs, name = task["needs_usd"], BUDGET_NAME[budget]
    if limit and needs > limit:
        return (
            f"needs ${needs:.2f}, more than the whole of {name}, ${limit:.2f}: "
            f"{_raise_budget(facts, budget)}{_without_answer(task, budget)}"
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
    return (
        f"{need}{shortage}: {next_night}{_raise_budget(facts, budget)}"
        f"{_without_answer(task, budget)}"
    )


def _raise_budget(facts: TaskFacts, budget: Budget) -> str:
    """Return how the reader can have a budget raised.

    An owner can approve more only for a task that asks for it: if running tasks have reserved the
    money, the budget may still be enough.
    """
    asks = facts.task.get("requested_budget") == budget.value
    if budget is Budget.TASK or (budget is Budget.DAG and asks):
        return _approve_or_ask(facts, "approve more")
    return facts.audience.advice_for_operator("raise it", RAISED_BY[budget])


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
            scope=ReasonScope.TASK,
            message=f"its deadline {format_instant(deadline)} has passed: the next sweep ends it;"
            " submit it again with a later one",
            details={"deadline_at": deadline},
        )


def _pauses(facts: TaskFacts) -> Iterator[Reason]:
    audience = facts.audience
    for pause in facts.pauses:
        scope = pause.pause.scope
        if scope == "all":
            yield pause_reason(pause, audience, ReasonScope.DEPLOYMENT, "everything is", "--all")
        elif scope == "user" and facts.task["paused"]:
            subject = f"{audience.whose} tasks are"
            option = f"--user {pause.pause.target}"
            yield pause_reason(pause, audience, ReasonScope.USER, subject, option)


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
            scope=ReasonScope.USER,
            message=f"the night window {facts.window} stays closed, because this server does not"
            f" know its time zone: {_set_window(facts)}",
            details=details | {"opens_at": None},
        )
        return
    late = "; only tasks that were waiting when it closed may start before" if is_late else ""
    yield Reason(
        code=ReasonCode.WINDOW,
        scope=ReasonScope.USER,
        message=f"the night window {facts.window} opens at {format_instant(opens_at)}{late}: wait,"
        f" or {_set_window(facts)}",
        details=details,
    )


def _set_window(facts: TaskFacts) -> str:
    command = "overnight window" if facts.audience.is_owner else "overnight user window"
    return f"set another window with `{command}`"


def _plan_concurrency(facts: TaskFacts) -> Iterator[Reason]:
    active, most = facts.task["active"], facts.task["max_active"]
    if active < most:
        return
    audience = facts.audience
    disabled_at = facts.task["disabled_at"]
    raise_limit = audience.advice_for_operator("raise the limit", "overnight user limits")
    if disabled_at is not None:
        enable = audience.advice_for_operator("enable the user again", "overnight user enable")
        message = f"the user is disabled since {format_instant(disabled_at)}: {enable}"
    elif most == 0:
        message = f"{audience.whose} limit is 0 tasks at once: {raise_limit}"
    else:
        allowed = "the 1 task" if most == 1 else f"the {most} tasks"
        verb = "is" if active == 1 else "are"
        message = (
            f"{active} of {allowed} {audience.whose} plan allows at once {verb} running: one must"
            f" end first, or {raise_limit}"
        )
    yield Reason(
        code=ReasonCode.PLAN_CONCURRENCY,
        scope=ReasonScope.USER,
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
    raise_limit = facts.audience.advice_for_operator("raise the limit", "overnight user limits")
    needed = f"needs {format_duration(needs)}"
    rest = f"{format_rest(left)} left until {format_instant(resets_at)}"
    if limit == 0:
        message = f"{facts.audience.whose} limit is 0 hours a month: {raise_limit}"
    elif needs > limit:
        message = (
            f"{needed}, more than the {format_duration(limit)} of a whole month:"
            f" {_lower_timeout(facts)}"
        )
    elif used >= limit:
        message = (
            f"the month's {format_duration(limit)} are used up: the next month begins at"
            f" {format_instant(resets_at)}; wait, or {raise_limit}"
        )
    elif reserved and needs <= left + reserved:
        message = (
            f"{needed}, {rest}: {_lower_timeout(facts)}, or wait for the"
            f" {format_duration(reserved)} that are reserved for running tasks"
        )
    else:
        message = f"{needed}, {rest}: wait, or {_lower_timeout(facts)}"
    yield Reason(
        code=ReasonCode.MONTHLY_HOURS,
        scope=ReasonScope.USER,
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
        holder = show_task(lock["holder_id"])
        yield Reason(
            code=ReasonCode.LOCK,
            scope=ReasonScope.TASK,
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
        f"; it was requested to stop at {format_instant(cancel_requested_at)}"
        if cancel_requested_at
        else ""
    )
    return Reason(
        code=ReasonCode.STATE,
        scope=ReasonScope.TASK,
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
        return cancelled_by_parent_reason(task, facts.parents, facts.audience)
    end = {
        State.COMPLETED: "completed",
        State.DEAD_LETTERED: "failed for good",
        State.CANCELLED: "was cancelled",
    }[state]
    because = f" ({failure})" if failure and failure != state else ""
    again = facts.audience.advice_for_owner("run it again", "overnight retry")
    advice = ""
    if state is State.CANCELLED:
        advice = f": {again} if it is still needed"
    elif state is State.DEAD_LETTERED and facts.audience.is_owner:
        advice = f": {again}"
    elif state is State.DEAD_LETTERED:
        advice = ": run it again with `overnight dead retry`"
    return Reason(
        code=ReasonCode.STATE,
        scope=ReasonScope.TASK,
        message=f"it {end} at {format_instant(task['finished_at'])}{because}{advice}",
        details={"state": state.value, "since": task["finished_at"], "failure_reason": failure},
    )
