"""`overnight config`: what this machine was told, where from, and without its secrets."""

import json
import sys

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from overnight_server.settings import SettingRow, SettingsError, load

EXIT_USAGE = 2
COLUMNS = ("setting", "value", "origin")

app = typer.Typer(help="Look at the settings in force.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Look at the settings in force."""


@app.command()
def show(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead."),
) -> None:
    """Print every setting, its value and where the value came from; secrets are masked."""
    try:
        rows = load().masked()
    except SettingsError as error:
        typer.echo(error, err=True)
        raise typer.Exit(EXIT_USAGE) from None
    if as_json:
        typer.echo(as_document(rows))
    elif sys.stdout.isatty():
        Console().print(as_table(rows))
    else:
        typer.echo(as_text(rows))


def as_document(rows: list[SettingRow]) -> str:
    """Write the settings as one JSON document, for programs."""
    settings = [
        {
            "name": row.name,
            "env": row.env,
            "value": row.value_masked,
            "origin": row.origin,
            "default": row.default,
            "legal": row.legal,
            "description": row.description,
        }
        for row in rows
    ]
    return json.dumps({"settings": settings}, indent=2)


def as_table(rows: list[SettingRow]) -> Table:
    """Draw the settings for a terminal; what somebody chose stands out."""
    table = Table(*COLUMNS)
    for row in rows:
        style = "dim" if row.origin == "default" else "bold"
        # Text, because a value in square brackets would be read as markup.
        table.add_row(*(Text(cell, style) for cell in _cells(row)))
    return table


def as_text(rows: list[SettingRow]) -> str:
    """Write the settings as aligned columns, for pipes."""
    lines = [COLUMNS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(row: SettingRow) -> tuple[str, str, str]:
    return row.env, row.value_masked, row.origin
