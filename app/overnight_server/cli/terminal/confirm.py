"""Asking a person before something is done that cannot be undone."""

import sys

import typer

YES = frozenset({"y", "yes"})


def confirm(question: str) -> None:
    """Go on after a yes; anything else, and nobody there to answer, declines.

    All of it is on stderr: Typer would leave a blank on stdout, before the data.
    """
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
    if answer.strip().lower() not in YES:
        raise typer.Abort
