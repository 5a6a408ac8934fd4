"""`overnight audit`: who did what, to whom, and through which door."""

from datetime import timedelta
from typing import Annotated

import typer

from overnight_server.cli import database
from overnight_server.cli.commands import users
from overnight_server.cli.terminal import arguments, options, output

app = typer.Typer(help="Look at what people did.")

HEADERS = ("AT", "ACTOR", "KEY", "VIA", "ACT", "USER", "TARGET", "DETAIL")


@app.callback()
def audit() -> None:
    """Look at what people did."""


@app.command("list")
def list_(
    *,
    user: Annotated[
        str | None, typer.Option(metavar="USER", help="Only what concerns this user.")
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(metavar="DURATION", help="Only the last so long.", parser=arguments.seconds),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 100,
    as_json: options.Json = False,
) -> None:
    """List what people did, newest first: users, keys, pauses, budgets, and acts on tasks."""
    from overnight_server.insight.audit import list_audit_entries

    with database.opened(database.FRONT_DOOR) as db:
        acts = list_audit_entries(
            db,
            user_id=None if user is None else users.known(db, user),
            within=None if since is None else timedelta(seconds=since),
            limit=limit,
        )
    if as_json:
        output.document([act.model_dump() for act in acts])
        return
    rows = [
        (
            act.at,
            act.actor,
            act.key_id,
            act.via,
            act.act,
            act.user,
            act.target,
            ", ".join(f"{name}={_said(value)}" for name, value in act.detail.items()),
        )
        for act in acts
    ]
    output.table(HEADERS, rows, empty="Nothing was done.")


def _said(value: object) -> str:
    return f"{value[0]}→{value[1]}" if isinstance(value, list) and len(value) == 2 else str(value)  # noqa: PLR2004
