"""`overnight up`, `down` and `doctor`: start, stop and check the local stack."""

from dataclasses import asdict
from typing import Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output
from overnight_server.cli.terminal.failures import Code

CHECK_HEADERS = ("PART", "STATE", "RESULT")


def up(
    *,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when everything is ready; keep it running.")
    ] = False,
    handlers: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Modules with your handlers; later starts use them again, '' forgets them.",
        ),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Load the handlers again when a Python file changes.")
    ] = False,
) -> None:
    """Start Postgres, Redis and all processes on this machine; Ctrl-C stops them."""
    from overnight_server.local.up import up as start

    modules = None if handlers is None else [name.strip() for name in handlers.split(",")]
    chosen = modules and [name for name in modules if name]
    settings = connection.settings()
    raise typer.Exit(start(settings, detach=detach, handlers=chosen, reload=reload))


def down() -> None:
    """Stop the local stack of this directory, from any terminal."""
    from overnight_server.local.up import down as stop

    raise typer.Exit(stop(connection.settings()))


def doctor(*, as_json: options.Json = False) -> None:
    """Check every part of the deployment and print what to do; exit 1 if a check fails."""
    from overnight_server.local.doctor import run_checks

    checks = run_checks(connection.settings())
    healthy = all(check.ok for check in checks)
    if as_json:
        output.document({"ok": healthy, "checks": [asdict(check) for check in checks]})
    else:
        rows = [
            (check.name, "ok" if check.ok else "failed", _result(check.detail, check.advice))
            for check in checks
        ]
        output.table(CHECK_HEADERS, rows)
    raise typer.Exit(Code.OK if healthy else Code.FAILED)


def _result(detail: str, advice: str) -> str:
    """Return what a check found, followed by what to do."""
    return f"{detail}. {advice}" if advice else detail
