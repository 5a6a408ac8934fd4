"""`overnight completion`: shell completion of commands, options and task ids."""

from typing import Annotated, Literal

import typer

from overnight_server.cli.terminal import output

# A shell that hangs at the tab key is worse than one without suggestions.
TIMEOUT_SECONDS = 2.0
SUGGESTED = 50


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")
    ],
) -> None:
    """Print the completion script of your shell; enable it: eval "$(overnight completion bash)"."""
    from typer._completion_shared import get_completion_script

    output.line(
        get_completion_script(
            prog_name="overnight", complete_var="_OVERNIGHT_COMPLETE", shell=shell
        )
    )


def task_ids(incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of recent tasks with state and title; nothing if the server is not running."""
    from overnight import Client, OvernightError
    from overnight_server.cli.connection import find_server
    from overnight_server.cli.terminal.failures import CommandFailure

    try:
        server = find_server(None, None)
        with Client(server.url, server.api_key, retries=0, timeout=TIMEOUT_SECONDS) as client:
            recent = list(client.tasks.list(limit=SUGGESTED))
    except (CommandFailure, OvernightError):
        return []
    return [
        (task.id, output.printable(f"{task.state}: {task.title}"))
        for task in recent
        if task.id.lower().startswith(incomplete.lower())
    ]
