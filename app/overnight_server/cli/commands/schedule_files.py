"""Read the schedules of a file: our own form, or the jobs of a `configs/scheduler.yaml`.

A file of our own holds a list of schedules, or an object with `schedules`; each has the fields of
a new schedule. The other form is an object with `jobs`: each has a name, a cron expression as
`schedule` or `cron`, and a prompt, with the fields of a prompt beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from overnight_server.cli.commands import batch_files

# Fields of a prompt that the agent gets in the spec of its task.
SPEC_FIELDS = ("model", "session_id", "env", "thinking")
JOB_FIELDS = frozenset(
    {*SPEC_FIELDS, "name", "schedule", "cron", "prompt", "timeout", "timeout_seconds", "project"}
    | {"enabled", "timezone", "zone", "agent", "agent_url", "tags", "priority"}
)
PORTS = {"http": 80, "https": 443}
MAX_TITLE_LENGTH = 120
ONLY_ONE = "must be an object with schedules or jobs, or a list of schedules"


class NotASchedule(Exception):
    """The file cannot be read as schedules; the message says which part."""


@dataclass
class ScheduleFile:
    """What a file holds: schedules, the address it names, and what is left out, with the reason."""

    schedules: list[dict[str, Any]]
    url: str | None = None
    warnings: list[str] = field(default_factory=list)


def parse(text: str) -> ScheduleFile:
    """Return the schedules of a file's text; raise NotASchedule or batch_files.Unreadable."""
    found = ScheduleFile([])
    for document in batch_files.read(text):
        match document.value:
            case {"jobs": list(jobs)}:
                _add_jobs(found, jobs, document.value)
            case {"schedules": list(schedules)}:
                found.schedules += [_own(each) for each in schedules]
            case list(schedules):
                found.schedules += [_own(each) for each in schedules]
            case _:
                raise NotASchedule(ONLY_ONE)
    if not found.schedules:
        raise NotASchedule("holds no schedule")
    return found


def is_same_server(first: str, second: str) -> bool:
    """Return whether two URLs name one server.

    >>> is_same_server("https://Queue.example:443/", "https://queue.example")
    True
    >>> is_same_server("http://queue.example", "https://queue.example")
    False
    """
    return _server(first) == _server(second)


def _server(url: str) -> object:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return url


def _own(schedule: object) -> dict[str, Any]:
    if not isinstance(schedule, dict):
        raise NotASchedule("holds a schedule that is not an object")
    return schedule


def _add_jobs(found: ScheduleFile, jobs: list[object], config: Mapping[str, Any]) -> None:
    url = config.get("director_url")
    found.url = url if isinstance(url, str) and url else found.url
    if config.get("agent_url"):
        found.warnings.append(_agent_url("agent_url"))
    for number, job in enumerate(jobs):
        if not isinstance(job, dict):
            raise NotASchedule(f"jobs.{number} is not an object")
        found.schedules.append(_job(found, number, job))


def _job(found: ScheduleFile, number: int, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schedule of one job."""
    place = f"jobs.{number}"
    if job.get("agent_url"):
        found.warnings.append(_agent_url(f"{place}.agent_url"))
    unknown = sorted(job.keys() - JOB_FIELDS)
    if unknown:
        raise NotASchedule(f"{place} has unknown fields: {', '.join(map(str, unknown))}")
    name, when, prompt = job.get("name"), job.get("schedule") or job.get("cron"), job.get("prompt")
    for what, value in (("name", name), ("schedule", when), ("prompt", prompt)):
        if not isinstance(value, str) or not value.strip():
            raise NotASchedule(f"{place}.{what} is missing")
    # What looks like a template was plain text for the other scheduler.
    plain = str(prompt).replace("{{", r"\{{")
    first_line = next(line.strip() for line in plain.splitlines() if line.strip())
    spec = {name: job[name] for name in SPEC_FIELDS if job.get(name) is not None}
    task = {
        "title": first_line[:MAX_TITLE_LENGTH],
        "prompt": plain,
        "spec": spec,
        "project_id": job.get("project"),
        "timeout_seconds": job.get("timeout_seconds") or job.get("timeout"),
        "agent": job.get("agent"),
        "tags": job.get("tags"),
        "priority": job.get("priority"),
    }
    return {
        "name": name,
        "when": when,
        "zone": job.get("zone") or job.get("timezone") or "UTC",
        "task": {name: value for name, value in task.items() if value not in (None, {})},
        "paused": job.get("enabled") is False,
    }


def _agent_url(place: str) -> str:
    return f"{place} is ignored: prompts go through the queue to the first free agent."
