"""`overnight user`: who may submit work, and on which plan."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import database, options, output
from app.cli.failures import Failure
from app.domain.plans import PlanTier

if TYPE_CHECKING:
    from app.domain.ids import UserId
    from app.store.db import Db

app = typer.Typer(help="Add users and look at them.")

HEADERS = ("NAME", "PLAN", "RUNNING", "WAITING", "HOURS USED", "OF", "ID")
UserName = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]


@app.command()
def add(
    name: UserName,
    *,
    plan: Annotated[PlanTier, typer.Option(help="What the user may use.")] = PlanTier.FREE,
    as_json: options.Json = False,
) -> None:
    """Add a user; `overnight key issue` then gives them a key."""
    from sqlalchemy.exc import IntegrityError

    from app.control.users import create_user

    name = name.strip()
    if not name:
        raise typer.BadParameter("a user needs a name")
    with database.opened(database.FRONT_DOOR) as db:
        try:
            user_id = create_user(db, name=name, plan=plan)
        except IntegrityError as error:
            raise Failure(f"there is a user {name!r} already") from error
    if as_json:
        output.document({"id": str(user_id), "name": name, "plan": plan.value})
    else:
        output.line(str(user_id))
        output.note(f"Give them a key with `overnight key issue {name}`.")


@app.command("list")
def list_(*, as_json: options.Json = False) -> None:
    """List the users and what they use."""
    from app.insight.users import list_users

    with database.opened(database.FRONT_DOOR) as db:
        users = list_users(db)
    if as_json:
        output.document([asdict(user) for user in users])
        return
    rows = [
        (
            user.name,
            user.plan,
            f"{user.running} of {user.max_concurrent_agents}",
            user.waiting,
            f"{user.monthly_agent_hours_used:.2f}",
            "no limit"
            if user.monthly_agent_hours_limit is None
            else user.monthly_agent_hours_limit,
            user.id,
        )
        for user in users
    ]
    output.table(HEADERS, rows, empty="No users.")


def known(db: "Db", name: str) -> "UserId":
    """Return the user of this name, or fail saying how to see who there is."""
    from app.insight.users import find_user

    user_id = find_user(db, name)
    if user_id is None:
        raise Failure(f"there is no user {name!r}", hint="`overnight user list` shows them.")
    return user_id
