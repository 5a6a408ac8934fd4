"""What an operator runs by hand: migrations, and any sweep at once."""

from typing import Annotated

import typer

from overnight_server.cli import database
from overnight_server.cli.terminal import options, output
from overnight_server.cli.terminal.failures import Code, Failure


def migrate(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if something is to be done.")
    ] = False,
) -> None:
    """Bring the database to today's schema."""
    from overnight_server import telemetry
    from overnight_server.store import migrate as schema

    address, settings = database.url(), database.settings()
    telemetry.configure(settings.log_format, settings.log_level, "migrate")
    with database.reaching():
        if check:
            schema.check(address)
        else:
            schema.upgrade(address)
        at, newest = schema.current(address), schema.head()
    if at == newest:
        output.line(f"The database is at {newest}.")
        return
    raise Failure(
        f"the database is at {at or 'nothing'}, this code knows {newest}",
        hint="Run `overnight migrate`.",
    )


def sweep(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Which one; a wrong name lists them.")
    ],
    *,
    as_json: options.Json = False,
) -> None:
    """Run one maintenance sweep now, whether or not it is due."""
    from overnight_server import telemetry
    from overnight_server.dispatch.celery_settings import NoBroker
    from overnight_server.dispatch.publish import BrokerUnreachable
    from overnight_server.maintenance.sweeps import SWEEPS, run_sweep

    if name not in SWEEPS:
        raise Failure(
            f"there is no sweep {name!r}", hint=f"There are {', '.join(SWEEPS)}.", code=Code.USAGE
        )
    settings = database.settings()
    telemetry.configure(settings.log_format, settings.log_level, "sweep")
    with database.opened() as db:
        try:
            done = run_sweep(db, settings, name, force=True)
        except (BrokerUnreachable, NoBroker) as error:
            raise Failure(f"this sweep needs Redis: {error}") from error
    if as_json:
        output.document({"sweep": name, "done": done})
    else:
        output.line(f"{name}: {done or 0}")
