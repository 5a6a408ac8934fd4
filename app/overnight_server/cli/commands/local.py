"""The deployment on one machine: bring it up, take it down, examine it."""

from dataclasses import asdict
from typing import Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output
from overnight_server.cli.terminal.failures import Code


def up(
    *,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it is ready, and leave it running.")
    ] = False,
) -> None:
    """Start everything on this machine: servers, processes, a local user; Ctrl-C stops it."""
    from overnight_server.local.up import up as start

    raise typer.Exit(start(connection.settings(), detach=detach))


def down() -> None:
    """Stop the deployment of this home, whoever started it."""
    from overnight_server.local.up import down as stop

    raise typer.Exit(stop(connection.settings()))


def doctor(*, as_json: options.Json = False) -> None:
    """Examine every part and say what to do; exit 1 if anything ails."""
    from overnight_server.local.doctor import run_checks

    checks = run_checks(connection.settings())
    healthy = all(check.ok for check in checks)
    if as_json:
        output.document({"ok": healthy, "checks": [asdict(check) for check in checks]})
    else:
        rows = [
            (check.name, "ok" if check.ok else "failed", check.detail, check.advice)
            for check in checks
        ]
        output.table(("PART", "STATE", "FOUND", "WHAT TO DO"), rows)
    raise typer.Exit(Code.OK if healthy else Code.FAILED)
