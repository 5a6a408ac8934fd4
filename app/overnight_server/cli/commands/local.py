"""`overnight up`, `down` and `doctor`: start, stop and check the local stack."""

from dataclasses import asdict
from pathlib import Path
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
    allow_repo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Git repository, or a directory above some, that commands may work on besides "
            "those below this directory; repeatable; later starts allow it again, '' forgets all.",
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
    raise typer.Exit(
        start(
            settings,
            detach=detach,
            handlers=chosen,
            repositories=None if allow_repo is None else _directories(allow_repo),
            reload=reload,
        )
    )


def _directories(paths: list[str]) -> list[str]:
    """Return paths as absolute paths of directories; raise BadParameter for any other."""
    resolved = [Path(path).expanduser().resolve() for path in paths if path]
    for path in resolved:
        if not path.is_dir() or "," in str(path):
            reason = "has a comma in its path" if path.is_dir() else "is no directory"
            raise typer.BadParameter(f"{path} {reason}", param_hint="--allow-repo")
    return [str(path) for path in resolved]


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
