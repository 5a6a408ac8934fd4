"""Write docs/reference/cli.md: `python -m overnight_server.cli.reference`."""

from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from overnight_server.cli.main import app

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"

PREFACE = """\
# Commands

After this page you can use every command of `overnight` and every option.
`python -m overnight_server.cli.reference` writes the page from the code; do not edit it.

- **Output.** On a terminal, lists are tables with shortened ids and local times; if the terminal is
  narrow, less important columns are left out, or each row becomes a block of lines. In a pipe,
  lists are aligned columns with whole ids and UTC times. `--json` prints one JSON document on
  stdout, `--jsonl` one per line. Messages go to stderr. With `--json` a failure is printed as
  `{"error": {"code", "message", "hint"}}`; faults of a batch file are in `faults`:
  `[{"file", "line", "field", "message", "legal"}]`. `NO_COLOR` turns colours off.
- **Ids.** Commands accept a whole id, or a unique beginning or ending of it.
- **Long values.** `@file` and `-` (stdin) replace a long value. A secret is never an argument: an
  API key comes from `OVERNIGHT_API_KEY`, from a file, or from the local stack.
- **Durations** are written `90`, `45s`, `30m`, `1h30m`, `2d`.
- **Server.** Commands call the API of `--url`, `--profile` or `OVERNIGHT_URL`, else that of the
  default profile, else the one that `overnight up` started in this directory or above it. Profiles
  are in `~/.config/overnight/profiles.toml`; `overnight profile add` writes it.
- **Operators** need the key of an admin. The local stack's own user is one. `migrate`, `sweep`,
  `drill`, `doctor` and the processes use the database of `OVERNIGHT_DATABASE_URL`, else that of the
  local stack. `overnight user add NAME --admin --database` and
  `overnight key issue NAME --database` create the first admin of a new deployment.
- **Installation.** Users' and operators' commands work with `pip install overnight`. Commands that
  run the server need `overnight[server]`, and `overnight up` needs `overnight[embedded]`.
- **Completion.** `eval "$(overnight completion bash)"` enables completion of commands and task ids.

| Exit code | Meaning |
|---|---|
| 0 | success |
| 1 | failure |
| 2 | wrong usage or wrong settings |
| 3 | the wait timed out, or you declined a confirmation |
| 4 | not authenticated |
| 5 | the task, bulk operation or drill that was waited for did not succeed |
| 6 | refused by a limit of the plan, of the user or of the queue |
| 7 | a drill that proves nothing |
| 130 | interrupted |"""

HIDDEN = frozenset({"--help", "--install-completion", "--show-completion"})


def page() -> str:
    """Return the text of the page."""
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
        if HIDDEN.isdisjoint(parameter.opts) and (record := parameter.get_help_record(context))
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
