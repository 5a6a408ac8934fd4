"""`overnight schedule`: submit a task or a graph at fire times."""

import os
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import batch_files, schedule_files
from overnight_server.cli.terminal import (
    arguments,
    confirm,
    options,
    output,
    short_ids,
    task_output,
)
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Client
    from overnight.models.schedules import FireTime, Schedule, ScheduleFire

app = typer.Typer(help="Submit a task or a graph at fire times.", no_args_is_help=True)
Overlap = Literal["skip", "queue", "cancel"]
CatchUp = Literal["none", "last", "all"]
LONGEST_NAME = 90
HEADERS = ("NAME", "STATE", "NEXT", "LAST", "STATUS", "WHEN")
FIRE_HEADERS = ("FIRE TIME", "KIND", "STATUS", "TASK", "REASON")
ZONE_FILES = "/zoneinfo/"

ScheduleRef = Annotated[
    str, typer.Argument(metavar="NAME|ID", help="Name or id of the schedule.", show_default=False)
]
WordsZone = Annotated[
    str | None,
    typer.Option("--zone", help="Time zone of the words. Default: that of the schedule."),
]


@app.command()
def add(
    when: Annotated[
        str,
        typer.Argument(
            metavar="WHEN", help='Time in words, such as "every weekday at 22:00", or as cron.'
        ),
    ],
    title: Annotated[
        str | None, typer.Argument(metavar="[TITLE]", help="Title of the task to submit.")
    ] = None,
    *,
    name: Annotated[
        str | None, typer.Option(help="Name of the schedule. Default: made from the title.")
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(help="Time zone of WHEN. Default: the zone of this machine, or UTC."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", metavar="FILE", help="Task or graph to submit, YAML or JSON; - reads stdin."
        ),
    ] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Task type.")] = None,
    payload: Annotated[
        dict[str, object] | None,
        typer.Option(
            metavar="JSON|@FILE|-", help="Input of the handler.", parser=arguments.json_object
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT|@FILE|-", help="Instructions for an agent.", parser=arguments.text_of
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Agent profile that runs the task.")
    ] = None,
    project: Annotated[str | None, typer.Option(help="Project of the task.")] = None,
    priority: Annotated[
        int | None, typer.Option(min=1, max=4, help="1 critical, 2 high, 3 normal, 4 low.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Tag of the task; repeatable.")
    ] = None,
    timeout: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", help="Longest duration of one run.", parser=arguments.seconds
        ),
    ] = None,
    overlap: Annotated[
        Overlap, typer.Option(help="What happens while the run before is not over.")
    ] = "skip",
    catch_up: Annotated[
        CatchUp, typer.Option(help="Which missed fire times run after a downtime.")
    ] = "last",
    catch_up_limit: Annotated[
        int, typer.Option(min=1, max=100, help="How many run with --catch-up all.")
    ] = 10,
    jitter: Annotated[
        int,
        typer.Option(
            metavar="DURATION",
            help="Longest delay of a fire time, such as 5m.",
            parser=arguments.seconds,
            show_default="0s",
        ),
    ] = 0,
    starts: Annotated[
        datetime | None,
        typer.Option(metavar="INSTANT", help="First fire time.", parser=arguments.instant),
    ] = None,
    ends: Annotated[
        datetime | None,
        typer.Option(metavar="INSTANT", help="Last fire time.", parser=arguments.instant),
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the next fire times; create nothing.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Create a schedule. Texts may hold {{ fire_date }} and other names."""
    task = {
        "title": title,
        "type": type_,
        "payload": payload,
        "prompt": prompt or (title if agent else None),
        "agent": agent,
        "project_id": project,
        "priority": priority,
        "tags": tag or None,
        "timeout_seconds": timeout,
    }
    template = _template(file, {field: value for field, value in task.items() if value is not None})
    fields: dict[str, Any] = {
        "zone": zone or local_zone(),
        "starts_at": starts,
        "ends_at": ends,
        "jitter_seconds": jitter,
        "overlap": overlap,
        "catch_up": catch_up,
        "catch_up_limit": catch_up_limit,
        "paused": paused,
        "graph" if "tasks" in template else "task": template,
    }
    schedule_name = name or _name_from(str(template.get("title", "")))
    with connection.client(url, api_key_file) as client:
        if dry_run:
            preview = client.schedules.preview(schedule_name, when, **fields)
            if as_json:
                output.document(task_output.as_document(preview))
            else:
                output.line(preview.description)
                _show_times(preview.next)
            return
        created = client.schedules.create(schedule_name, when, **fields)
    if as_json:
        output.document(task_output.as_document(created))
        return
    output.line(created.name)
    output.note(f"{created.description}. The next fire times:")
    for time in created.next:
        output.note(f"  {time.words}")


@app.command("list")
def list_(
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000, help="Largest number of schedules to list.")
    ] = 100,
    zone: WordsZone = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your schedules by name."""
    with connection.client(url, api_key_file) as client:
        schedules = list(client.schedules.list(zone=zone, limit=limit))
    if as_json:
        output.document([task_output.as_document(schedule) for schedule in schedules])
        return
    output.table(
        HEADERS,
        [_row(schedule) for schedule in schedules],
        empty="No schedules.",
        optional=("WHEN",),
    )


@app.command()
def get(
    schedule: ScheduleRef,
    *,
    fires: Annotated[
        int, typer.Option(min=0, max=1_000, help="How many past fire times to list.")
    ] = 10,
    zone: WordsZone = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show a schedule, its next fire times, and what became of the last ones."""
    with connection.client(url, api_key_file) as client:
        found = client.schedules.get(resolve(client, schedule), zone=zone)
        history = list(client.schedules.fires(found.id, limit=fires)) if fires else []
    if as_json:
        shown = [task_output.as_document(fire) for fire in history]
        output.document({**task_output.as_document(found), "fires": shown})
        return
    output.record(
        {
            "name": found.name,
            "id": found.id,
            "state": found.state,
            "when": f"{found.when} ({found.description})",
            "overlap": found.overlap,
            "catch up": found.catch_up,
            "submits": found.task or found.graph,
            "error": found.error,
            "next": [time.words for time in found.next],
        }
    )
    if history:
        output.line("")
        output.table(FIRE_HEADERS, [_fire_row(fire) for fire in history], optional=("KIND",))


@app.command()
def pause(
    schedule: ScheduleRef,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Let the fire times of a schedule pass without a submit."""
    with connection.client(url, api_key_file) as client:
        paused = client.schedules.pause(resolve(client, schedule))
    _show_state(paused, as_json=as_json)


@app.command()
def resume(
    schedule: ScheduleRef,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Let a paused schedule fire again."""
    with connection.client(url, api_key_file) as client:
        resumed = client.schedules.resume(resolve(client, schedule))
    _show_state(resumed, as_json=as_json)


@app.command()
def run(
    schedule: ScheduleRef,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Submit now what a schedule submits, also if it is paused."""
    with connection.client(url, api_key_file) as client:
        fire = client.schedules.run(resolve(client, schedule))
    if as_json:
        output.document(task_output.as_document(fire))
    else:
        output.line(str(fire.last_queue_id))


@app.command()
def backfill(
    schedule: ScheduleRef,
    *,
    since: Annotated[
        datetime,
        typer.Option(
            metavar="INSTANT", help="First instant of the range.", parser=arguments.past_instant
        ),
    ],
    until: Annotated[
        datetime | None,
        typer.Option(
            metavar="INSTANT", help="End of the range. Default: now.", parser=arguments.past_instant
        ),
    ] = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Print the fire times; change nothing.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Let the past fire times of a range run, one after the other."""
    end = until or datetime.now().astimezone().replace(microsecond=0)
    with connection.client(url, api_key_file) as client:
        done = client.schedules.backfill(resolve(client, schedule), since, end, preview=preview)
    if as_json:
        output.document(task_output.as_document(done))
        return
    _show_times(done.fire_times)
    verb = "would run" if preview else "will run, one after the other"
    output.note(f"{done.added} of {done.total} fire times {verb}; {done.present} have run before.")


@app.command()
def rm(
    schedule: ScheduleRef,
    *,
    yes: options.Yes = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Delete a schedule; what it has submitted goes on."""
    with connection.client(url, api_key_file) as client:
        found = client.schedules.get(resolve(client, schedule))
        if not yes:
            confirm.confirm(f"Delete the schedule {found.name}?")
        deleted = client.schedules.delete(found.id)
    if as_json:
        output.document(task_output.as_document(deleted))
    else:
        output.line(f"{found.name} deleted")


@app.command("import")
def import_(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Schedules, or jobs of a scheduler.yaml; - reads stdin."
        ),
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the next fire times; create nothing.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Create the schedules of a file; one whose name exists is changed to what the file says."""
    content = _read(file)
    for warning in content.warnings:
        output.note(f"{file}: {warning}")
    if content.url is not None and url is None:
        _check_server(file, content.url, api_key_file)
    with connection.client(url, api_key_file) as client:
        results = [_import_one(client, entry, dry_run=dry_run) for entry in content.schedules]
    if as_json:
        output.document(results)
        return
    for result in results:
        output.line(f"{result['name']} {result['result']}")


def _check_server(file: str, named: str, key_file: Path | None) -> None:
    """Raise CommandFailure if a file names another server than the one that the key is for."""
    own = connection.find_server(None, key_file).url
    if schedule_files.is_same_server(named, own):
        return
    message = f"{file}: director_url is {named}, but your API key is for {own}. Nothing was sent."
    hint = f"Pass --url {own}, or --url {named} if that server may have your key."
    raise CommandFailure(message, hint=hint, code=Code.USAGE)


def resolve(client: "Client", reference: str) -> str:
    """Return the id of the caller's schedule of this name or id; an id may be abbreviated."""
    if short_ids.is_whole(reference) and reference.lower().startswith(short_ids.SCHEDULE_PREFIX):
        return short_ids.resolve_schedule(client, reference)
    named = list(client.schedules.list(name=reference, limit=1)) if reference else []
    return named[0].id if named else short_ids.resolve_schedule(client, reference)


def local_zone() -> str:
    """Return the name of this machine's time zone; UTC if it has no name."""
    from zoneinfo import available_timezones

    name = os.environ.get("TZ", "").lstrip(":")
    if not name:
        _, _, name = os.path.realpath("/etc/localtime").partition(ZONE_FILES)
    return name if name in available_timezones() else "UTC"


def _template(file: str | None, task: dict[str, Any]) -> dict[str, Any]:
    """Return the task of the options, or the task or graph of a file with these options."""
    if file is None:
        if "title" not in task:
            hint = 'Write: overnight schedule add "every weekday at 22:00" "Nightly report"'
            raise CommandFailure("TITLE is missing.", hint=hint, code=Code.USAGE)
        return task
    documents = [document.value for document in _documents(file)]
    if len(documents) != 1 or not isinstance(documents[0], dict):
        hint = "A schedule submits one task or one graph: an object."
        raise CommandFailure(f"{file} does not hold one object.", hint=hint, code=Code.USAGE)
    return {**documents[0], **task}


def _documents(file: str) -> list[batch_files.Document]:
    try:
        return batch_files.read(_text_of(file))
    except batch_files.Unreadable as error:
        fault = batch_files.FileFault(error.line, "", str(error))
        raise CommandFailure(fault.line_text(file), code=Code.USAGE) from error


def _read(file: str) -> schedule_files.ScheduleFile:
    try:
        return schedule_files.parse(_text_of(file))
    except batch_files.Unreadable as error:
        fault = batch_files.FileFault(error.line, "", str(error))
        raise CommandFailure(fault.line_text(file), code=Code.USAGE) from error
    except schedule_files.NotASchedule as error:
        raise CommandFailure(f"{file}: {error}.", code=Code.USAGE) from error


def _text_of(file: str) -> str:
    try:
        return arguments.text_of(file if file == "-" else f"@{Path(file)}")
    except typer.BadParameter as error:
        raise CommandFailure(f"FILE: {error}", code=Code.USAGE) from error


def _import_one(client: "Client", entry: dict[str, Any], *, dry_run: bool) -> dict[str, object]:
    """Create or change one schedule of a file; return its name and what was done."""
    from overnight.models.field_errors import validate
    from overnight.models.schedules import ScheduleCreate

    fields = {name: value for name, value in entry.items() if name not in {"name", "when"}}
    body = validate(ScheduleCreate, entry)
    if dry_run:
        shown = client.schedules.preview(body.name, body.when, **fields)
        times = ", ".join(time.words for time in shown.next)
        return {"name": body.name, "result": f"would fire at {times}"}
    existing = list(client.schedules.list(name=body.name, limit=1))
    if not existing:
        client.schedules.create(body.name, body.when, **fields)
        return {"name": body.name, "result": "created"}
    [known] = existing
    if known.next_fire_at is None and (known.when, known.zone) == (body.when, body.zone):
        return {"name": body.name, "result": "has fired for the last time; nothing was changed"}
    # Whether it is paused is decided by people after the first import.
    changes = {name: value for name, value in fields.items() if name != "paused"}
    client.schedules.edit(known.id, when=body.when, **changes)
    return {"name": body.name, "result": "changed"}


def _name_from(title: str) -> str:
    """Return a name made from a title.

    >>> _name_from("Report of {{ fire_date }}")
    'report-of-fire_date'
    """
    words = re.findall(r"\w+", title.lower(), re.ASCII)
    return "-".join(words)[:LONGEST_NAME].strip("-_.") or "schedule"


def _show_state(schedule: "Schedule", *, as_json: bool) -> None:
    if as_json:
        output.document(task_output.as_document(schedule))
        return
    following = f", next {schedule.next[0].words}" if schedule.next else ""
    output.line(f"{schedule.name} {schedule.state}{following}")


def _show_times(times: "list[FireTime]") -> None:
    for time in times:
        output.line(time.words)


def _row(schedule: "Schedule") -> tuple[object, ...]:
    last = schedule.last
    return (
        schedule.name,
        schedule.state,
        schedule.next[0].words if schedule.next else None,
        None if last is None else last.fire_time,
        None if last is None else last.status,
        schedule.when,
    )


def _fire_row(fire: "ScheduleFire") -> tuple[object, ...]:
    queue_id = None if fire.last_queue_id is None else output.Id(fire.last_queue_id)
    return (fire.fire_time, fire.kind, fire.status, queue_id, fire.reason)
