"""`overnight approvals`, `approve`, `stop` and `budget`: cost limits and tasks that reached one.

Owners use the first three for their own tasks; admins for those of all users, with `--all-users`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import users
from overnight_server.cli.terminal import options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Client
    from overnight.models.account import Approval

approvals = typer.Typer(help="List tasks that have used up a budget.", no_args_is_help=True)
budget = typer.Typer(
    help="Set the budget of a user's night, a graph or an agent.", no_args_is_help=True
)

HEADERS = ("TASK", "USER", "BUDGET", "SPENT", "LIMIT", "RAISED BY", "SINCE", "TITLE")
AllUsers = Annotated[
    bool, typer.Option("--all-users", help="Also for tasks of other users; for admins.")
]
Usd = Annotated[
    str, typer.Option("--usd", metavar="AMOUNT|none", help="US dollars, or none for no limit.")
]


@approvals.command("list")
def list_(
    *,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="List the tasks of this user; for admins.")
    ] = None,
    all_users: AllUsers = False,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Largest number of tasks to list.")
    ] = 100,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your tasks that wait for a higher budget, those that wait longest first."""
    as_admin = all_users or user is not None
    waiting: Sequence[Approval]
    with connection.client(url, api_key_file, as_admin=as_admin) as client:
        if as_admin:
            waiting = client.admin.approvals(user=user, limit=limit)
        else:
            waiting = client.usage.approvals(limit=limit)
    if as_json:
        output.document([task_output.as_document(approval) for approval in waiting])
    else:
        rows = [_row(approval) for approval in waiting]
        empty = "No task waits for a higher budget."
        optional = ("SINCE", "USER", "RAISED BY")
        output.table(HEADERS, rows, empty=empty, optional=optional)


@approvals.callback()
def _approvals() -> None:
    """List tasks that have used up a budget."""


def approve(
    task: options.TaskRef,
    *,
    usd: Annotated[float, typer.Option("--usd", min=0.01, help="Additional US dollars.")],
    all_users: AllUsers = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Raise the budget that a task has used up, so that the task continues.

    A budget that an operator set can be raised by operators only.
    """
    with connection.client(url, api_key_file, as_admin=all_users) as client:
        task_id = _resolve(client, task, all_users=all_users)
        approve_spending = client.admin.approve if all_users else client.usage.approve
        approved = approve_spending(task_id, usd)
    if as_json:
        output.document(
            {
                "task_id": task_id,
                "approved_usd": usd,
                "budget": approved.budget,
                "resumed": approved.resumed,
            }
        )
    else:
        output.line(f"{task_id} continues: ${usd:.2f} were added to the {approved.budget} budget")


def stop(
    task: options.TaskRef,
    *,
    all_users: AllUsers = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Cancel a task that has used up a budget, instead of approving more."""
    with connection.client(url, api_key_file, as_admin=all_users) as client:
        task_id = _resolve(client, task, all_users=all_users)
        stop_task = client.admin.stop if all_users else client.usage.stop
        stop_task(task_id)
    if as_json:
        output.document({"task_id": task_id, "state": "cancelled", "reason": "budget_exceeded"})
    else:
        output.line(f"{task_id} cancelled")


@budget.command()
def user(
    name: users.UserName,
    *,
    usd: Usd,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Set what all tasks of a user together may cost in one night."""
    amount = _amount(usd)
    with connection.client(url, api_key_file, as_admin=True) as client:
        client.admin.change_user(name, night_budget_usd=amount)
    document = {"user": name, "night_budget_usd": amount}
    _report(document, f"Night budget of {name}", amount, as_json=as_json)


@budget.command()
def dag(
    dag_id: Annotated[str, typer.Argument(metavar="DAG", help="Whole id of the graph.")],
    *,
    usd: Usd,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Set what all tasks of a graph together may cost."""
    amount = _amount(usd)
    with connection.client(url, api_key_file, as_admin=True) as client:
        client.admin.set_dag_budget(dag_id, amount)
    document = {"dag_id": dag_id, "budget_ceiling_usd": amount}
    _report(document, f"Budget of {dag_id}", amount, as_json=as_json)


@budget.command()
def agent(
    agent_id: Annotated[str, typer.Argument(metavar="AGENT", help="Id of the agent.")],
    *,
    usd: Usd,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Set what the runs of an agent may cost from now on."""
    amount = _amount(usd)
    with connection.client(url, api_key_file, as_admin=True) as client:
        client.admin.set_agent_budget(agent_id, amount)
    document = {"agent": agent_id, "budget_remaining_usd": amount}
    _report(document, f"Budget of {agent_id}", amount, as_json=as_json)


def _amount(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError as error:
        message = f"--usd: {text!r} is neither an amount nor 'none'"
        raise CommandFailure(message, code=Code.USAGE) from error


def _report(document: Mapping[str, object], name: str, usd: float | None, *, as_json: bool) -> None:
    if as_json:
        output.document(document)
    else:
        output.line(f"{name}: {'no limit' if usd is None else f'${usd:.2f}'}")


def _resolve(client: "Client", reference: str, *, all_users: bool) -> str:
    """Return the id of the task over budget that `reference` identifies."""
    if short_ids.is_whole(reference):
        return short_ids.whole(reference)
    list_approvals = client.admin.approvals if all_users else client.usage.approvals
    waiting = [approval.task_id for approval in list_approvals()]
    return short_ids.choose(reference, waiting, among="task over budget")


def _row(approval: "Approval") -> tuple[object, ...]:
    return (
        output.Id(approval.task_id),
        getattr(approval, "user", None),
        approval.budget,
        f"${approval.spent_usd:.2f}",
        "no limit" if approval.limit_usd is None else f"${approval.limit_usd:.2f}",
        approval.raised_by,
        approval.since,
        approval.title,
    )
