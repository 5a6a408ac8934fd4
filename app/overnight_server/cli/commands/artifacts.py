"""Commands for artifacts: what runs stored besides their output."""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Client

app = typer.Typer(no_args_is_help=True, help="What runs stored besides their output.")
HEADERS = ("ID", "NAME", "KIND", "BYTES", "CREATED")
ArtifactId = Annotated[
    str, typer.Argument(metavar="ARTIFACT", help="Id of the artifact: art_ and 26 characters.")
]
#: The ends of names of files that no program executes when it opens them.
OPENED = frozenset(
    f".{kind}"
    for kind in (
        *("csv", "diff", "gif", "jpeg", "jpg", "json", "log", "md", "patch", "pdf", "png", "toml"),
        *("tsv", "txt", "webp", "yaml", "yml"),
    )
)


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
        if to is not None:
            output.note(f"{_save(client, artifact, to)} bytes written to {to}.")
        elif output.is_terminal(sys.stdout):
            _show(client, artifact)
        else:
            client.tasks.save_artifact(artifact, sys.stdout.buffer)
            sys.stdout.buffer.flush()


def _save(client: "Client", artifact: str, to: Path) -> int:
    """Write an artifact to a new file; a failure leaves no file. Return its size."""
    try:
        with to.open("xb") as file:
            try:
                return client.tasks.save_artifact(artifact, file)
            except BaseException:
                to.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise CommandFailure(
            f"{to} exists already; nothing was written. Choose another name.", code=Code.USAGE
        ) from None
    except OSError as error:
        raise CommandFailure(
            f"{to} cannot be written: {error.strerror}. Choose another name.", code=Code.USAGE
        ) from None


def _show(client: "Client", artifact: str) -> None:
    """Print an artifact on a terminal, which other bytes than text could change."""
    if client.tasks.artifact_details(artifact).kind == "bytes":
        raise CommandFailure(
            "The artifact is not text. Write it to a file with -o, or pipe it.", code=Code.USAGE
        )
    output.text(output.log_text(client.tasks.artifact(artifact).decode()))


@app.command("open")
def open_(
    artifact: ArtifactId, *, url: options.Url = None, api_key_file: options.KeyFile = None
) -> None:
    """Save an artifact as a temporary file, and open it with the program for its kind.

    Only documents and images are opened: a run can store programs too.
    """
    with connection.client(url, api_key_file) as client:
        suffix = Path(client.tasks.artifact_details(artifact).name).suffix.lower()
        is_opened = suffix in OPENED
        name = _save_temporarily(client, artifact, suffix if is_opened else "")
    output.line(name)
    if is_opened:
        typer.launch(name)
    else:
        output.note("It was only saved: its name is not that of a document or an image.")


def _save_temporarily(client: "Client", artifact: str, suffix: str) -> str:
    """Write an artifact to a new temporary file that stays; return its name."""
    with tempfile.NamedTemporaryFile(prefix="overnight-", suffix=suffix, delete=False) as file:
        try:
            client.tasks.save_artifact(artifact, file.file)
        except BaseException:
            Path(file.name).unlink()
            raise
    return file.name


@app.command()
def delete(
    artifact: ArtifactId, *, url: options.Url = None, api_key_file: options.KeyFile = None
) -> None:
    """Delete an artifact for good, to make room for others."""
    with connection.client(url, api_key_file) as client:
        client.tasks.delete_artifact(artifact)
    output.line(f"Deleted {artifact}.")
