"""Reading what a path or a query names; what cannot be a name names nothing that exists."""

from urllib.parse import quote, unquote

from overnight.errors import (
    ArtifactNotFound,
    BulkNotFound,
    DagNotFound,
    InvalidRequest,
    TaskNotFound,
    TriggerNotFound,
)
from overnight_server.domain.ids import (
    ArtifactId,
    BulkId,
    DagId,
    MalformedId,
    TaskId,
    TriggerId,
    parse_artifact,
    parse_bulk,
    parse_dag,
    parse_task,
    parse_trigger,
)
from overnight_server.domain.lifecycle import ALIASES, State, Status, states_of

TASK_WORDS = sorted({*Status, *State, *ALIASES})
# A number of so many digits fits every column that holds one.
MOST_DIGITS = 18


def task_named(text: str) -> TaskId:
    """Read the id of a task."""
    try:
        return parse_task(text)
    except MalformedId:
        raise TaskNotFound from None


def dag_named(text: str) -> DagId:
    """Read the id of a graph."""
    try:
        return parse_dag(text)
    except MalformedId:
        raise DagNotFound from None


def artifact_named(text: str) -> ArtifactId:
    """Read the id of an artifact."""
    try:
        return parse_artifact(text)
    except MalformedId:
        raise ArtifactNotFound from None


def trigger_named(text: str) -> TriggerId:
    """Read the id of a trigger."""
    try:
        return parse_trigger(text)
    except MalformedId:
        raise TriggerNotFound from None


def bulk_named(text: str) -> BulkId:
    """Read the id of a bulk operation."""
    try:
        return parse_bulk(text)
    except MalformedId:
        raise BulkNotFound from None


def states_named(word: str | None) -> frozenset[State] | None:
    """Read a status, a state or an alias as the states it covers; None is all of them."""
    if word is None:
        return None
    try:
        return states_of(word.lower())
    except ValueError:
        legal = ", ".join(TASK_WORDS)
        raise InvalidRequest("status", "is no status of a task", legal=legal) from None


def task_cursor(text: str | None) -> TaskId | None:
    """Read where a page of tasks begins."""
    if text is None:
        return None
    try:
        return parse_task(text)
    except MalformedId:
        legal = "the X-Next-Cursor of the page before"
        raise InvalidRequest("before", "is no cursor", legal=legal) from None


def bulk_cursor(text: str | None) -> BulkId | None:
    """Read where a page of bulk operations begins."""
    if text is None:
        return None
    try:
        return parse_bulk(text)
    except MalformedId:
        legal = "the X-Next-Cursor of the page before"
        raise InvalidRequest("before", "is no cursor", legal=legal) from None


def dag_cursor(text: str | None) -> DagId | None:
    """Read where a page of graphs begins."""
    if text is None:
        return None
    try:
        return parse_dag(text)
    except MalformedId:
        legal = "the X-Next-Cursor of the page before"
        raise InvalidRequest("before", "is no cursor", legal=legal) from None


def show_name(name: str) -> str:
    """Write a name as a cursor: a header holds no more than ASCII, a name any characters."""
    return quote(name, safe="")


def name_cursor(text: str | None) -> str | None:
    """Read where a page of named things begins."""
    if text is None:
        return None
    name = unquote(text)
    if "\0" in name:
        legal = "the X-Next-Cursor of the page before"
        raise InvalidRequest("before", "is no cursor", legal=legal)
    return name


def number_cursor(text: str | None) -> int | None:
    """Read where a page of numbered things begins."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        legal = "the X-Next-Cursor of the page before"
        raise InvalidRequest("before", "is no cursor", legal=legal)
    return int(text)
