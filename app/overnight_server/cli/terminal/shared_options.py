"""Options that commands of a kind have in common, given to all of them in one place.

A command that speaks to the server can be told another profile; one that prints a JSON document
can print a line for each item instead.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output
from overnight_server.cli.terminal.failures import Code, Failure

Command = Callable[..., None]


def give(tree: typer.Typer) -> None:
    """Give every command of a tree the options of its kind."""
    for command in tree.registered_commands:
        if command.callback is not None:
            command.callback = _with_options(command.callback)
    for group in tree.registered_groups:
        if group.typer_instance is not None:
            give(group.typer_instance)


def _with_options(command: Command) -> Command:
    known = inspect.signature(command).parameters
    key_file = known.get("api_key_file")
    if key_file is not None and key_file.annotation is options.KeyFile and "profile" not in known:
        command = _added(command, "profile", options.Profile, None, _in_profile)
    if "as_json" in known and "jsonl" not in known:
        command = _added(command, "jsonl", options.JsonLines, False, _in_lines)
    return command


def _added(
    command: Command,
    name: str,
    annotation: object,
    default: object,
    run: Callable[[Command, Any, dict[str, Any]], None],
) -> Command:
    """Return the command with one more option, which `run` takes before the command runs."""

    @functools.wraps(command)
    def extended(**given: Any) -> None:  # noqa: ANN401 - whatever the command takes
        run(command, given.pop(name), given)

    old = inspect.signature(command)
    option = inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
    extended.__dict__["__signature__"] = old.replace(parameters=[*old.parameters.values(), option])
    extended.__annotations__ = {**command.__annotations__, name: annotation}
    return extended


def _in_profile(command: Command, profile: str | None, given: dict[str, Any]) -> None:
    with connection.chosen_profile(profile):
        command(**given)


def _in_lines(command: Command, lines: bool, given: dict[str, Any]) -> None:
    if not lines:
        command(**given)
        return
    if given["as_json"]:
        raise Failure("--json and --jsonl exclude each other", code=Code.USAGE)
    with output.in_lines():
        command(**{**given, "as_json": True})
