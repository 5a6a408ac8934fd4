"""`overnight approvals`, `approve`, `stop` and `budget`: money tasks ask for, and its limits."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import database
from overnight_server.cli.commands import users
from overnight_server.cli.terminal import options, output, short_ids
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight.models.admin import UserApproval
    from overnight_server.domain.ids import TaskId
    from overnight_server.store.db import Db

approvals = typer.Typer(help="Look at tasks that have used up a budget and ask for more.")
budget = typer.Typer(help="Set what a user's night, a graph or an agent may cost.")

HEADERS = ("TASK", "USER", "BUDGET", "SPENT", "OF", "SINCE", "TITLE")
Usd = Annotated[
    str, typer.Option("--usd", metavar="AMOUNT|none", help="US dollars, or none for no limit.")
]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")]


@approvals.command("list")
def list_(
    *,
    user: Annotated[str | None, typer.Option(help="Only this user's.")] = None,
    limit: Limit = 100,
    as_json: options.Json = False,
) -> None:
    """List the tasks that wait for more money, the longest waiting first."""
    from overnight_server.insight.budgets import list_approvals

    with database.opened() as db:
        asking = list_approvals(db, user_id=users.known(db, user) if user else None, limit=limit)
    if as_json:
        output.document([one.model_dump() for one in asking])
    else:
        output.table(HEADERS, _rows(asking), empty="No task asks for money.")


def approve(
    task: options.TaskRef,
    *,
    usd: Annotated[float, typer.Option("--usd", min=0.01, help="How much more, in US dollars.")],
    as_json: options.Json = False,
) -> None:
    """Allow a task that has used up its budget so much more, and let it go on."""
    from overnight_server.control.budgets import approve as allow
    from overnight_server.domain.ids import show_task

    with database.opened() as db:
        task_id = _resolve(db, task)
        approved = allow(db, task_id, usd, actor=database.operator())
    if as_json:
        output.document(
            {
                "task_id": show_task(task_id),
                "approved_usd": usd,
                "budget": approved.budget.value,
                "resumed": approved.resumed,
            }
        )
    else:
        output.line(f"{show_task(task_id)} may go on: ${usd:.2f} more for the {approved.budget}")


def stop(task: options.TaskRef, *, as_json: options.Json = False) -> None:
    """End a task that has used up its budget, instead of allowing more."""
    from overnight_server.control.budgets import stop as end
    from overnight_server.domain.ids import show_task

    with database.opened() as db:
        task_id = _resolve(db, task)
        end(db, task_id, actor=database.operator())
    if as_json:
        output.document(
            {"task_id": show_task(task_id), "state": "cancelled", "reason": "budget_exceeded"}
        )
    else:
        output.line(f"{show_task(task_id)} stopped")


@budget.command()
def user(name: users.UserName, *, usd: Usd, as_json: options.Json = False) -> None:
    """Set what a user's tasks may cost in one night; it holds from now on."""
    from overnight_server.control.budgets import set_night_budget

    amount = _amount(usd)
    with database.opened(database.FRONT_DOOR) as db:
        set_night_budget(db, users.known(db, name), amount, actor=database.operator())
    _done({"user": name, "night_budget_usd": amount}, f"{name} may spend", amount, as_json=as_json)


@budget.command()
def dag(
    dag_id: Annotated[str, typer.Argument(metavar="DAG", help="The graph's whole id.")],
    *,
    usd: Usd,
    as_json: options.Json = False,
) -> None:
    """Set what all tasks of a graph together may cost."""
    from overnight_server.control.budgets import set_dag_budget
    from overnight_server.domain.ids import MalformedId, parse_dag

    amount = _amount(usd)
    try:
        known = parse_dag(dag_id)
    except MalformedId as error:
        raise Failure(str(error), code=Code.USAGE) from error
    with database.opened() as db:
        set_dag_budget(db, known, amount, actor=database.operator())
    _done(
        {"dag_id": dag_id, "budget_ceiling_usd": amount},
        f"{dag_id} may cost",
        amount,
        as_json=as_json,
    )


@budget.command()
def agent(
    agent_id: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.")],
    *,
    usd: Usd,
    as_json: options.Json = False,
) -> None:
    """Set what an agent's runs may cost from now on."""
    from overnight_server.control.budgets import set_agent_budget

    amount = _amount(usd)
    with database.opened() as db:
        set_agent_budget(db, agent_id, amount, actor=database.operator())
    _done(
        {"agent": agent_id, "budget_remaining_usd": amount},
        f"{agent_id} may spend",
        amount,
        as_json=as_json,
    )


def _amount(given: str) -> float | None:
    if given == "none":
        return None
    try:
        return float(given)
    except ValueError as error:
        raise Failure(
            f"--usd: {given!r} is neither an amount nor 'none'", code=Code.USAGE
        ) from error


def _done(document: dict[str, object], told: str, usd: float | None, *, as_json: bool) -> None:
    if as_json:
        output.document(document)
    else:
        output.line(f"{told} {'without limit' if usd is None else f'${usd:.2f}'}")


def _resolve(db: "Db", given: str) -> "TaskId":
    """Return the task a person means: a whole id, or what only one asking task is named."""
    from overnight_server.domain.ids import MalformedId, parse_task
    from overnight_server.insight.budgets import list_approvals

    if short_ids.is_whole(given):
        try:
            return parse_task(short_ids.whole(given))
        except MalformedId as error:
            raise Failure(str(error), code=Code.USAGE) from error
    asking = [one.task_id for one in list_approvals(db, limit=1000)]
    return parse_task(short_ids.choose(given, asking, among="tasks that ask for money"))


def _rows(asking: "Sequence[UserApproval]") -> list[tuple[object, ...]]:
    return [
        (
            one.task_id,
            one.user,
            one.budget,
            f"${one.spent_usd:.2f}",
            "no limit" if one.limit_usd is None else f"${one.limit_usd:.2f}",
            one.since,
            one.title,
        )
        for one in asking
    ]
