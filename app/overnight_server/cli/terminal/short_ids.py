"""Find the object a person means: by its whole id, or by a unique beginning or ending of it.

A task of a graph can also be written as `GRAPH/TASK`, where TASK is its name or a part of its id.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Client
    from overnight.models.hooks import Hook
    from overnight.models.rules import ImprovementRule

PREFIX, DAG_PREFIX = "task_", "dag_"
BULK_PREFIX, TRIGGER_PREFIX, SCHEDULE_PREFIX = "bulk_", "trigger_", "schedule_"
ID_LENGTH = 26
# Abbreviations are looked up among this many recent objects; older ones need the whole id.
RECENT = 500
RECENT_TRIGGERS = 100
LISTED = 5


def resolve(client: "Client", reference: str) -> str:
    """Return the id of the caller's task that `reference` identifies."""
    graph, slash, task = reference.rpartition("/")
    if slash:
        return _resolve_in_graph(client, graph, task)
    if is_whole(reference):
        return whole(reference)
    recent = [task.id for task in client.tasks.list(limit=RECENT)]
    return choose(reference, recent, among="recent task")


def resolve_of_all_users(client: "Client", reference: str) -> str:
    """Return the id of the task that `reference` identifies, whoever owns it; for admins."""
    if is_whole(reference):
        return whole(reference)
    recent = client.admin.recent_task_ids(limit=RECENT)
    return choose(reference, recent, among="recent task of any user")


def resolve_dag(client: "Client", reference: str) -> str:
    """Return the id of the caller's graph that `reference` identifies."""
    if is_whole(reference):
        return DAG_PREFIX + _letters(reference)
    recent = [dag.id for dag in client.dags.list(limit=RECENT)]
    return choose(reference, recent, among="recent graph")


@contextmanager
def naming_option(option: str) -> Iterator[None]:
    """Add the option's name to the failure when its graph cannot be found."""
    from overnight.errors import DagNotFound

    try:
        yield
    except CommandFailure as failure:
        failure.message = f"{option}: {failure.message}"
        raise
    except DagNotFound as error:
        hint = "`overnight dag list` shows your graphs."
        raise CommandFailure(
            f"{option}: {error.message}", hint=hint, error_code=error.code
        ) from error


def resolve_bulk(client: "Client", reference: str) -> str:
    """Return the id of the caller's bulk operation that `reference` identifies."""
    if is_whole(reference):
        return BULK_PREFIX + _letters(reference)
    recent = [bulk.id for bulk in client.bulk.list(limit=RECENT)]
    return choose(reference, recent, among="recent bulk operation")


def resolve_trigger(client: "Client", reference: str) -> str:
    """Return the id of the caller's trigger that `reference` identifies."""
    if is_whole(reference):
        return TRIGGER_PREFIX + _letters(reference)
    recent = [trigger.id for trigger in client.triggers.list(limit=RECENT_TRIGGERS)]
    return choose(reference, recent, among="recent trigger")


def resolve_schedule(client: "Client", reference: str) -> str:
    """Return the id of the caller's schedule that `reference` identifies."""
    if is_whole(reference):
        return SCHEDULE_PREFIX + _letters(reference)
    all_own = [schedule.id for schedule in client.schedules.list()]
    return choose(reference, all_own, among="schedule")


def resolve_hook(client: "Client", reference: str) -> "Hook":
    """Return the caller's source of webhooks that `reference` identifies: a name, or an id."""
    hooks = client.hooks.list()
    for hook in hooks:
        if reference == hook.name:
            return hook
    chosen = choose(reference, [hook.id for hook in hooks], among="source of webhooks")
    return next(hook for hook in hooks if hook.id == chosen)


def resolve_rule(client: "Client", reference: str) -> "ImprovementRule":
    """Return the caller's improvement rule that `reference` identifies: a name, or an id."""
    rules = client.rules.list()
    for rule in rules:
        if reference == rule.name:
            return rule
    chosen = choose(reference, [rule.id for rule in rules], among="rule")
    return next(rule for rule in rules if rule.id == chosen)


def resolve_task_or_dag(client: "Client", reference: str) -> str:
    """Return the id of the caller's task or graph that `reference` identifies.

    A whole id without a prefix is read as a task's. So is an abbreviation that fits a single task
    and its graph of one, whose ids have the same letters.
    """
    if reference.strip().lower().startswith(DAG_PREFIX) and "/" not in reference:
        return resolve_dag(client, reference)
    if is_whole(reference) or "/" in reference or reference.strip().lower().startswith(PREFIX):
        return resolve(client, reference)
    recent = [task.id for task in client.tasks.list(limit=RECENT)]
    recent += [dag.id for dag in client.dags.list(limit=RECENT)]
    return choose(reference, recent, among="recent task or graph")


def is_whole(reference: str) -> bool:
    """Whether a reference is a whole id, so that no list has to be searched."""
    return len(_letters(reference)) >= ID_LENGTH


def whole(reference: str) -> str:
    """Return a whole task id in its usual spelling.

    >>> whole("01j8k0000000000000000000ab")
    'task_01J8K0000000000000000000AB'
    """
    return PREFIX + _letters(reference)


def choose(reference: str, ids: Sequence[str], *, among: str) -> str:
    """Return the only id that begins or ends with `reference`; raise CommandFailure otherwise.

    Ids created close together have the same beginning, so people usually type the ending.

    >>> choose("0AB", ["task_01J8K0000000000000000000AB"], among="task")
    'task_01J8K0000000000000000000AB'
    """
    letters = _letters(reference)
    if not letters:
        raise CommandFailure("The id is empty.", code=Code.USAGE)
    matches = [
        candidate
        for candidate in ids
        if _letters(candidate).startswith(letters) or _letters(candidate).endswith(letters)
    ]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        by_graph = ", or as GRAPH/TASK" if "task" in among else ""
        raise CommandFailure(
            f"No {among} has an id that begins or ends with {reference!r}.",
            hint=f"Write the whole id for an older one{by_graph}.",
        )
    listed = ", ".join(matches[:LISTED]) + (", …" if len(matches) > LISTED else "")
    message = f"{reference!r} fits {len(matches)} ids: {listed}"
    raise CommandFailure(message, hint="Write more characters of the id.", code=Code.USAGE)


def _resolve_in_graph(client: "Client", graph: str, task: str) -> str:
    """Return the id of the graph's task that has this name, or an id with this part."""
    tasks = client.dags.get(resolve_dag(client, graph)).tasks
    with_name = [candidate.id for candidate in tasks if candidate.name == task]
    if with_name:
        return with_name[0]
    letters = _letters(task)
    if not any(letters and letters in _letters(candidate.id) for candidate in tasks):
        hint = f"`overnight dag show {graph}` lists the tasks of the graph."
        raise CommandFailure(
            f"No task of the graph has the name {task!r}, or an id like it.", hint=hint
        )
    return choose(task, [candidate.id for candidate in tasks], among="task of the graph")


def _letters(task_id: str) -> str:
    """Return an id in upper case and without its prefix."""
    text = task_id.strip()
    for prefix in (PREFIX, DAG_PREFIX, BULK_PREFIX, TRIGGER_PREFIX, SCHEDULE_PREFIX):
        if text.lower().startswith(prefix):
            return text[len(prefix) :].upper()
    return text.upper()
