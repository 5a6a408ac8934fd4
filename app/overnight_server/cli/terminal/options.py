"""Options that many commands share, worded once."""

from pathlib import Path
from typing import Annotated

import typer

from overnight_server.cli.commands import completion
from overnight_server.cli.terminal import arguments
from overnight_server.domain.windows import AtClosing

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Where the server answers; else OVERNIGHT_URL, a profile, or the local home.",
        rich_help_panel="Connection",
    ),
]
# The key itself is never an argument: everybody on the machine can read those.
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        help="A file that holds the API key; else OVERNIGHT_API_KEY, else the local home.",
        rich_help_panel="Connection",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="The server of this profile; else OVERNIGHT_PROFILE, else the default one.",
        rich_help_panel="Connection",
    ),
]
JsonLines = Annotated[bool, typer.Option("--jsonl", help="Print one JSON document per line.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
TaskRef = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The task's id, any beginning or ending that only it has, or GRAPH/TASK.",
        autocompletion=completion.task_ids,
    ),
]
WaitTimeout = Annotated[
    int,
    typer.Option(
        metavar="DURATION",
        help="How long to wait at most, such as 90s, 30m or 8h.",
        parser=arguments.seconds,
        show_default="10m",
    ),
]
TEN_MINUTES = 600
WindowZone = Annotated[
    str | None, typer.Option(help="The time zone, an IANA name such as Europe/Berlin.")
]
WindowOpens = Annotated[
    str | None, typer.Option("--from", metavar="HH:MM", help="When work may begin to start.")
]
WindowCloses = Annotated[
    str | None,
    typer.Option("--to", metavar="HH:MM", help="When it ends; the next day if before --from."),
]
WindowAtClosing = Annotated[
    AtClosing | None,
    typer.Option(
        help="At closing time, runs are handed back (stop) or finish; what was waiting by then "
        "may still start (continue).",
        show_default="finish",
    ),
]
WindowOff = Annotated[bool, typer.Option("--off", help="Let work start at any time.")]
