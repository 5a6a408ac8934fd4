"""Let a person edit a JSON object in the editor of the environment."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import typer

from overnight_server.cli.terminal import arguments, output
from overnight_server.cli.terminal.failures import Code, CommandFailure

DEFAULT_EDITOR = "vi"


def edit_object(value: Mapping[str, object]) -> dict[str, object]:
    """Open the object in $VISUAL, $EDITOR or vi, and return what was saved.

    Raises CommandFailure without a terminal, if the editor fails, or if it saved no JSON object.
    """
    if not output.is_terminal(sys.stdin):
        hint = "Pass the changed payload with --payload."
        raise CommandFailure("--edit needs a terminal.", hint=hint, code=Code.USAGE)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "payload.json"
        file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        _open(file)
        try:
            return arguments.json_object(f"@{file}")
        except typer.BadParameter as error:
            hint = "Nothing was changed."
            raise CommandFailure(str(error), hint=hint, code=Code.USAGE) from error


def _open(file: Path) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or DEFAULT_EDITOR
    hint = "Set EDITOR to an editor that exists, or pass the payload with --payload."
    try:
        ended = subprocess.run([*shlex.split(editor), str(file)], check=False)
    except OSError as error:
        message = f"The editor {editor!r} cannot be started: {error.strerror}."
        raise CommandFailure(message, hint=hint, code=Code.USAGE) from error
    if ended.returncode != 0:
        message = f"The editor {editor!r} ended with code {ended.returncode}."
        raise CommandFailure(message, hint="Nothing was changed.")
