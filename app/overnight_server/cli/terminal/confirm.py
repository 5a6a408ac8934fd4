"""Ask a person to confirm an act that cannot be undone."""

import sys

import typer

from overnight_server.cli.terminal import output
from overnight_server.cli.terminal.failures import Code, CommandFailure

YES = frozenset({"y", "yes"})


def confirm(question: str, *, hint: str = "") -> None:
    """Return after a yes; raise Abort after any other answer, CommandFailure without a terminal.

    The question goes to stderr, because Typer's own prompt would write to stdout, before the data.
    """
    if not output.is_terminal(sys.stdin):
        raise CommandFailure(
            "Confirmation needs a terminal; pass --yes.", hint=hint, code=Code.USAGE
        )
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
    if answer.strip().lower() not in YES:
        raise typer.Abort
