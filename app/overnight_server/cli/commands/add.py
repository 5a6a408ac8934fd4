"""`overnight add`: queue a task, and wait for it if asked; `queue` takes a bare prompt."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import (
    arguments,
    options,
    output,
    short_ids,
    task_output,
    wait_for_task,
)
from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight import Task

LONGEST_TITLE = 100
Strategy = Literal["exponential", "quadratic", "fixed", "immediate"]


def add(
    title: Annotated[str, typer.Argument(metavar="TITLE", help="What people read in lists.")],
    *,
    type_: Annotated[
        str | None,
        typer.Option(
            "--type",
            help="Which handler runs it; OVERNIGHT_DEFAULT_TYPE of the server if left out.",
            show_default="echo",
        ),
    ] = None,
    payload: Annotated[
        dict[str, object] | None,
        typer.Option(
            metavar="JSON|@FILE|-",
            help="What the handler works on: a JSON object, @file, or - for stdin.",
            parser=arguments.json_object,
        ),
    ] = None,
    description: Annotated[
        str | None,
        typer.Option(metavar="TEXT|@FILE|-", help="More about it.", parser=arguments.text_of),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT|@FILE|-",
            help="What an agent is asked to do.",
            parser=arguments.text_of,
        ),
    ] = None,
    project: Annotated[str | None, typer.Option(help="The project it belongs to.")] = None,
    priority: Annotated[
        int | None, typer.Option(min=1, max=4, help="1 critical, 2 high, 3 normal, 4 low.")
    ] = None,
    priority_score: Annotated[
        int | None, typer.Option(min=0, max=100, help="The exact score; 0 is most urgent.")
    ] = None,
    timeout: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            help="How long one run may take, such as 30m.",
            parser=arguments.seconds,
        ),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=100, help="How many runs may fail.")
    ] = None,
    retry: Annotated[
        Strategy | None, typer.Option(help="How the wait after a failed run grows.")
    ] = None,
    retry_delay: Annotated[
        int | None,
        typer.Option(metavar="DURATION", help="The wait it grows from.", parser=arguments.seconds),
    ] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What a worker must offer; may be repeated."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="The agent that must run it.")
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(metavar="USD", min=0, help="What it may cost before it pauses and asks."),
    ] = None,
    estimated_cost: Annotated[
        float | None,
        typer.Option(metavar="USD", min=0, help="What a run is thought to cost; else all it may."),
    ] = None,
    deadline: Annotated[
        datetime | None,
        typer.Option(
            metavar="DURATION|INSTANT",
            help="Not started by then, it fails: 8h, 07:00 (here) or 2030-01-31T07:00Z.",
            parser=arguments.deadline,
        ),
    ] = None,
    lock: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="What it needs alone, such as repo:site or path:src; may be repeated.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="A word to find it by; may be repeated."),
    ] = None,
    dag: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="A graph of yours that it joins, by any beginning or ending that only it has.",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="A second add with the same key gives the first task.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended.")] = False,
    wait_timeout: options.WaitTimeout = options.TEN_MINUTES,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Queue a task; prints its id, or with --wait how it ended."""
    if priority is not None and priority_score is not None:
        raise Failure("--priority and --priority-score exclude each other", code=Code.USAGE)
    policy = {"strategy": retry, "initial_delay_sec": retry_delay}
    with connection.client(url, api_key_file) as client:
        with short_ids.blamed_on("--dag"):
            graph = None if dag is None else short_ids.resolve_dag(client, dag)
            task = client.tasks.create(
                title,
                type=type_,
                payload=payload,
                description=description,
                prompt=prompt,
                project_id=project,
                priority=priority,
                priority_score=priority_score,
                timeout_seconds=timeout,
                max_attempts=max_attempts,
                retry={name: value for name, value in policy.items() if value is not None} or None,
                required_capabilities=capability,
                agent_name=agent,
                max_cost_usd=max_cost,
                estimated_cost_usd=estimated_cost,
                deadline_at=deadline,
                locks=lock,
                tags=tag,
                workflow_id=graph,
                idempotency_key=idempotency_key,
                source="cli",
            )
        if wait:
            wait_for_task.wait_and_show(client, task.id, wait_timeout, as_json=as_json)
        else:
            _show_added(task, as_json=as_json)


def queue(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT", help="What an agent is asked to do.", parser=arguments.text_of
        ),
    ],
    *,
    type_: Annotated[
        str | None,
        typer.Option(
            "--type",
            help="Which handler runs it; OVERNIGHT_DEFAULT_TYPE of the server if left out.",
            show_default="echo",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model the agent should use.")] = None,
    timeout: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", help="How long one run may take.", parser=arguments.seconds
        ),
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Queue a prompt; its beginning becomes the title."""
    words = " ".join(prompt.split())
    if not words:
        hint = "Say what an agent is asked to do, or where it is written: @FILE, or - for stdin."
        raise Failure("PROMPT: is empty", hint=hint, code=Code.USAGE)
    with connection.client(url, api_key_file) as client:
        task = client.tasks.create(
            words[:LONGEST_TITLE],
            type=type_,
            prompt=prompt,
            spec={"model": model} if model else None,
            timeout_seconds=timeout,
            source="cli",
        )
        _show_added(task, as_json=as_json)


def _show_added(task: "Task", *, as_json: bool) -> None:
    """Print the id alone, so that a script can keep it; the advice is for the person."""
    if as_json:
        task_output.show_task(task, as_json=True)
    else:
        output.line(task.id)
        output.note(f"Follow it with `overnight wait {task.id}`.")
