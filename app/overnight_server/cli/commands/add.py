"""`overnight add` and `overnight queue`: submit a task, or a prompt for an agent."""

from collections.abc import Mapping
from datetime import datetime, timedelta
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
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Task

LONGEST_TITLE = 100
Strategy = Literal["exponential", "quadratic", "fixed", "immediate"]
Runner = Literal["python", "command", "http"]


def add(
    title: Annotated[str, typer.Argument(metavar="TITLE", help="Title shown in lists.")],
    *,
    type_: Annotated[
        str | None,
        typer.Option(
            "--type",
            help="Task type; it selects the handler. Default: the server's OVERNIGHT_DEFAULT_TYPE.",
            show_default="echo",
        ),
    ] = None,
    payload: Annotated[
        dict[str, object] | None,
        typer.Option(
            metavar="JSON|@FILE|-",
            help="Input of the handler: a JSON object, @file, or - for stdin.",
            parser=arguments.json_object,
        ),
    ] = None,
    description: Annotated[
        str | None,
        typer.Option(metavar="TEXT|@FILE|-", help="Longer description.", parser=arguments.text_of),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT|@FILE|-",
            help="Instructions for an agent.",
            parser=arguments.text_of,
        ),
    ] = None,
    project: Annotated[str | None, typer.Option(help="Project of the task.")] = None,
    priority: Annotated[
        int | None, typer.Option(min=1, max=4, help="1 critical, 2 high, 3 normal, 4 low.")
    ] = None,
    priority_score: Annotated[
        int | None, typer.Option(min=0, max=100, help="Exact score; 0 is the most urgent.")
    ] = None,
    timeout: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            help="Longest duration of one run, such as 30m.",
            parser=arguments.seconds,
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            min=1, max=100, help="Number of failed runs after which the task fails for good."
        ),
    ] = None,
    retry: Annotated[
        Strategy | None, typer.Option(help="How the delay between retries grows.")
    ] = None,
    retry_delay: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", help="Delay before the first retry.", parser=arguments.seconds
        ),
    ] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Capability that the worker must have; repeatable."),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="Agent profile whose command runs the task; TITLE is the prompt without --prompt.",
        ),
    ] = None,
    agent_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Pull agent that must run the task.")
    ] = None,
    runner: Annotated[
        Runner | None,
        typer.Option(
            help="What runs the task: a Python handler (default), the command after --, or an HTTP "
            "agent."
        ),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND ARGUMENT",
            help="Program and arguments of --runner command, without a shell.",
            show_default=False,
        ),
    ] = None,
    repo: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|URL",
            help="Git repository to work on; a path is one of the worker's machine.",
            parser=arguments.repository,
        ),
    ] = None,
    ref: Annotated[str | None, typer.Option(help="Branch, tag or commit to start from.")] = None,
    parallel: Annotated[
        bool,
        typer.Option("--parallel", help="Run beside other tasks of the same repository."),
    ] = False,
    model: Annotated[str | None, typer.Option(help="Model that the agent should use.")] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Host that the command may reach; repeatable."),
    ] = None,
    memory_mb: Annotated[
        int | None, typer.Option(min=64, help="Memory that the command may use.")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, max=300, help="Time to end after SIGTERM. Default: 10."
        ),
    ] = None,
    validate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD=VALUE",
            help="Validator of the output: size=BYTES, json-schema=JSON or =@FILE, regex=PATTERN, "
            "or test-pass=COMMAND for --runner command; repeatable.",
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(
            metavar="USD",
            min=0,
            help="Cost limit. At the limit the task pauses until somebody approves more.",
        ),
    ] = None,
    estimated_cost: Annotated[
        float | None,
        typer.Option(
            metavar="USD", min=0, help="Expected cost of one run. Default: the cost limit."
        ),
    ] = None,
    deadline: Annotated[
        datetime | None,
        typer.Option(
            metavar="DURATION|INSTANT",
            help="The task fails if it has not started by then: 8h, 07:00 (local) or "
            "2030-01-31T07:00Z.",
            parser=arguments.deadline,
        ),
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(
            metavar="INSTANT",
            help="Do not start before this instant: 02:00 (local) or 2030-01-31T02:00Z.",
            parser=arguments.future_instant,
        ),
    ] = None,
    in_: Annotated[
        int | None,
        typer.Option(
            "--in",
            metavar="DURATION",
            help="Do not start before this time has passed, such as 3h.",
            parser=arguments.seconds,
        ),
    ] = None,
    lock: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Lock that no other task may hold meanwhile, such as repo:site or path:src; "
            "repeatable.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="TAG", help="Tag for searching; repeatable."),
    ] = None,
    dag: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Add the task to this graph: its id, or a unique beginning or ending of it.",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="A second submission with the same key returns the first task."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the task has ended.")] = False,
    wait_timeout: options.WaitTimeout = options.TEN_MINUTES,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Submit a task and print its id; with --wait, wait for its end and print the task."""
    if priority is not None and priority_score is not None:
        raise CommandFailure(
            "--priority and --priority-score cannot be used together", code=Code.USAGE
        )
    if at is not None and in_ is not None:
        raise CommandFailure("--at and --in cannot be used together", code=Code.USAGE)
    if in_ is not None:
        at = datetime.now().astimezone() + timedelta(seconds=in_)
    if command and runner not in {None, "command"}:
        hint = "Pass --runner command, or no command."
        raise CommandFailure(f"the runner {runner} runs no command", hint=hint, code=Code.USAGE)
    validators = [arguments.validator(text) for text in validate or ()]
    policy = {"strategy": retry, "initial_delay_sec": retry_delay}
    limits = {"memory_mb": memory_mb, "grace_seconds": grace}
    spec = {"model": model, "argv": command or None}
    with connection.client(url, api_key_file) as client:
        with short_ids.naming_option("--dag"):
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
                retry=_given(policy),
                required_capabilities=capability,
                agent_name=agent_name,
                agent=agent,
                runner="command" if command and agent is None else runner,
                network={"allow": allow_host} if allow_host else None,
                limits=_given(limits),
                repo=repo,
                ref=ref,
                parallel=parallel or None,
                spec=_given(spec),
                output_validation=validators or None,
                max_cost_usd=max_cost,
                estimated_cost_usd=estimated_cost,
                deadline_at=deadline,
                start_at=at,
                locks=lock,
                tags=tag,
                workflow_id=graph,
                idempotency_key=idempotency_key,
                source="cli",
            )
        for warning in task.warnings:
            output.note(f"Warning: {warning}")
        if wait:
            wait_for_task.wait_and_show(client, task.id, wait_timeout, as_json=as_json)
        else:
            _show_added(task, as_json=as_json)


def _given(values: Mapping[str, object]) -> dict[str, object] | None:
    """Return the values that are not None; None if all are."""
    return {name: value for name, value in values.items() if value is not None} or None


def queue(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT", help="Instructions for an agent.", parser=arguments.text_of
        ),
    ],
    *,
    type_: Annotated[
        str | None,
        typer.Option(
            "--type",
            help="Task type; it selects the handler. Default: the server's OVERNIGHT_DEFAULT_TYPE.",
            show_default="echo",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model that the agent should use.")] = None,
    timeout: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", help="Longest duration of one run.", parser=arguments.seconds
        ),
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Submit a prompt for an agent; the beginning of the prompt becomes the title."""
    title = " ".join(prompt.split())
    if not title:
        hint = "Write the prompt as an argument, or pass @FILE, or - for stdin."
        raise CommandFailure("PROMPT is empty.", hint=hint, code=Code.USAGE)
    with connection.client(url, api_key_file) as client:
        task = client.tasks.create(
            title[:LONGEST_TITLE],
            type=type_,
            prompt=prompt,
            spec={"model": model} if model else None,
            timeout_seconds=timeout,
            source="cli",
        )
        _show_added(task, as_json=as_json)


def _show_added(task: "Task", *, as_json: bool) -> None:
    """Print the id alone on stdout, so that a script can read it; the advice goes to stderr."""
    if as_json:
        task_output.show_task(task, as_json=True)
    else:
        output.line(task.id)
        if task.start_at is not None and not task.is_final:
            output.note(f"It does not start before {output.instant(task.start_at)}.")
        output.note(f"Wait for it with `overnight wait {output.shown_id(task.id)}`.")
