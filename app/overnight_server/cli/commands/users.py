"""`overnight user`: create users and change their plans, limits and windows.

All commands call the admin API. `add` and `admin` can write to the database directly with
`--database`, because the first admin has no key yet.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from overnight.models.enums import PlanTier
from overnight_server.cli import connection, database
from overnight_server.cli.terminal import options, output, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure
from overnight_server.domain.plans import OnExhausted

if TYPE_CHECKING:
    from overnight.models.admin import UserDetail, UserLimitsDetail

app = typer.Typer(
    help="Create users and change their plans, limits and windows.", no_args_is_help=True
)

HEADERS = ("NAME", "PLAN", "RUNS", "WAIT", "HOURS", "NIGHT", "STATE", "WINDOW")
NOTICE_HEADERS = ("AT", "KIND", "TASK", "DETAIL")
# Python refuses to parse numbers of thousands of digits; no limit needs more digits than this.
MOST_DIGITS = 18
UserName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
Database = Annotated[
    bool,
    typer.Option(
        "--database",
        help="Write to the database of OVERNIGHT_DATABASE_URL or of the local stack, without API.",
    ),
]


@app.command()
def add(
    name: UserName,
    *,
    plan: Annotated[PlanTier, typer.Option(help="Plan of the user.")] = PlanTier.FREE,
    admin: Annotated[
        bool, typer.Option("--admin", help="Give the user the rights of an admin.")
    ] = False,
    direct: Database = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Create a user; `overnight key issue` then creates an API key for the user."""
    name = name.strip()
    if direct:
        user_id = _add_directly(name, plan, is_admin=admin)
    else:
        with connection.client(url, api_key_file, as_admin=True) as client:
            user_id = client.admin.create_user(name, plan=plan.value, is_admin=admin).id
    if as_json:
        output.document({"id": user_id, "name": name, "plan": plan.value, "is_admin": admin})
    else:
        output.line(user_id)
        suffix = " --database" if direct else ""
        command = f"overnight key issue {output.quoted(name)}{suffix}"
        output.note(f"Create an API key for the user with `{command}`.")


def _add_directly(name: str, plan: PlanTier, *, is_admin: bool) -> str:
    from sqlalchemy.exc import IntegrityError

    from overnight_server.control.users import create_user

    with database.opened(database.ADMIN_ROLE) as db:
        try:
            return str(create_user(db, name=name, plan=plan, is_admin=is_admin))
        except IntegrityError as error:
            raise CommandFailure(f"A user {name!r} exists already.", code=Code.USAGE) from error


@app.command("list")
def list_(
    *,
    name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="List users whose names begin with TEXT.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="NAME", help="Begin after the user NAME.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Largest number of users to list.")] = 50,
    everyone: Annotated[bool, typer.Option("--all", help="List all of them.")] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List users with their plans and usage, sorted by name."""
    most = None if everyone else limit + 1
    with connection.client(url, api_key_file, as_admin=True) as client:
        found = list(client.admin.users(name_prefix=name, after=after, limit=most))
    users = found if everyone else found[:limit]
    if len(found) > len(users):
        output.note(
            f"There are more users: pass --after '{users[-1].name}', a higher --limit, or --all."
        )
    if as_json:
        output.document([task_output.as_document(user) for user in users])
        return
    rows = [
        (
            user.name,
            user.plan + ("*" if user.exceptions else ""),
            f"{user.running}/{user.max_concurrent_agents}",
            user.waiting,
            f"{user.monthly_agent_hours_used:.2f}"
            + (
                ""
                if user.monthly_agent_hours_limit is None
                else f"/{user.monthly_agent_hours_limit:g}"
            ),
            None if user.night_budget_usd is None else f"${user.night_budget_usd:.2f}",
            _state(user),
            _window_text(user),
        )
        for user in users
    ]
    optional = ("NIGHT", "WINDOW", "WAIT", "RUNS")
    output.table(HEADERS, rows, empty="No users.", optional=optional)
    for user in users:
        if user.exceptions:
            limits = ", ".join(user.exceptions)
            output.note(f"* {user.name} has limits that differ from the plan: {limits}")


@app.command()
def plan(
    name: UserName,
    tier: Annotated[PlanTier, typer.Argument(metavar="PLAN", help="free, pro, team, enterprise.")],
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Change the plan of a user, with all limits of the plan; it applies from the next claim."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        client.admin.change_user(name, plan=tier.value)
        _show_limits(name, client.admin.user_limits(name), as_json=as_json)


@app.command()
def limits(
    name: UserName,
    *,
    concurrency: Annotated[
        int | None, typer.Option(min=0, help="Number of tasks that may run at the same time.")
    ] = None,
    hours: Annotated[
        str | None, typer.Option(metavar="N|unlimited", help="Hours per month.")
    ] = None,
    minutes: Annotated[int | None, typer.Option(min=1, help="Longest duration of one run.")] = None,
    max_pending: Annotated[
        str | None, typer.Option(metavar="N|default", help="Number of tasks that may wait.")
    ] = None,
    max_tasks_per_dag: Annotated[
        str | None, typer.Option(metavar="N|default", help="Number of tasks in one graph.")
    ] = None,
    artifact_storage_mb: Annotated[
        str | None, typer.Option(metavar="N|default", help="MB of artifacts that may be stored.")
    ] = None,
    on_exhausted: Annotated[
        OnExhausted | None,
        typer.Option(help="Reject or hold new tasks when the hours are used up."),
    ] = None,
    template: Annotated[
        bool, typer.Option("--template", help="Restore all limits of the plan.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show the limits of a user, or set limits that differ from the plan."""
    changes = _limit_changes(
        max_concurrent_agents=concurrency,
        max_task_duration_minutes=minutes,
        monthly_agent_hours_limit=_number_or_no_limit(hours, "unlimited", "--hours"),
        max_pending=_number_or_no_limit(max_pending, "default", "--max-pending"),
        max_tasks_per_dag=_number_or_no_limit(max_tasks_per_dag, "default", "--max-tasks-per-dag"),
        artifact_storage_mb=_number_or_no_limit(
            artifact_storage_mb, "default", "--artifact-storage-mb"
        ),
        on_exhausted=None if on_exhausted is None else on_exhausted.value,
    )
    if template and changes:
        raise CommandFailure("--template excludes the other options", code=Code.USAGE)
    with connection.client(url, api_key_file, as_admin=True) as client:
        if template:
            client.admin.reset_limits(name)
        elif changes:
            client.admin.change_user(name, **changes)
        _show_limits(name, client.admin.user_limits(name), as_json=as_json)


@app.command()
def hours(
    name: UserName,
    amount: Annotated[
        float, typer.Argument(metavar="HOURS", help="Hours to charge; negative to give back.")
    ],
    *,
    note: Annotated[str, typer.Option(help="Reason; kept in the ledger.")] = "",
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Charge hours to a user's current month, or give hours back: `user hours ada -- -2.5`."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        after = client.admin.adjust_hours(name, amount, note=note)
    _show_limits(name, after, as_json=as_json)


@app.command()
def rename(
    name: UserName,
    new: Annotated[str, typer.Argument(metavar="NEW", help="New name of the user.")],
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Rename a user; keys, tasks and limits stay."""
    new = new.strip()
    with connection.client(url, api_key_file, as_admin=True) as client:
        client.admin.change_user(name, name=new)
    if as_json:
        output.document({"name": new, "was": name})
    else:
        output.line(f"Renamed {name} to {new}.")


@app.command()
def disable(
    name: UserName,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Disable a user: keys are refused and no task starts; running tasks may end."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        changed = client.admin.user(name).disabled_at is None
        client.admin.disable_user(name)
    _report_disabled(name, disabled=True, changed=changed, as_json=as_json)


@app.command()
def enable(
    name: UserName,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Enable a disabled user, with the same keys and limits as before."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        changed = client.admin.user(name).disabled_at is not None
        client.admin.enable_user(name)
    _report_disabled(name, disabled=False, changed=changed, as_json=as_json)


@app.command("admin")
def admin_(
    name: UserName,
    *,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Take the rights of an admin away.")
    ] = False,
    direct: Database = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Give a user the rights of an admin, who can act on all users; it applies at once."""
    if direct:
        changed = _appoint_directly(name, is_admin=not revoke)
    else:
        with connection.client(url, api_key_file, as_admin=True) as client:
            changed = client.admin.user(name).is_admin == revoke
            client.admin.change_user(name, is_admin=not revoke)
    if as_json:
        output.document({"name": name, "is_admin": not revoke, "changed": changed})
    elif changed:
        output.line(f"{name} is {'no longer' if revoke else 'now'} an admin.")
    else:
        output.note(f"{name} was {'not' if revoke else 'already'} an admin.")


def _appoint_directly(name: str, *, is_admin: bool) -> bool:
    from overnight_server.control.users import appoint_admin

    with database.opened(database.ADMIN_ROLE) as db:
        user_id = database.user_id_of(db, name)
        return appoint_admin(db, user_id, is_admin=is_admin, actor=database.operator_actor())


@app.command()
def notices(
    name: UserName,
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Largest number of notices to list.")
    ] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List the notices of a user, newest first, such as hours that run out."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        listed = client.admin.notices(name, limit=limit)
    if as_json:
        output.document([task_output.as_document(notice) for notice in listed])
        return
    rows = [
        (notice.at, notice.kind, notice.task_id and output.Id(notice.task_id), notice.detail)
        for notice in listed
    ]
    output.table(NOTICE_HEADERS, rows, empty="No notices.")


@app.command()
def window(
    name: UserName,
    *,
    zone: options.WindowZone = None,
    opens: options.WindowOpens = None,
    closes: options.WindowCloses = None,
    at_closing: options.WindowAtClosing = None,
    off: options.WindowOff = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show or set the night window of a user: the user's tasks start only inside it."""
    fields = options.window_fields(zone, opens, closes, at_closing, off=off)
    with connection.client(url, api_key_file, as_admin=True) as client:
        if off or fields is not None:
            user = client.admin.change_user(name, window=fields)
        else:
            user = client.admin.user(name)
    if as_json:
        shown = user.window and task_output.as_document(user.window)
        output.document({"name": name, "window": shown})
    elif user.window is None:
        output.line(f"{name} has no window: tasks start at any time.")
    else:
        closing = user.window.at_closing
        output.line(f"Tasks of {name} start {_window_text(user)}; at closing: {closing}.")


def _window_text(user: "UserDetail") -> str | None:
    if user.window is None:
        return None
    return f"{user.window.opens}-{user.window.closes} {user.window.zone}"


def _state(user: "UserDetail") -> str:
    if user.disabled_at is not None:
        return "disabled"
    state = "paused" if user.paused else "open"
    return f"{state}, admin" if user.is_admin else state


def _report_disabled(name: str, *, disabled: bool, changed: bool, as_json: bool) -> None:
    state = "disabled" if disabled else "enabled"
    if as_json:
        output.document({"name": name, "disabled": disabled, "changed": changed})
    elif changed:
        output.line(f"{name} is {state}.")
    else:
        output.note(f"{name} was already {state}.")


class _NoLimit:
    """The option asks for no limit, or for that of the deployment."""


def _number_or_no_limit(text: str | None, no_limit: str, option: str) -> "int | _NoLimit | None":
    """Return the number of an option, _NoLimit for `no_limit`, None if the option is absent."""
    if text is None:
        return None
    if text == no_limit:
        return _NoLimit()
    if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS:
        return int(text)
    message = f"{option}: {text!r} is not valid; write a whole number from 0 or {no_limit!r}"
    raise CommandFailure(message, code=Code.USAGE)


def _limit_changes(**options: object) -> dict[str, Any]:
    """Return the fields to send: null for _NoLimit, and nothing for absent options."""
    return {
        field: None if isinstance(value, _NoLimit) else value
        for field, value in options.items()
        if value is not None
    }


def _show_limits(name: str, limits: "UserLimitsDetail", *, as_json: bool) -> None:
    if as_json:
        output.document({"name": name, **task_output.as_document(limits)})
    else:
        task_output.show_limits(limits, name=name, tasks_per_graph=limits.max_tasks_per_dag)
