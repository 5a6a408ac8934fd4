"""Run CLI commands in the process of the test."""

from typer.testing import CliRunner, Result

from overnight_server.cli.main import app


def run(*arguments: str) -> Result:
    """Run `overnight` with these arguments and return its result."""
    return CliRunner().invoke(app, arguments, prog_name="overnight")
