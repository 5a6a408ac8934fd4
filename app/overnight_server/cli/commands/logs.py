"""The command that prints what the runs of a task printed and logged."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, short_ids, task_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overnight import Client
    from overnight.models.account import LogChunk


def logs(
    task: options.TaskRef,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines too, until the task has ended.")
    ] = False,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, metavar="RUN", help="Print only this run; `overnight get` lists them."),
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Print what the runs of a task printed and logged; with --json, one object per line."""
    with connection.client(url, api_key_file) as client:
        task_id = short_ids.resolve(client, task)
        if follow:
            chunks = client.tasks.follow_logs(task_id, attempt=attempt)
        else:
            chunks = _stored(client, task_id, attempt)
        if as_json:
            for chunk in chunks:
                output.documents([task_output.as_document(chunk)])
                output.text("")
        else:
            _print(chunks, attempt)


def _stored(client: "Client", task_id: str, attempt: int | None) -> "Iterator[LogChunk]":
    after = None
    while page := client.tasks.logs(task_id, after=after, attempt=attempt):
        yield from page
        after = page[-1].id


def _print(chunks: "Iterator[LogChunk]", attempt: int | None) -> None:
    """Print the text of the log; a message on stderr says where a run begins."""
    epoch, ends_line = None, True
    for chunk in chunks:
        if chunk.epoch != epoch:
            output.text("" if ends_line else "\n")
            output.note(f"run {chunk.epoch}:")
            epoch = chunk.epoch
        output.text(output.log_text(chunk.text))
        ends_line = chunk.text.endswith("\n")
    output.text("" if ends_line else "\n")
    if epoch is None:
        run = "no run has" if attempt is None else f"run {attempt} does not exist, or has not"
        output.note(f"The log is empty: {run} printed or logged anything.")
