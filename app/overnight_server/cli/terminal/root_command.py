"""The root of the command tree, where every expected fault ends as one line and an exit code."""

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from overnight_server.cli.terminal.failures import Code, Failure, tell


class Root(TyperGroup):
    """A group that tells faults its own way instead of drawing them in boxes."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - the signature is Typer's
        windows_expand_args: bool = True,
        **extra: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run one command line and leave with the code that says how it went."""
        code: object
        given = sys.argv[1:] if args is None else args
        as_json = "--json" in given or "--jsonl" in given
        try:
            code = super().main(
                args=args,
                prog_name=prog_name,
                complete_var=complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
        except Failure as failure:
            tell(
                failure.message,
                failure.hint,
                word=failure.word,
                lines=failure.lines,
                faults=failure.faults,
                as_json=as_json,
            )
            code = failure.code
        except typer.TyperException as misuse:
            # A group called bare has shown its help already and has nothing to add.
            if message := misuse.format_message():
                tell(message, _usage_hint(misuse), word=Code.USAGE.name, as_json=as_json)
            code = misuse.exit_code
        except typer.Abort as left:
            # A question makes one of Ctrl-C and of no; what was pressed is still to be seen.
            if isinstance(left.__context__, KeyboardInterrupt):
                code = Code.INTERRUPTED
            else:
                tell("declined", word="DECLINED", as_json=as_json)
                code = Code.WAITED_IN_VAIN
        sys.exit(int(code) if isinstance(code, int) else Code.OK)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Run the command and flush what it wrote, while a closed pipe can still be met calmly."""
        result = super().invoke(ctx)
        sys.stdout.flush()
        return result


def _usage_hint(misuse: typer.TyperException) -> str:
    context = getattr(misuse, "ctx", None)
    return f"Try '{context.command_path} --help'." if context is not None else ""
