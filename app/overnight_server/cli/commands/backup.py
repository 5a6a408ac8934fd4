"""`overnight backup`, `restore` and `after-restore`: save the data and bring them back."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection, database
from overnight_server.cli.terminal import options, output
from overnight_server.cli.terminal.failures import CommandFailure

if TYPE_CHECKING:
    from overnight_server.maintenance.after_restore import Restored

SCHEDULE_HEADERS = ("SCHEDULE", "USER", "NAME", "FIRE TIMES", "FIRST", "LAST")
TRIGGER_HEADERS = ("TRIGGER", "USER", "AFTER", "DUE")
RUN_HEADERS = ("TASK", "RUN", "STATE", "USER", "TYPE", "TITLE", "AGENT", "STARTED")


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    *,
    as_json: options.Json = False,
) -> None:
    """Save all data of the local stack to a file, also while it runs."""
    from overnight_server.local.backup import back_up
    from overnight_server.local.errors import LocalError

    try:
        made = back_up(connection.settings(), file)
    except LocalError as error:
        raise CommandFailure(str(error)) from error
    if as_json:
        manifest = asdict(made.manifest)
        output.document(
            {"file": str(file), "bytes": made.size, "artifacts": made.artifacts, **manifest}
        )
        return
    output.line(f"Saved to {file}: {made.size:,} bytes with {made.artifacts} artifacts.")
    output.note("It contains the data of all users; keep it where only you can read it.")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of `overnight backup`.")],
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of data that are there.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Restore a backup of the local stack, which must not be running."""
    from overnight_server.local.backup import restore as bring_back
    from overnight_server.local.errors import AlreadyRunning, LocalError

    actor = database.operator_actor()
    try:
        home = bring_back(connection.settings(), file, actor=actor, replace=replace)
    except AlreadyRunning as error:
        message = f"The local stack is running ({error}); nothing was changed."
        raise CommandFailure(message, hint="Stop it with `overnight down`.") from error
    except LocalError as error:
        raise CommandFailure(str(error)) from error
    if as_json:
        replaced = None if home.replaced is None else str(home.replaced)
        output.document({**asdict(home.restored), "replaced": replaced})
        return
    output.line(f"Restored {file}, made at {home.manifest.made_at}.")
    if home.replaced is not None:
        output.note(f"The former data are in {home.replaced}; delete them when you like.")
    _report(home.restored)


def after_restore(*, as_json: options.Json = False) -> None:
    """After your own Postgres was restored: pause, end open claims, list what may have run."""
    from overnight_server.maintenance.after_restore import StillConnected, check_alone
    from overnight_server.maintenance.after_restore import after_restore as make_safe

    with database.opened() as db:
        try:
            check_alone(db)
        except StillConnected as error:
            message = f"{error}. Nothing was changed."
            raise CommandFailure(message, hint="Stop all processes first.") from error
        restored = make_safe(db, actor=database.operator_actor())
    if as_json:
        output.document(asdict(restored))
    else:
        _report(restored)


def _report(restored: "Restored") -> None:
    rows = [
        (
            output.Id(run.task_id),
            run.epoch,
            run.state,
            run.user,
            run.type,
            run.title,
            run.agent,
            run.started_at,
        )
        for run in restored.runs
    ]
    output.table(RUN_HEADERS, rows, empty="No run was open.", optional=("STARTED",))
    until = restored.restored_to
    end = "an unknown instant" if until is None else output.instant(until)
    output.note(f"The data end at {end}. What ran since then is not in them: the runs above may")
    output.note(f"have ended, and any of {restored.waiting} waiting tasks may have run.")
    _report_passed(restored)
    output.note("Everything is paused. Look at these tasks, then run `overnight resume --all`.")


def _report_passed(restored: "Restored") -> None:
    """Say which fire times and triggers may have run already."""
    if restored.schedules:
        rows = [
            (output.Id(one.schedule_id), one.user, one.name, one.fire_times, one.first, one.last)
            for one in restored.schedules
        ]
        output.table(SCHEDULE_HEADERS, rows)
        total = sum(one.fire_times for one in restored.schedules)
        output.note(f"{len(rows)} schedules had {total} fire times that may have run since then.")
        output.note("They are recorded as missed; `overnight schedule backfill` runs a range.")
    if restored.triggers:
        triggers = [
            (output.Id(one.trigger_id), one.user, output.Id(one.dag_id), one.due_at)
            for one in restored.triggers
        ]
        output.table(TRIGGER_HEADERS, triggers)
        output.note(f"{len(triggers)} triggers are due and may have submitted their graphs before.")
        output.note("They submit them again, paused: cancel a graph that was there before.")
    if restored.reports:
        output.note(f"The morning reports of {restored.reports} users were due; they are left out.")
