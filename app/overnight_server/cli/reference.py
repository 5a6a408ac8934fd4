"""Write the reference page of all commands: `python -m overnight_server.cli.reference`."""

from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from overnight_server.cli.main import app

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"

PREFACE = """\
# Commands

After this page you can use every command of `overnight`. It is written by
`python -m overnight_server.cli.reference`; do not edit it by hand.

- On a terminal lists are tables; into a pipe they are plain aligned columns. `--json` prints
  exactly one JSON document on stdout, `--jsonl` one per line; messages go to stderr, and with
  either a failure is told there as `{"error": {"code", "message", "hint"}}`, those of a
  batch file with `faults`: `[{"file", "line", "field", "message", "legal"}]`. `NO_COLOR` is
  honoured.
- A task goes by its id or by any beginning or ending of it that no other has.
- `@file` and `-` (stdin) stand for a long value. A secret is never an argument: a key comes from
  `OVERNIGHT_API_KEY`, from a file, or from the local home.
- Durations are written `90`, `45s`, `30m`, `1h30m`, `2d`.
- The user's commands speak to the server that `--url`, `--profile` or `OVERNIGHT_URL` names, else
  to that of the default profile, else to the one that `overnight up` started under this home. The
  operators' commands act on the database of `OVERNIGHT_DATABASE_URL`, else on the local stack's
  own. `overnight profile add` names a server; profiles stand in
  `~/.config/overnight/profiles.toml`.
- `eval "$(overnight completion bash)"` teaches your shell the commands, and the ids of your tasks.

| Exit code | Meaning |
|---|---|
| 0 | done |
| 1 | failed |
| 2 | wrong usage or wrong settings |
| 3 | the wait timed out, or a question was declined |
| 4 | not authenticated |
| 5 | what was waited for ended without success: a task, a bulk operation, a drill |
| 6 | refused by a limit: the plan's, the user's or the queue's |
| 7 | a drill has shown nothing |
| 130 | interrupted |"""

OFTEN = frozenset({"--help", "--install-completion", "--show-completion"})


def page() -> str:
    """Return the page."""
    root = get_command(app)
    return "\n".join([PREFACE, *_sections(root, typer.Context(root, info_name="overnight")), ""])


def _sections(command: object, context: typer.Context) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            if not inner.hidden:
                yield from _sections(inner, typer.Context(inner, info_name=name, parent=context))
    elif isinstance(command, TyperCommand):
        usage = " ".join(context.get_usage().removeprefix("Usage: ").split())
        yield f"\n## {context.command_path}\n\n{command.help}\n\n    {usage}"
        yield from _options(command, context)


def _options(command: TyperCommand, context: typer.Context) -> Iterator[str]:
    records = [
        record
        for parameter in command.get_params(context)
        if OFTEN.isdisjoint(parameter.opts) and (record := parameter.get_help_record(context))
    ]
    if records:
        yield "\n| Option | Meaning |\n|---|---|"
    for spelling, meaning in records:
        yield f"| `{_escaped(spelling)}` | {_escaped(meaning)} |"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
