"""Parameters that several routes share: ids in paths, the status filter, the idempotency key."""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

from fastapi import Header

from overnight.errors import (
    ArtifactNotFound,
    BulkNotFound,
    DagNotFound,
    DeliveryNotFound,
    FindingNotFound,
    HookNotFound,
    InboxRowNotFound,
    InvalidRequest,
    Refused,
    RuleNotFound,
    ScheduleNotFound,
    TaskNotFound,
    TriggerNotFound,
)
from overnight_server.domain.ids import (
    ArtifactId,
    BulkId,
    DagId,
    HookId,
    MalformedId,
    RuleId,
    ScheduleId,
    TaskId,
    TriggerId,
    parse_artifact,
    parse_bulk,
    parse_dag,
    parse_hook,
    parse_rule,
    parse_schedule,
    parse_task,
    parse_trigger,
)
from overnight_server.domain.lifecycle import ALIASES, State, Status, states_named
from overnight_server.intake.translate_request import MAX_KEY_LENGTH

T = TypeVar("T")
# A bigint of Postgres has at most 19 digits; 18 digits always fit.
NUMBER = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
LOG_POSITION = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}", re.ASCII)
STATUS_NAMES = sorted({*Status, *State, *ALIASES})
# This pattern only documents the header. Intake checks the value, and its error names the legal
# values. HTTP removes spaces at both ends of a header.
_KEY_PATTERN = rf"^[!-~]([ -~]{{0,{MAX_KEY_LENGTH - 2}}}[!-~])?$"
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A repeated request with the same key responds 200 with the first result.",
        json_schema_extra={"pattern": _KEY_PATTERN},
    ),
]


def parse_task_param(text: str) -> TaskId:
    """Return a task id; raise TaskNotFound if the text is not one."""
    return _parse(parse_task, text, TaskNotFound)


def parse_task_ids(field: str, texts: Iterable[str]) -> list[TaskId]:
    """Return the task ids of a field of the body; raise InvalidRequest if one is malformed."""
    try:
        return [parse_task(text) for text in texts]
    except MalformedId as error:
        raise InvalidRequest(field, str(error), legal="ids of tasks") from None


def parse_inbox_row_param(text: str) -> int:
    """Return the number of an inbox row; raise InboxRowNotFound if the text is not one."""
    if not NUMBER.fullmatch(text):
        raise InboxRowNotFound(text, "can be resolved")
    return int(text)


def parse_finding_param(text: str) -> int:
    """Return the number of a finding; raise FindingNotFound if the text is not one."""
    if not NUMBER.fullmatch(text):
        raise FindingNotFound(text)
    return int(text)


def parse_dag_param(text: str) -> DagId:
    """Return a graph id; raise DagNotFound if the text is not one."""
    return _parse(parse_dag, text, DagNotFound)


def parse_dag_field(field: str, text: str) -> DagId:
    """Return the graph id of a filter; raise InvalidRequest if it is malformed."""
    try:
        return parse_dag(text)
    except MalformedId as error:
        raise InvalidRequest(field, str(error), legal="the id of a graph") from None


def parse_artifact_param(text: str) -> ArtifactId:
    """Return an artifact id; raise ArtifactNotFound if the text is not one."""
    return _parse(parse_artifact, text, ArtifactNotFound)


def parse_log_position(field: str, text: str) -> tuple[int, int]:
    """Return the position in a log, as run and part; raise InvalidRequest if it is malformed."""
    if not LOG_POSITION.fullmatch(text):
        raise InvalidRequest(field, "is not a position in a log", legal="the id of a part, or 0.0")
    run, _, part = text.partition(".")
    return int(run), int(part)


def parse_trigger_param(text: str) -> TriggerId:
    """Return a trigger id; raise TriggerNotFound if the text is not one."""
    return _parse(parse_trigger, text, TriggerNotFound)


def parse_schedule_param(text: str) -> ScheduleId:
    """Return a schedule id; raise ScheduleNotFound if the text is not one."""
    return _parse(parse_schedule, text, ScheduleNotFound)


def parse_hook_param(text: str) -> HookId:
    """Return the id of a source of webhooks; raise HookNotFound if the text is not one."""
    return _parse(parse_hook, text, HookNotFound)


def parse_rule_param(text: str) -> RuleId:
    """Return the id of an improvement rule; raise RuleNotFound if the text is not one."""
    return _parse(parse_rule, text, RuleNotFound)


def parse_delivery_param(text: str) -> int:
    """Return the number of a delivery; raise DeliveryNotFound if the text is not one."""
    if not NUMBER.fullmatch(text):
        raise DeliveryNotFound
    return int(text)


def parse_bulk_param(text: str) -> BulkId:
    """Return the id of a bulk operation; raise BulkNotFound if the text is not one."""
    return _parse(parse_bulk, text, BulkNotFound)


def parse_status_param(text: str | None) -> frozenset[State] | None:
    """Return the states that statuses, states or aliases cover; None means all states."""
    if text is None:
        return None
    try:
        return states_named(text)
    except ValueError:
        legal = ", ".join(STATUS_NAMES)
        raise InvalidRequest("status", "is not a status of a task", legal=legal) from None


def _parse(parse: Callable[[str], T], text: str, error: Callable[[], Refused]) -> T:
    try:
        return parse(text)
    except MalformedId:
        raise error() from None
