"""Commands for artifacts: what runs stored besides their output."""

import re
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure

app = typer.Typer(no_args_is_help=True, help="What runs stored besides their output.")
HEADERS = ("ID", "NAME", "KIND", "BYTES", "CREATED")
ArtifactId = Annotated[
    str, typer.Argument(metavar="ARTIFACT", help="Id of the artifact: art_ and 26 characters.")
]
# The end of a name that tells a program what the file is.
_SUFFIX = re.compile(r"\.[a-z0-9]{1,8}$", re.IGNORECASE)


@app.command("list")
def list_(
    task: options.TaskRef,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List the artifacts of a task."""
    with connection.client(url, api_key_file) as client:
        artifacts = client.tasks.artifacts(short_ids.resolve(client, task))
    if as_json:
        output.document([task_output.as_document(artifact) for artifact in artifacts])
        return
    rows = [
        (each.id, each.name, each.kind, each.size, output.instant_of_this_year(each.created_at))
        for each in artifacts
    ]
    output.table(HEADERS, rows, empty="The task has no artifacts.", wrap=False)


@app.command()
def get(
    artifact: ArtifactId,
    *,
    to: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this new file instead of stdout."),
    ] = None,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Write the content of an artifact to stdout, or to a file that does not exist yet."""
    with connection.client(url, api_key_file) as client:
        if to is None:
            client.tasks.save_artifact(artifact, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        try:
            with to.open("xb") as file:
                size = client.tasks.save_artifact(artifact, file)
        except FileExistsError:
            raise CommandFailure(
                f"{to} exists already; nothing was written. Choose another name.", code=Code.USAGE
            ) from None
    output.note(f"{size} bytes written to {to}.")


@app.command("open")
def open_(
    artifact: ArtifactId, *, url: options.Url = None, api_key_file: options.KeyFile = None
) -> None:
    """Save an artifact as a temporary file, and open it with the program for its kind."""
    with connection.client(url, api_key_file) as client:
        name = client.tasks.artifact_details(artifact).name
        suffix = found[0] if (found := _SUFFIX.search(name)) else ""
        with tempfile.NamedTemporaryFile(prefix="overnight-", suffix=suffix, delete=False) as file:
            client.tasks.save_artifact(artifact, file.file)
    output.line(file.name)
    typer.launch(file.name)
