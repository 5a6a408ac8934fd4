"""`overnight key`: issue, list, rotate and revoke the API keys of users."""

from datetime import datetime, timedelta
from typing import Annotated

import typer

from overnight.models.scopes import EVERYTHING, SCOPES
from overnight_server.cli import connection, database
from overnight_server.cli.commands.users import Database
from overnight_server.cli.terminal import arguments, options, output, task_output

app = typer.Typer(help="Issue, list, rotate and revoke API keys.", no_args_is_help=True)

KeyId = Annotated[str, typer.Argument(metavar="ID", help="Id of the key, from `key list`.")]
HEADERS = ("ID", "USER", "NAME", "LAST 4", "CREATED", "LAST USED", "STATE", "SCOPES")
OPTIONAL = ("SCOPES", "CREATED", "LAST 4", "LAST USED")
ONCE = "Store the key now; it cannot be shown again."


@app.command()
def issue(
    user: Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")],
    *,
    name: Annotated[str, typer.Option(help="Name of the key.")] = "cli",
    scope: Annotated[
        list[str] | None,
        typer.Option(help=f"A right: {', '.join(SCOPES)}; repeatable. Default: all."),
    ] = None,
    expires_in: Annotated[
        int | None,
        typer.Option(metavar="DURATION", help="Lifetime of the key.", parser=arguments.seconds),
    ] = None,
    direct: Database = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Create a key for a user and print it; it cannot be shown again."""
    if direct:
        key_id, key = _issue_directly(user, name, scope, expires_in)
    else:
        with connection.client(url, api_key_file, as_admin=True) as client:
            created = client.admin.create_key(
                user, name=name, scopes=scope, expires_in_seconds=expires_in
            )
        key_id, key = created.id, created.key
    if as_json:
        output.document({"id": key_id, "user": user, "name": name, "key": key})
    else:
        output.line(key)
        output.note(ONCE)


def _issue_directly(
    user: str, name: str, scopes: list[str] | None, expires_in: int | None
) -> tuple[str, str]:
    """Create the key in the database; return its id and the key itself."""
    from overnight_server.control.keys import issue as create
    from overnight_server.control.keys import key_id_of

    with database.opened(database.ADMIN_ROLE) as db:
        key = create(
            db,
            database.user_id_of(db, user),
            name=name,
            scopes=tuple(scopes or (EVERYTHING,)),
            expires_in=None if expires_in is None else timedelta(seconds=expires_in),
        )
    return key_id_of(key), key


@app.command("list")
def list_(
    user: Annotated[
        str | None, typer.Argument(metavar="USER", help="Only keys of this user.")
    ] = None,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List the keys, without their secrets, which the server does not store."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        keys = client.admin.keys(user)
    if as_json:
        output.document([task_output.as_document(key) for key in keys])
        return
    rows = [
        (
            key.id,
            key.user,
            key.name,
            key.last4,
            key.created_at,
            key.last_used_at,
            _state(key.revoked_at, key.expires_at, key.replaced_by),
            key.scopes,
        )
        for key in keys
    ]
    output.table(HEADERS, rows, empty="No keys.", optional=OPTIONAL)


@app.command()
def rotate(
    key_id: KeyId,
    *,
    grace: Annotated[
        int,
        typer.Option(
            metavar="DURATION",
            help="How long the old key stays valid.",
            parser=arguments.seconds,
            show_default="1d",
        ),
    ] = 86_400,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Create the key that replaces another and print it; both are valid for a while."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        created = client.admin.rotate_key(key_id, grace_seconds=grace)
    if as_json:
        output.document({"id": created.id, "replaces": key_id, "key": created.key})
    else:
        output.line(created.key)
        output.note(f"{ONCE} {key_id} stays valid for {output.duration(grace)}.")


@app.command()
def revoke(
    key_id: KeyId,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Revoke a key at once."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        client.admin.revoke_key(key_id)
    if as_json:
        output.document({"id": key_id, "revoked": True})
    else:
        output.line(f"{key_id} revoked")


def _state(
    revoked_at: datetime | None, expires_at: datetime | None, replaced_by: str | None
) -> str:
    if revoked_at:
        return f"revoked {output.short_instant(revoked_at)}"
    successor = f", then {replaced_by}" if replaced_by else ""
    return f"until {output.short_instant(expires_at)}{successor}" if expires_at else "valid"
