"""The classes of the command tree: they report expected failures and set the exit code."""

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from overnight_server.cli.terminal.failures import Code, CommandFailure, report

# The packages of the extra `server`, which `pip install overnight` does not bring.
SERVER_PACKAGES = frozenset(
    {
        *("alembic", "celery", "fastapi", "flower", "jwt", "kombu", "psutil", "psycopg2"),
        *("redis", "sqlalchemy", "starlette", "structlog", "ulid", "uvicorn"),
    }
)
# The local stack needs Postgres and Redis servers besides the service.
NEEDS_EMBEDDED = frozenset({"up", "down"})
# How Typer's message about a superfluous argument begins.
EXTRA_ARGUMENT = "Got unexpected extra argument"


class CommandWithPlainFlags(TyperCommand):
    """A command whose help shows a flag without the type of its value."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        """Return the parameters of the command."""
        return _without_types_of_flags(super().get_params(ctx))


class GroupWithPlainFlags(TyperGroup):
    """A group whose help shows a flag without the type of its value."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        """Return the parameters of the group."""
        return _without_types_of_flags(super().get_params(ctx))


class Root(GroupWithPlainFlags):
    """A group that reports failures as one line and a hint instead of drawing a box."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - the signature is Typer's
        windows_expand_args: bool = True,
        **extra: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run one command line and exit with the code of its result."""
        code: object
        arguments = sys.argv[1:] if args is None else args
        as_json = "--json" in arguments or "--jsonl" in arguments
        try:
            code = super().main(
                args=args,
                prog_name=prog_name,
                complete_var=complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
        except CommandFailure as failure:
            report(failure, as_json=as_json)
            code = failure.code
        except typer.TyperException as misuse:
            # A group without a command has printed its help, and its message is empty.
            if message := _usage_message(misuse):
                usage = CommandFailure(message, hint=_usage_hint(misuse), code=Code.USAGE)
                report(usage, as_json=as_json)
            code = misuse.exit_code
        except typer.Abort as abort:
            # A prompt raises Abort for Ctrl-C and for no; only the context tells them apart.
            if isinstance(abort.__context__, KeyboardInterrupt):
                code = Code.INTERRUPTED
            else:
                report(CommandFailure("declined", error_code="DECLINED"), as_json=as_json)
                code = Code.DECLINED
        sys.exit(int(code) if isinstance(code, int) else Code.OK)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Run the command, and flush stdout while a closed pipe can still be handled."""
        try:
            result = super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in SERVER_PACKAGES:
                raise
            raise _missing_server(ctx.invoked_subcommand) from error
        sys.stdout.flush()
        return result


def _missing_server(command: str) -> CommandFailure:
    extra = "embedded" if command in NEEDS_EMBEDDED else "server"
    message = f"`overnight {command}` needs the server: pip install 'overnight[{extra}]'"
    return CommandFailure(message, code=Code.USAGE)


def _usage_message(misuse: typer.TyperException) -> str:
    """Return what is wrong with the command line, in the form `--option: what is wrong`."""
    from pydantic import ValidationError

    from overnight.models.field_errors import message_of

    # A parameter that is missing has no message of its own.
    if not isinstance(misuse, typer.BadParameter) or misuse.param is None or not misuse.message:
        return misuse.format_message()
    message = misuse.message
    if isinstance(misuse.__cause__, ValidationError):
        # Typer passes on the text of pydantic, which is meant for programmers.
        [error, *_] = misuse.__cause__.errors()
        is_complete = error["type"] == "value_error"
        message = message_of(error) if is_complete else f"{error['input']!r} {message_of(error)}"
        message += _legal_range(misuse.param)
    name = str(misuse.param_hint or misuse.param.get_error_hint()).strip("'")
    return f"{name}: {message}"


def _legal_range(parameter: Any) -> str:  # noqa: ANN401
    """Return the legal numbers of a parameter, or an empty text if it has no bounds."""
    least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if least is None and most is None:
        return ""
    if least is not None and most is not None:
        return f"; write a number from {least} to {most}"
    bound = f"at least {least}" if most is None else f"at most {most}"
    return f"; write a number of {bound}"


def _usage_hint(misuse: typer.TyperException) -> str:
    context = getattr(misuse, "ctx", None)
    if context is None:
        return ""
    advice = f"Try '{context.command_path} --help'."
    parameters = context.command.get_params(context)
    has_arguments = len(_options(parameters)) < len(parameters)
    if has_arguments or not misuse.format_message().startswith(EXTRA_ARGUMENT):
        return advice
    names = ", ".join(
        option.opts[0]
        for option in _options(parameters)
        if not option.hidden and not option.rich_help_panel and option.opts[0] != "--help"
    )
    return f"The command takes only options: {names}.\n{advice}" if names else advice


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    # Typer prints `<bool>` after a flag that has no metavar.
    for option in _options(parameters):
        if option.is_flag:
            option.metavar = ""
    return parameters


def _options(parameters: Sequence[object]) -> list[TyperOption]:
    return [parameter for parameter in parameters if isinstance(parameter, TyperOption)]
