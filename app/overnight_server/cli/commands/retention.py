"""`overnight retention`: how long rows are kept, and the deletion of old ones."""

from collections import Counter
from typing import Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, task_output

app = typer.Typer(help="Show how long rows are kept, and delete old ones.", no_args_is_help=True)

HEADERS = ("RULE", "DELETES", "DAYS", "OLDER ROWS", "SETTING")
#: The API counts older rows up to this number.
MOST_COUNTED = 10_000


@app.callback()
def retention() -> None:
    """Show how long rows are kept, and delete old ones."""


@app.command()
def show(
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List what is kept for how many days, and how many rows are older."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        rules = client.admin.retention()
    if as_json:
        output.document([task_output.as_document(rule) for rule in rules])
        return
    rows = [
        (
            rule.name,
            rule.deletes,
            "kept" if rule.days is None else rule.days,
            f"{MOST_COUNTED}+" if rule.past_rows == MOST_COUNTED else rule.past_rows,
            rule.setting,
        )
        for rule in rules
    ]
    output.table(HEADERS, rows, empty="There are no rules.", optional=("SETTING",))


@app.command()
def run(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing; count what would be deleted.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Delete now what is older than it is kept; the sweep `prune` does the same by itself."""
    rows: Counter[str] = Counter()
    position: str | None = None
    with connection.client(url, api_key_file, as_admin=True) as client:
        while True:
            part = client.admin.run_retention(dry_run=dry_run, position=position)
            rows.update(part.rows)
            position = part.position
            if position is None:
                break
    if as_json:
        output.document({"rows": dict(rows), "dry_run": dry_run})
        return
    if not rows:
        output.line("Nothing is older than it is kept.")
        return
    output.table(("RULE", "ROWS"), sorted(rows.items()), empty="")
    done = "would be deleted" if dry_run else "deleted"
    output.note(f"{rows.total()} rows {done}.")
