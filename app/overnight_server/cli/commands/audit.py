"""`overnight audit`: who did what to which user or object, and what the audit found."""

import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import arguments, options, output, task_output

if TYPE_CHECKING:
    from overnight.models.admin import AuditEntry, AuditFinding

app = typer.Typer(
    help="List what people did, and rows that contradict each other.", no_args_is_help=True
)

HEADERS = ("AT", "ACTOR", "ACT", "TARGET", "USER", "KEY", "VIA", "DETAIL")
OPTIONAL = ("VIA", "KEY", "USER", "TARGET")
FINDING_HEADERS = ("FINDING", "FOUND", "STATUS", "RULE", "SUBJECT", "USER", "PROBLEM")
# Fields that repeat the target or the user of an act.
REPEATED = frozenset({"id", "user_id", "target", "scope"})
UUID_FORM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# A changed field has its old and its new value.
OLD_AND_NEW = 2


@app.callback()
def audit() -> None:
    """List what people did, and rows that contradict each other."""


@app.command("list")
def list_(
    *,
    user: Annotated[
        str | None, typer.Option(metavar="USER", help="Only acts that concern this user.")
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            metavar="DURATION|INSTANT",
            help="Only acts at or after this instant, such as 8h (ago) or 2030-01-31T07:00Z.",
            parser=arguments.past_instant,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Largest number of acts to list.")
    ] = 100,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List acts on users, keys, pauses, budgets and tasks, newest first."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        entries = client.admin.audit(user=user, since=since, limit=limit)
    if as_json:
        output.document([task_output.as_document(entry) for entry in entries])
        return
    rows = [
        (
            entry.at,
            entry.actor_name or entry.actor,
            entry.act,
            _target(entry),
            entry.user,
            entry.key_id,
            entry.via,
            _detail(entry),
        )
        for entry in entries
    ]
    output.table(HEADERS, rows, empty="No acts are recorded.", optional=OPTIONAL)


@app.command()
def findings(
    *,
    everything: Annotated[
        bool,
        typer.Option("--all", help="List findings that were accepted, repaired or are gone too."),
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Largest number of findings to list.")
    ] = 100,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List rows that contradict each other, newest first, and what to do about each."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        found = client.admin.findings(everything=everything, limit=limit)
    if as_json:
        output.document([task_output.as_document(finding) for finding in found])
        return
    output.table(
        FINDING_HEADERS,
        [_finding_cells(finding) for finding in found],
        empty="The audit has no open finding.",
        optional=("USER", "FOUND"),
    )
    for rule, advice in {one.rule: one.advice for one in found if one.status == "open"}.items():
        output.note(f"{rule}: {advice}")


@app.command()
def accept(
    finding: Annotated[
        int, typer.Argument(metavar="FINDING", min=1, help="Number of the finding.")
    ],
    *,
    note: Annotated[str, typer.Option(help="Reason; kept with the finding.")] = "",
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Let a finding be: it is not reported again."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        client.admin.accept_finding(finding, note=note)
    if as_json:
        output.document({"finding": finding, "status": "accepted"})
    else:
        output.line(f"Finding {finding} was accepted.")


def _finding_cells(finding: "AuditFinding") -> tuple[object, ...]:
    subject = finding.subject
    return (
        finding.id,
        finding.found_at,
        finding.status,
        finding.rule,
        output.Id(subject) if subject.startswith("task_") else subject,
        finding.user,
        finding.problem,
    )


def _target(entry: "AuditEntry") -> str | None:
    """Return the object of an act; None if it is the user whom another column names."""
    if entry.user is not None and UUID_FORM.fullmatch(entry.target):
        return None
    return output.Id(entry.target) if entry.target.startswith("task_") else entry.target


def _detail(entry: "AuditEntry") -> str:
    """Return the fields that an act set or changed.

    Ids, instants and names of people are left out: other columns show them. `--json` has them.
    """
    shown = {
        name: value
        for name, value in entry.detail.items()
        if not name.endswith(("_at", "_by"))
        and name not in REPEATED
        and entry.act.rpartition(".")[2] != value
    }
    return ", ".join(f"{name.replace('_', ' ')} {_change(value)}" for name, value in shown.items())


def _change(value: object) -> str:
    if isinstance(value, list) and len(value) == OLD_AND_NEW:
        return f"{_value(value[0])} → {_value(value[1])}"
    return _value(value)


def _value(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case list():
            return " ".join(map(_value, value))
        case _:
            return str(value)
