"""`overnight hooks`: webhooks of other services become tasks."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import batch_files
from overnight_server.cli.terminal import arguments, options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Client
    from overnight.models.hooks import Hook, HookCreated, HookDelivery

app = typer.Typer(help="Let webhooks of other services make tasks.", no_args_is_help=True)
HEADERS = ("ID", "NAME", "SCHEME", "STATE", "MAKES", "LAST DELIVERY")
DELIVERY_HEADERS = ("NUMBER", "RECEIVED", "OUTCOME", "BYTES", "TASKS", "REASON")
SCHEMES = "standard|github|slack|stripe|token"
ONCE = "Give address and secret to the sender now; the secret cannot be shown again."
DAY = 86_400
Source = Annotated[
    str,
    typer.Argument(metavar="NAME|ID", help="Name of the source, or a unique part of its id."),
]
Filter = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="POINTER=VALUE",
        help="Take only events with this value, such as /body/action=opened; a JSON list means one"
        " of its values. Repeatable.",
    ),
]
File = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE]",
        help="YAML or JSON with task or graph, filter and other fields; - reads stdin.",
    ),
]
SecretFile = Annotated[
    Path | None,
    typer.Option("--secret-file", help="File with the sender's secret. Default: a new secret."),
]
PerMinute = Annotated[
    int | None, typer.Option("--per-minute", help="Deliveries that are taken in a minute.")
]
IdPointer = Annotated[
    str | None,
    typer.Option(
        "--id-pointer", metavar="POINTER", help="Where an event names its delivery: /body/id."
    ),
]
Agent = Annotated[
    str | None, typer.Option("--agent", metavar="PROFILE", help="Agent profile of the task.")
]
Type = Annotated[str | None, typer.Option("--type", help="Type of the task.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new source.")],
    file: File = None,
    *,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="github|generic", help="Filter and task for pull requests, or for any event."
        ),
    ] = None,
    scheme: Annotated[
        str | None, typer.Option(metavar=SCHEMES, help="How the sender proves who it is.")
    ] = None,
    header: Annotated[
        str | None, typer.Option(help="Header with the signature or token, if not the usual one.")
    ] = None,
    id_pointer: IdPointer = None,
    conditions: Filter = None,
    agent: Agent = None,
    task_type: Type = None,
    per_minute: PerMinute = None,
    secret_file: SecretFile = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Add a source of webhooks; print its address and its secret, which is shown once."""
    given = {
        "preset": preset,
        "scheme": scheme,
        "header": header,
        "id_pointer": id_pointer,
        "filter": _filter(conditions),
        "per_minute": per_minute,
        "secret": _secret(secret_file),
    }
    fields = _fields_of(file) | {
        field: value for field, value in given.items() if value is not None
    }
    fields = _with_task_fields(fields, agent=agent, type=task_type)
    if fields.keys().isdisjoint({"preset", "task", "graph"}):
        hint = "Name a FILE with a task or a graph, or --preset github or generic."
        raise CommandFailure("The source would make no task.", hint=hint, code=Code.USAGE)
    with connection.client(url, api_key_file) as client:
        created = client.hooks.create(name, **_typed(fields))
        _show_secret(client, created, as_json=as_json)


@app.command("list")
def list_(
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your sources of webhooks."""
    with connection.client(url, api_key_file) as client:
        hooks = client.hooks.list()
    if as_json:
        output.document([task_output.as_document(hook) for hook in hooks])
        return
    rows = [
        (output.Id(hook.id), hook.name, hook.scheme, _state(hook), _made(hook), _last(hook))
        for hook in hooks
    ]
    output.table(HEADERS, rows, empty="No sources of webhooks.")


@app.command()
def get(
    source: Source,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show one source of webhooks."""
    with connection.client(url, api_key_file) as client:
        _show(client, short_ids.resolve_hook(client, source), as_json=as_json)


@app.command()
def edit(
    source: Source,
    file: File = None,
    *,
    name: Annotated[str | None, typer.Option(help="New name.")] = None,
    header: Annotated[str | None, typer.Option(help="Header with the signature or token.")] = None,
    id_pointer: IdPointer = None,
    conditions: Filter = None,
    per_minute: PerMinute = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Change a source of webhooks; its address and its secret stay."""
    given = {
        "name": name,
        "header": header,
        "id_pointer": id_pointer,
        "filter": _filter(conditions),
        "per_minute": per_minute,
    }
    changes = _fields_of(file) | {name: value for name, value in given.items() if value is not None}
    if not changes:
        hint = "Name a FILE, or --name, --header, --id-pointer, --filter or --per-minute."
        raise CommandFailure("Nothing would change.", hint=hint, code=Code.USAGE)
    with connection.client(url, api_key_file) as client:
        hook = short_ids.resolve_hook(client, source)
        _show(client, client.hooks.edit(hook.id, **_typed(changes)), as_json=as_json)


@app.command()
def pause(
    source: Source,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Let a source answer as if it did not exist."""
    with connection.client(url, api_key_file) as client:
        hook = client.hooks.pause(short_ids.resolve_hook(client, source).id)
    if as_json:
        output.document(task_output.as_document(hook))
    else:
        output.line(f"{hook.name} is paused. Its sender gets the answer 401.")


@app.command()
def resume(
    source: Source,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """End the pause of a source."""
    with connection.client(url, api_key_file) as client:
        hook = client.hooks.resume(short_ids.resolve_hook(client, source).id)
    if as_json:
        output.document(task_output.as_document(hook))
    else:
        output.line(f"{hook.name} takes webhooks.")


@app.command()
def rotate(
    source: Source,
    *,
    overlap: Annotated[
        int,
        typer.Option(
            metavar="DURATION",
            help="How long the old secret is accepted too.",
            parser=arguments.seconds,
            show_default="1d",
        ),
    ] = DAY,
    secret_file: SecretFile = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Give a source a new secret and print it; for a while the old one is accepted too."""
    with connection.client(url, api_key_file) as client:
        hook_id = short_ids.resolve_hook(client, source).id
        secret = _secret(secret_file)
        created = client.hooks.rotate(hook_id, secret=secret, overlap_seconds=overlap)
        _show_secret(client, created, as_json=as_json)


@app.command()
def deliveries(
    source: Source,
    *,
    outcome: Annotated[
        str | None,
        typer.Option(metavar="accepted|ignored|failed", help="Only deliveries with this outcome."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Largest number of deliveries.")] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List what a source received, latest first, and what became of it."""
    with connection.client(url, api_key_file) as client:
        hook = short_ids.resolve_hook(client, source)
        received = list(client.hooks.deliveries(hook.id, outcome=outcome, limit=limit))
    if as_json:
        output.document([task_output.as_document(delivery) for delivery in received])
        return
    rows = [_delivery_row(delivery) for delivery in received]
    output.table(DELIVERY_HEADERS, rows, empty="No deliveries.", optional=("BYTES",))


@app.command()
def replay(
    delivery: Annotated[int, typer.Argument(metavar="NUMBER", help="Number of the delivery.")],
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Make tasks of a delivery again, with the filter and the template of today."""
    with connection.client(url, api_key_file) as client:
        received = client.hooks.replay(delivery)
    if as_json:
        output.document(task_output.as_document(received))
        return
    for task_id in received.task_ids:
        output.line(task_id)
    output.note(f"Delivery {received.delivery_id} is {received.outcome}.")


@app.command()
def remove(
    source: Source,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Remove a source of webhooks; tasks that it made stay."""
    with connection.client(url, api_key_file) as client:
        hook = short_ids.resolve_hook(client, source)
        removed = client.hooks.remove(hook.id)
    if as_json:
        output.document(task_output.as_document(removed))
    else:
        output.line(f"{hook.name} removed")


def _show_secret(client: "Client", created: "HookCreated", *, as_json: bool) -> None:
    address = _address(client, created)
    if as_json:
        output.document({**_as_dict(created), "address": address})
        return
    output.record({"id": created.id, "address": address, "secret": created.secret})
    output.note(ONCE)


def _show(client: "Client", hook: "Hook", *, as_json: bool) -> None:
    shown = {**_as_dict(hook), "address": _address(client, hook)}
    if as_json:
        output.document(shown)
    else:
        output.record({name: value for name, value in shown.items() if name != "path"})


def _as_dict(hook: "Hook") -> dict[str, Any]:
    fields: dict[str, Any] = hook.model_dump(exclude_none=True)
    return fields


def _address(client: "Client", hook: "Hook") -> str:
    return str(client.transport.http.base_url).rstrip("/") + hook.path


def _delivery_row(delivery: "HookDelivery") -> tuple[object, ...]:
    tasks = ", ".join(output.shown_id(task_id) for task_id in delivery.task_ids[:3])
    more = len(delivery.task_ids) - 3
    return (
        delivery.id,
        delivery.received_at,
        delivery.outcome,
        delivery.bytes,
        f"{tasks} and {more} more" if more > 0 else tasks,
        delivery.reason,
    )


def _state(hook: "Hook") -> str:
    if hook.paused_at is not None:
        return "paused"
    refused_at, received_at = hook.last_refused_at, hook.last_received_at
    if refused_at is not None and (received_at is None or received_at < refused_at):
        return f"refused {output.short_instant(refused_at)}"
    return "active"


def _made(hook: "Hook") -> str:
    template = hook.graph or hook.task or {}
    return str(template.get("title", "graph" if hook.graph else "task"))


def _last(hook: "Hook") -> object:
    return hook.last_received_at or "never"


def _filter(conditions: list[str] | None) -> list[dict[str, Any]] | None:
    """Return the conditions of options such as `/body/action=opened`; None without any."""
    if not conditions:
        return None
    return [_condition(condition) for condition in conditions]


def _condition(text: str) -> dict[str, Any]:
    pointer, equals, given = text.partition("=")
    if not equals:
        hint = "Write POINTER=VALUE, such as /body/action=opened."
        raise CommandFailure(f"--filter: {text!r} has no value.", hint=hint, code=Code.USAGE)
    try:
        value = json.loads(given)
    except ValueError:
        value = given
    comparison = "one_of" if isinstance(value, list) else "equals"
    return {"pointer": pointer, comparison: value}


def _secret(file: Path | None) -> str | None:
    return None if file is None else arguments.text_of(f"@{file}").strip()


def _fields_of(file: str | None) -> dict[str, Any]:
    """Return the fields of a file; raise CommandFailure unless the file is one object."""
    if file is None:
        return {}
    text = arguments.text_of("-" if file == "-" else f"@{file}")
    try:
        documents = [document.value for document in batch_files.read(text)]
    except batch_files.Unreadable as error:
        raise CommandFailure(f"{file} {error}", code=Code.USAGE) from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        hint = "Write task or graph, filter, scheme; docs/guides/events-in.md."
        raise CommandFailure(f"{file} is not one object.", hint=hint, code=Code.USAGE)
    return documents[0]


def _with_task_fields(fields: dict[str, Any], **task_fields: str | None) -> dict[str, Any]:
    given = {name: value for name, value in task_fields.items() if value is not None}
    if not given:
        return fields
    if "graph" in fields:
        hint = "Set agent and type of each task in the FILE."
        raise CommandFailure("The source makes a graph.", hint=hint, code=Code.USAGE)
    task = fields.get("task", {})
    return {**fields, "task": {**task, **given} if isinstance(task, dict) else task}


def _typed(changes: dict[str, Any]) -> Any:  # noqa: ANN401 - the client checks the fields
    return changes
