"""`overnight key`: the API keys by which users come in."""

from datetime import datetime, timedelta
from typing import Annotated

import typer

from overnight_server.cli import database
from overnight_server.cli.commands import users
from overnight_server.cli.terminal import arguments, options, output
from overnight_server.cli.terminal.failures import Failure
from overnight_server.domain.scopes import EVERYTHING, SCOPES

app = typer.Typer(help="Issue, list, rotate and revoke API keys.")

KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `key list` shows it.")]
HEADERS = ("ID", "USER", "NAME", "ENDS IN", "SCOPES", "CREATED", "LAST USED", "STATE")


@app.command()
def issue(
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose key it is.")],
    *,
    name: Annotated[str, typer.Option(help="What it is for.")] = "cli",
    scope: Annotated[
        list[str] | None,
        typer.Option(help=f"A right, of {', '.join(SCOPES)}; may be repeated. Default: all."),
    ] = None,
    expires_in: Annotated[
        int | None,
        typer.Option(metavar="DURATION", help="How long it is good for.", parser=arguments.seconds),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Make a key for a user and print it: it cannot be shown again."""
    from overnight_server.control.keys import issue as make
    from overnight_server.control.keys import key_id_of

    with database.opened(database.FRONT_DOOR) as db:
        key = make(
            db,
            users.known(db, user),
            name=name,
            scopes=tuple(scope or (EVERYTHING,)),
            expires_in=None if expires_in is None else timedelta(seconds=expires_in),
        )
    if as_json:
        output.document({"id": key_id_of(key), "user": user, "name": name, "key": key})
    else:
        output.line(key)
        output.note("Keep it now: it cannot be shown again.")


@app.command("list")
def list_(
    user: Annotated[str | None, typer.Argument(metavar="USER", help="Only this user's.")] = None,
    *,
    as_json: options.Json = False,
) -> None:
    """List the keys; the keys themselves are not kept."""
    from overnight_server.insight.users import list_keys

    with database.opened(database.FRONT_DOOR) as db:
        keys = list_keys(db, None if user is None else users.known(db, user))
    if as_json:
        output.document([key.model_dump() for key in keys])
        return
    rows = [
        (
            key.id,
            key.user,
            key.name,
            key.last4,
            key.scopes,
            key.created_at,
            key.last_used_at,
            _state(key.revoked_at, key.expires_at, key.replaced_by),
        )
        for key in keys
    ]
    output.table(HEADERS, rows, empty="No keys.")


@app.command()
def rotate(
    key_id: KeyId,
    *,
    grace: Annotated[
        int,
        typer.Option(
            metavar="DURATION", help="How long the old key stays good.", parser=arguments.seconds
        ),
    ] = 86_400,
    as_json: options.Json = False,
) -> None:
    """Make the key that takes over from another and print it; both are good for a while."""
    from overnight_server.control.keys import key_id_of
    from overnight_server.control.keys import rotate as hand_over

    with database.opened(database.FRONT_DOOR) as db:
        key = hand_over(db, key_id, grace=timedelta(seconds=grace))
    if as_json:
        output.document({"id": key_id_of(key), "replaces": key_id, "key": key})
    else:
        output.line(key)
        output.note(f"Keep it now: it cannot be shown again. {key_id} ends when the grace does.")


@app.command()
def revoke(
    key_id: KeyId,
    *,
    as_json: options.Json = False,
) -> None:
    """Make a key useless from this moment."""
    from overnight_server.control.keys import revoke as end

    with database.opened(database.FRONT_DOOR) as db:
        ended = end(db, key_id)
    if not ended:
        raise Failure("there is no such key in force", hint="`overnight key list` shows them.")
    if as_json:
        output.document({"id": key_id, "revoked": True})
    else:
        output.line(f"{key_id} revoked")


def _state(
    revoked_at: datetime | None, expires_at: datetime | None, replaced_by: str | None
) -> str:
    if revoked_at:
        return f"revoked {output.instant(revoked_at)}"
    follows = f", then {replaced_by}" if replaced_by else ""
    return f"until {output.instant(expires_at)}{follows}" if expires_at else "good"
