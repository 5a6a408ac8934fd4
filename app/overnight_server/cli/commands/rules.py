"""`overnight rule`: bad figures of your own runs file a task."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import batch_files
from overnight_server.cli.terminal import arguments, options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight.models.rules import ImprovementRule, RuleFigure

app = typer.Typer(help="File a task when figures of your runs are bad.", no_args_is_help=True)
HEADERS = ("ID", "NAME", "WHEN", "LAST TASK", "PROBLEM")
FIGURE_HEADERS = ("SUBJECT", "VALUE", "TASKS", "RUNS", "FAILED", "STATE")
FIGURES = "failure_rate|retries|cost_usd|duration_seconds"
DAY = 86_400
RuleRef = Annotated[
    str, typer.Argument(metavar="NAME|ID", help="Name of the rule, or a unique part of its id.")
]


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new rule.")],
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="Task to file, YAML or JSON; - reads stdin."),
    ] = None,
    *,
    figure: Annotated[str, typer.Option(metavar=FIGURES, help="What is measured.")],
    above: Annotated[float, typer.Option(help="A task is filed above this value.")],
    by: Annotated[
        str, typer.Option(metavar="type|tag|agent", help="By what tasks are grouped.")
    ] = "type",
    subject: Annotated[
        str | None, typer.Option(help="Only this type, tag or agent. Default: each.")
    ] = None,
    window: Annotated[
        int,
        typer.Option(
            metavar="DURATION",
            help="How far back ended tasks count.",
            parser=arguments.seconds,
            show_default="1d",
        ),
    ] = DAY,
    min_tasks: Annotated[
        int, typer.Option("--min-tasks", help="How many tasks must have ended in the window.")
    ] = 10,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Add a rule: while a figure is above a value, one task is filed for each subject."""
    fields: dict[str, Any] = {"by": by, "window_seconds": window, "min_tasks": min_tasks}
    if subject is not None:
        fields["subject"] = subject
    if file is not None:
        fields["task"] = _task_in(file)
    with connection.client(url, api_key_file) as client:
        rule = client.rules.create(name, figure=figure, above=above, **_typed(fields))
    if as_json:
        output.document(task_output.as_document(rule))
    else:
        output.line(rule.id)
        output.note(f"A task will be filed for each {rule.by} when {_condition(rule)}.")


@app.command("list")
def list_(
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your rules."""
    with connection.client(url, api_key_file) as client:
        rules = client.rules.list()
    if as_json:
        output.document([task_output.as_document(rule) for rule in rules])
        return
    rows = [
        (
            output.Id(rule.id),
            rule.name,
            _condition(rule),
            "none" if rule.last_task_id is None else output.Id(rule.last_task_id),
            rule.problem,
        )
        for rule in rules
    ]
    output.table(HEADERS, rows, empty="No rules.", optional=("PROBLEM",))


@app.command()
def check(
    rule: RuleRef,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show what a rule measures now; nothing is filed."""
    with connection.client(url, api_key_file) as client:
        found = short_ids.resolve_rule(client, rule)
        figures = client.rules.figures(found.id)
    if as_json:
        output.document([task_output.as_document(figure) for figure in figures])
        return
    rows = [
        (each.subject, each.value, each.tasks, each.runs, each.failures, _state(each, found))
        for each in figures
    ]
    output.table(FIGURE_HEADERS, rows, empty="No task has ended in the window.")


@app.command()
def remove(
    rule: RuleRef,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Remove a rule; tasks that it has filed stay."""
    with connection.client(url, api_key_file) as client:
        found = short_ids.resolve_rule(client, rule)
        removed = client.rules.remove(found.id)
    if as_json:
        output.document(task_output.as_document(removed))
    else:
        output.line(f"{found.name} removed")


def _condition(rule: "ImprovementRule") -> str:
    subject = f" of {rule.subject}" if rule.subject else ""
    window = output.duration(rule.window_seconds)
    return f"{rule.figure}{subject} is above {rule.above:g} in {window}, {rule.min_tasks} tasks"


def _state(figure: "RuleFigure", rule: "ImprovementRule") -> str:
    if figure.open_task_id is not None:
        return f"filed: {output.shown_id(figure.open_task_id)}"
    if figure.is_bad:
        return "a task will be filed"
    return "too few tasks" if figure.tasks < rule.min_tasks else "good"


def _task_in(file: str) -> dict[str, Any]:
    """Return the task of a file; raise CommandFailure unless the file is one object."""
    text = arguments.text_of("-" if file == "-" else f"@{file}")
    try:
        documents = [document.value for document in batch_files.read(text)]
    except batch_files.Unreadable as error:
        raise CommandFailure(f"{file} {error}", code=Code.USAGE) from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        hint = "Write the fields of one task; docs/guides/rules.md."
        raise CommandFailure(f"{file} is not one object.", hint=hint, code=Code.USAGE)
    return documents[0]


def _typed(fields: dict[str, Any]) -> Any:  # noqa: ANN401 - the client checks the fields
    return fields
