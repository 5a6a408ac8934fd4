"""`overnight user`: who may submit work, and on which plan."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import database
from overnight_server.cli.terminal import options, output, task_output
from overnight_server.cli.terminal.failures import Code, Failure
from overnight_server.domain.plans import OnExhausted, PlanTier
from overnight_server.domain.windows import AtClosing

if TYPE_CHECKING:
    from overnight.models.admin import UserDetail
    from overnight_server.control.users import NoLimit
    from overnight_server.domain.ids import UserId
    from overnight_server.domain.windows import Window
    from overnight_server.store.db import Db

app = typer.Typer(help="Add users, look at them and change what they may do, and when.")

HEADERS = ("NAME", "PLAN", "RUNS", "WAIT", "HOURS", "NIGHT", "WINDOW", "STATE")
# Python refuses to read a number of thousands of digits; no limit has as many as these.
MOST_DIGITS = 18
UserName = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]


@app.command()
def add(
    name: UserName,
    *,
    plan: Annotated[PlanTier, typer.Option(help="What the user may use.")] = PlanTier.FREE,
    admin: Annotated[
        bool, typer.Option("--admin", help="Let them act on every user under /api/v1/admin.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Add a user; `overnight key issue` then gives them a key."""
    from sqlalchemy.exc import IntegrityError

    from overnight_server.control.users import create_user

    name = name.strip()
    with database.opened(database.FRONT_DOOR) as db:
        try:
            user_id = create_user(db, name=name, plan=plan, is_admin=admin)
        except IntegrityError as error:
            raise Failure(f"there is a user {name!r} already") from error
    if as_json:
        output.document({"id": str(user_id), "name": name, "plan": plan.value, "is_admin": admin})
    else:
        output.line(str(user_id))
        output.note(f"Give them a key with `overnight key issue {output.quoted(name)}`.")


@app.command("list")
def list_(*, as_json: options.Json = False) -> None:
    """List the users and what they use."""
    from overnight_server.insight.users import list_users

    with database.opened(database.FRONT_DOOR) as db:
        users = list_users(db)
    if as_json:
        output.document([user.model_dump() for user in users])
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
                else f"/{user.monthly_agent_hours_limit}"
            ),
            None if user.night_budget_usd is None else f"${user.night_budget_usd:.2f}",
            None if user.window is None else str(user.window),
            _standing(user),
        )
        for user in users
    ]
    output.table(HEADERS, rows, empty="No users.")
    for user in users:
        if user.exceptions:
            output.note(f"* {user.name} has exceptions to the plan: {', '.join(user.exceptions)}")


@app.command()
def plan(
    name: UserName,
    tier: Annotated[PlanTier, typer.Argument(metavar="PLAN", help="free, pro, team, enterprise.")],
    *,
    as_json: options.Json = False,
) -> None:
    """Put a user on another plan, exceptions gone; it holds from the next claim on."""
    from overnight_server.control.users import change_plan

    with database.opened(database.FRONT_DOOR) as db:
        user_id = known(db, name)
        change_plan(db, user_id, tier, actor=database.operator())
        _show_limits(db, name, user_id, as_json=as_json)


@app.command()
def limits(
    name: UserName,
    *,
    concurrency: Annotated[
        int | None, typer.Option(min=0, help="How many tasks may run at once.")
    ] = None,
    hours: Annotated[
        str | None, typer.Option(metavar="N|unlimited", help="Hours of work a month.")
    ] = None,
    minutes: Annotated[int | None, typer.Option(min=1, help="How long one run may take.")] = None,
    max_pending: Annotated[
        str | None, typer.Option(metavar="N|default", help="How many tasks may wait.")
    ] = None,
    max_tasks_per_dag: Annotated[
        str | None, typer.Option(metavar="N|default", help="How many tasks one graph may have.")
    ] = None,
    on_exhausted: Annotated[
        OnExhausted | None,
        typer.Option(help="Refuse what comes when the hours are used up, or let it wait."),
    ] = None,
    template: Annotated[
        bool, typer.Option("--template", help="Back to the plan's own limits.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show a user's limits, or make exceptions to the plan; they hold from the next claim on."""
    from overnight_server.control.users import Overrides, override_limits, restore_template

    chosen = Overrides(
        concurrency=concurrency,
        minutes=minutes,
        hours=_number_or(hours, "unlimited", "--hours"),
        max_pending=_number_or(max_pending, "default", "--max-pending"),
        max_tasks_per_dag=_number_or(max_tasks_per_dag, "default", "--max-tasks-per-dag"),
        on_exhausted=on_exhausted,
    )
    if template and chosen != Overrides():
        raise Failure("--template excludes the other options", code=Code.USAGE)
    with database.opened(database.FRONT_DOOR) as db:
        user_id = known(db, name)
        if template:
            restore_template(db, user_id, actor=database.operator())
        elif chosen != Overrides():
            override_limits(db, user_id, chosen, actor=database.operator())
        _show_limits(db, name, user_id, as_json=as_json)


@app.command()
def rename(
    name: UserName,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name from now on.")],
    *,
    as_json: options.Json = False,
) -> None:
    """Give a user another name; keys, tasks and limits stay."""
    from sqlalchemy.exc import IntegrityError

    from overnight_server.control.users import rename_user

    new = new.strip()
    with database.opened(database.FRONT_DOOR) as db:
        try:
            rename_user(db, known(db, name), new, actor=database.operator())
        except IntegrityError as error:
            raise Failure(f"there is a user {new!r} already") from error
    if as_json:
        output.document({"name": new, "was": name})
    else:
        output.line(f"{name} is {new} now.")


@app.command()
def disable(name: UserName, *, as_json: options.Json = False) -> None:
    """Shut a user out: no key opens anything, nothing new starts; what runs may end."""
    from overnight_server.control.users import disable_user

    with database.opened(database.FRONT_DOOR) as db:
        changed = disable_user(db, known(db, name), actor=database.operator())
    _shut(name, disabled=True, changed=changed, as_json=as_json)


@app.command()
def enable(name: UserName, *, as_json: options.Json = False) -> None:
    """Let a user in again, with the keys and limits they had."""
    from overnight_server.control.users import enable_user

    with database.opened(database.FRONT_DOOR) as db:
        changed = enable_user(db, known(db, name), actor=database.operator())
    _shut(name, disabled=False, changed=changed, as_json=as_json)


@app.command("admin")
def admin_(
    name: UserName,
    *,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Make them a user like any other again.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Make a user an admin, who acts on every user under /api/v1/admin; it holds at once."""
    from overnight_server.control.users import appoint_admin

    with database.opened(database.FRONT_DOOR) as db:
        user_id = known(db, name)
        changed = appoint_admin(db, user_id, is_admin=not revoke, actor=database.operator())
    if as_json:
        output.document({"name": name, "is_admin": not revoke, "changed": changed})
        return
    if changed:
        output.line(f"{name} is {'no longer' if revoke else 'now'} an admin.")
    else:
        output.note(f"{name} was {'no' if revoke else 'an'} admin before.")


def _shut(name: str, *, disabled: bool, changed: bool, as_json: bool) -> None:
    stands = "disabled" if disabled else "enabled"
    if as_json:
        output.document({"name": name, "disabled": disabled, "changed": changed})
    elif changed:
        output.line(f"{name} is {stands}.")
    else:
        output.note(f"{name} was {stands} already.")


def _standing(user: "UserDetail") -> str:
    if user.disabled_at is not None:
        return "disabled"
    stands = "paused" if user.paused else "open"
    return f"{stands}, admin" if user.is_admin else stands


@app.command()
def notices(
    name: UserName,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: options.Json = False,
) -> None:
    """List what a user should hear of, newest first: hours running out, tasks that keep failing."""
    from overnight_server.insight.notices import list_notices

    with database.opened() as db:
        told = list_notices(db, known(db, name), limit=limit)
    if as_json:
        output.document([notice.model_dump() for notice in told])
        return
    rows = [(notice.at, notice.kind, notice.task_id, notice.detail) for notice in told]
    output.table(("AT", "KIND", "TASK", "DETAIL"), rows, empty="Nothing to tell.")


def _number_or(given: str | None, word: str, option: str) -> "int | NoLimit | None":
    from overnight_server.control.users import NoLimit

    if given is None:
        return None
    if given == word:
        return NoLimit.NO_LIMIT
    if given.isascii() and given.isdecimal() and len(given) <= MOST_DIGITS:
        return int(given)
    legal = f"a whole number from 0 or {word!r}"
    raise Failure(f"{option}: {given!r} is not legal; write {legal}", code=Code.USAGE)


def _show_limits(db: "Db", name: str, user_id: "UserId", *, as_json: bool) -> None:
    from overnight_server.insight.limits import user_limits

    deployment = database.settings().max_pending_per_user
    view = user_limits(db, user_id, default_max_pending=deployment)
    if as_json:
        output.document({"name": name, **view.model_dump()})
        return
    limit = view.monthly_agent_hours_limit
    output.record(
        {
            "name": name,
            "plan": view.plan,
            "at once": task_output.tasks(view.max_concurrent_agents),
            "longest run": f"{view.max_task_duration_minutes} min",
            "hours used": f"{view.monthly_agent_hours_used:.2f}"
            + (", no limit" if limit is None else f" of {limit}"),
            "in one graph": view.max_tasks_per_dag,
            "hours promised": f"{view.monthly_agent_hours_promised:.2f}, to what runs",
            "hours return": view.billing_cycle_resets_at,
            "without hours": task_output.without_hours(view.on_exhausted),
            "waiting": f"{view.pending} of {view.pending_limit}"
            + (", as the deployment says" if view.max_pending is None else ""),
            "may start": view.window or "at any time",
            **task_output.night(view),
        }
    )


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
) -> None:
    """Show a user's night window, or give one outside of which no work starts; it holds at once."""
    from overnight_server.control.windows import set_window
    from overnight_server.insight.users import list_users

    is_look = zone is opens is closes is at_closing is None and not off
    wanted = None if is_look else _window(zone, opens, closes, at_closing, off=off)
    with database.opened(database.FRONT_DOOR) as db:
        user_id = known(db, name)
        if not is_look:
            set_window(db, user_id, wanted)
        [user] = [one for one in list_users(db) if one.name == name]
    if as_json:
        output.document({"name": name, "window": user.window and user.window.model_dump()})
    elif user.window is None:
        output.line(f"{name}'s work may start at any time.")
    else:
        closing = user.window.at_closing
        output.line(f"{name}'s work may start {user.window}; at closing: {closing}.")


def _window(
    zone: str | None,
    opens: str | None,
    closes: str | None,
    at_closing: AtClosing | None,
    *,
    off: bool,
) -> "Window | None":
    from overnight_server.domain.windows import parse_window

    if off:
        if zone or opens or closes:
            raise typer.BadParameter("--off takes the window away; leave the other options out")
        return None
    if zone is None or opens is None or closes is None:
        raise typer.BadParameter("a window needs --zone, --from and --to; --off takes it away")
    with database.reaching():
        return parse_window(zone, opens, closes, at_closing or AtClosing.FINISH)


def known(db: "Db", name: str) -> "UserId":
    """Return the user of this name, or fail saying how to see who there is."""
    from overnight_server.insight.users import find_user

    user_id = find_user(db, name)
    if user_id is None:
        raise Failure(f"there is no user {name!r}", hint="`overnight user list` shows them.")
    return user_id
