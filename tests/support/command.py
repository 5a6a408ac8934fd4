"""Typing a command in this process."""

from typer.testing import CliRunner, Result

from overnight_server.cli.main import app


def run(*arguments: str) -> Result:
    """Type `overnight` with these arguments."""
    return CliRunner().invoke(app, arguments, prog_name="overnight")
