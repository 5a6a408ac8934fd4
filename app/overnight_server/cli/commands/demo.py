"""`overnight demo`: see a whole night in seconds, without a worker or a task of your own."""

from dataclasses import asdict
from typing import Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output
from overnight_server.cli.terminal.failures import CommandFailure


def demo(
    *,
    seconds: Annotated[
        float,
        typer.Option(
            min=0, max=3600, help="Let the night take this long, to watch it; 0: at once."
        ),
    ] = 0.0,
    stay: Annotated[
        bool,
        typer.Option(
            "--stay/--no-stay", help="Serve the demo until Ctrl-C, or end after the night."
        ),
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Play a night of forty tasks for three users, and open its morning.

    The demo has a Postgres, a Redis and an API of its own in the directory `demo` of the home, and
    leaves your tasks alone. The real gate decides what runs; only the clock is moved, and the
    runs are played. Each demo begins anew.
    """
    from overnight_server.demo.stack import run_demo
    from overnight_server.local.errors import LocalError

    try:
        report = run_demo(connection.settings(), seconds=seconds, stays=stay, is_quiet=as_json)
    except LocalError as error:
        raise CommandFailure(f"Cannot play the demo: {error}") from error
    if as_json:
        output.document(asdict(report))
