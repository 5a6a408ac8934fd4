"""`overnight migrate`, `sweep` and `redis-acl`: work on the database and Redis without an API."""

import secrets
from typing import Annotated
from urllib.parse import urlsplit

import typer

from overnight_server.cli import connection, database
from overnight_server.cli.terminal import options, output
from overnight_server.cli.terminal.failures import Code, CommandFailure


def migrate(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if the schema is not current.")
    ] = False,
    roles: Annotated[
        bool,
        typer.Option("--roles", help="Only create the roles, before a dump is restored."),
    ] = False,
) -> None:
    """Upgrade the database to the schema of this release."""
    from overnight_server import telemetry
    from overnight_server.store import migrate as schema

    address, settings = database.url(), database.settings()
    telemetry.configure(settings.log_format, settings.log_level, "migrate")
    with database.reported_failures():
        if roles:
            schema.create_roles(address)
            output.line("The roles exist. A dump can be restored now.")
            return
        if check:
            schema.check(address)
        else:
            try:
                schema.upgrade(address)
            except schema.NeedsDirectConnection as error:
                hint = "Set OVERNIGHT_DATABASE_URL to the address of Postgres itself."
                raise CommandFailure(str(error).capitalize() + ".", hint=hint) from error
        current, newest = schema.current(address), schema.head()
    if current is None:
        raise CommandFailure(
            f"The database is at no version, this release needs {newest}.",
            hint="Run `overnight migrate`.",
        )
    later = "" if current == newest else f", later than {newest}, and serves this version too"
    output.line(f"The database is at {current}{later}.")


def sweep(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the sweep; a wrong name lists all.")
    ],
    *,
    as_json: options.Json = False,
) -> None:
    """Run one maintenance sweep now, even if it is not due."""
    from overnight_server import telemetry
    from overnight_server.dispatch.celery_settings import NoBroker
    from overnight_server.dispatch.publish import BrokerUnreachable
    from overnight_server.maintenance.sweeps import SWEEPS, run_sweep

    if name not in SWEEPS:
        hint = f"The sweeps are {', '.join(SWEEPS)}."
        raise CommandFailure(f"There is no sweep {name!r}.", hint=hint, code=Code.USAGE)
    settings = database.settings()
    telemetry.configure(settings.log_format, settings.log_level, "sweep")
    with database.opened() as db:
        try:
            done = run_sweep(db, settings, name, force=True)
        except (BrokerUnreachable, NoBroker) as error:
            message = f"The sweep {name} needs Redis: {error}"
            raise CommandFailure(message, hint=database.NO_REDIS_ADVICE) from error
    if as_json:
        output.document({"sweep": name, "done": done})
    else:
        output.line(f"{name}: {done or 0}")


def redis_acl(*, as_json: options.Json = False) -> None:
    """Print a Redis access list with new passwords: for the API, for Flower, for the rest."""
    from overnight_server.dispatch.redis_acl import acl_users

    settings = connection.settings()
    path = urlsplit(settings.redis_url or "").path.strip("/")
    users = acl_users(settings.redis_key_prefix, int(path) if path.isdigit() else 0)
    passwords = {user.name: secrets.token_urlsafe(24) for user in users}
    lines = ["user default off", *(user.line(passwords[user.name]) for user in users)]
    if as_json:
        output.document({"acl": lines, "passwords": passwords})
        return
    for line in lines:
        output.line(line)
    output.note("Write these lines to the aclfile of Redis; they contain only password hashes.")
    output.note("The passwords are not shown again:")
    for name, password in passwords.items():
        output.note(f"{name}: {password}")
