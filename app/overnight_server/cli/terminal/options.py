"""Options and arguments that several commands share."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from overnight.models.enums import AtClosing
from overnight_server.cli import connection
from overnight_server.cli.commands import completion
from overnight_server.cli.terminal import arguments, output
from overnight_server.cli.terminal.failures import Code, CommandFailure
from overnight_server.cli.terminal.root_command import CommandWithPlainFlags, GroupWithPlainFlags

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Address of the server. Default: OVERNIGHT_URL, a profile, or the local stack.",
        rich_help_panel="Connection",
    ),
]
# The key itself is never an argument, because every user of the machine can read arguments.
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        help="File that holds the API key. Default: OVERNIGHT_API_KEY, or the local stack's key.",
        rich_help_panel="Connection",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Use the server of this profile. Default: OVERNIGHT_PROFILE, or the default profile.",
        rich_help_panel="Connection",
    ),
]
JsonLines = Annotated[bool, typer.Option("--jsonl", help="Print one JSON document per line.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
TaskRef = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Id of the task, a unique beginning or ending of it, or GRAPH/TASK.",
        autocompletion=completion.task_ids,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
WaitTimeout = Annotated[
    int,
    typer.Option(
        metavar="DURATION",
        help="Longest time to wait, such as 90s, 30m or 8h.",
        parser=arguments.seconds,
        show_default="10m",
    ),
]
TEN_MINUTES = 600
_TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):[0-5]\d")


WindowZone = Annotated[
    str | None, typer.Option(help="Time zone, an IANA name such as Europe/Berlin.")
]
WindowOpens = Annotated[
    str | None, typer.Option("--from", metavar="HH:MM", help="When the window opens.")
]
WindowCloses = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="HH:MM",
        help="When the window closes. A time before --from means the next day.",
    ),
]
WindowAtClosing = Annotated[
    AtClosing | None,
    typer.Option(
        help="When the window closes: stop returns running tasks to the queue, finish lets them "
        "end, continue also starts the tasks that were waiting by then.",
        show_default="finish",
    ),
]
WindowOff = Annotated[bool, typer.Option("--off", help="Remove the window.")]


def window_fields(
    zone: str | None,
    opens: str | None,
    closes: str | None,
    at_closing: AtClosing | None,
    *,
    off: bool,
) -> dict[str, str] | None:
    """Return the window that the options describe; None if they describe none.

    Raise BadParameter when the options contradict each other or are incomplete.
    """
    times = [zone, opens, closes]
    if off and (any(times) or at_closing):
        raise typer.BadParameter("--off removes the window; leave the other options out")
    if off or not (any(times) or at_closing):
        return None
    if zone is None or opens is None or closes is None:
        raise typer.BadParameter("a window needs --zone, --from and --to; --off removes it")
    for option, time in (("--from", opens), ("--to", closes)):
        if not _TIME_OF_DAY.fullmatch(time):
            raise typer.BadParameter(f"{option}: {time!r} is not a time of day; write HH:MM")
    rule = (at_closing or AtClosing.FINISH).value
    return {"zone": zone, "opens": opens, "closes": closes, "at_closing": rule}


Command = Callable[..., None]


def with_option_groups(command: Command) -> Command:
    """Return the command with one option per field of each parameter that is a dataclass.

    Commands that share options take them as one object and need not repeat them.
    """
    signature = inspect.signature(command)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if dataclasses.is_dataclass(parameter.annotation)
    }
    fields = {name: dataclasses.fields(group) for name, group in groups.items()}

    @functools.wraps(command)
    def expanded(**values: Any) -> None:  # noqa: ANN401 - whatever the command accepts
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields[name]})
        command(**values)

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name not in groups:
            parameters.append(parameter)
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=each.default,
                annotation=hints[each.name],
            )
            for each in fields[name]
        ]
    return _with_parameters(expanded, parameters)


def _with_parameters(command: Command, parameters: list[inspect.Parameter]) -> Command:
    """Let Typer read these parameters instead of those of the function."""
    command.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=None)
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def add_common_options(tree: typer.Typer) -> None:
    """Add --profile to every command that calls the server, --jsonl to every one with --json.

    The help of all commands and groups then shows flags without the type of a value.
    """
    for command in tree.registered_commands:
        command.cls = CommandWithPlainFlags
        if command.callback is not None:
            command.callback = _with_common_options(command.callback)
    for group in tree.registered_groups:
        group.cls = GroupWithPlainFlags
        if group.typer_instance is not None:
            add_common_options(group.typer_instance)


def _with_common_options(command: Command) -> Command:
    parameters = inspect.signature(command).parameters
    key_file = parameters.get("api_key_file")
    if key_file is not None and key_file.annotation is KeyFile and "profile" not in parameters:
        command = _with_option(command, "profile", Profile, None, _run_with_profile)
    if "as_json" in parameters and "jsonl" not in parameters:
        command = _with_option(command, "jsonl", JsonLines, False, _run_with_json_lines)
    return command


def _with_option(
    command: Command,
    name: str,
    annotation: object,
    default: object,
    run: Callable[[Command, Any, dict[str, Any]], None],
) -> Command:
    """Return the command with one more option; `run` gets its value and calls the command."""

    @functools.wraps(command)
    def extended(**values: Any) -> None:  # noqa: ANN401 - whatever the command accepts
        run(command, values.pop(name), values)

    option = inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
    return _with_parameters(extended, [*inspect.signature(command).parameters.values(), option])


def _run_with_profile(command: Command, profile: str | None, values: dict[str, Any]) -> None:
    with connection.selected_profile(profile):
        command(**values)


def _run_with_json_lines(command: Command, jsonl: bool, values: dict[str, Any]) -> None:
    if not jsonl:
        command(**values)
        return
    if values["as_json"]:
        raise CommandFailure("--json and --jsonl cannot be used together", code=Code.USAGE)
    with output.json_lines():
        command(**{**values, "as_json": True})
