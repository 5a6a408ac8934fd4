"""`overnight config`: show the settings, where each value comes from, without secrets."""

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output

HEADERS = ("SETTING", "ORIGIN", "VALUE")

app = typer.Typer(help="Show the settings.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the settings."""


@app.command()
def show(*, as_json: options.Json = False) -> None:
    """Print every setting, its value and where the value comes from; secrets are masked."""
    rows = connection.settings().masked()
    if not as_json:
        output.table(HEADERS, [(row.env, row.origin, row.value_masked) for row in rows])
        return
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
    output.document({"settings": settings})
