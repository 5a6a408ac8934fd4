"""What a person means: its whole id, or any beginning or ending that only it has.

A task of a graph also goes by `GRAPH/TASK`, both by id or part of it, the task also by its name.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight import Client

PREFIX, DAG_PREFIX = "task_", "dag_"
BULK_PREFIX, TRIGGER_PREFIX = "bulk_", "trigger_"
WHOLE = 26
# Short names are for what one is busy with; older tasks have their whole id.
RECENT = 500
RECENT_TRIGGERS = 100
SHOWN = 5
# The ending of an id is random: so much of it names one among all that a person ever has.
SHORT = 8


def resolve(client: "Client", given: str) -> str:
    """Return the id of the one task of the caller's that `given` names."""
    graph, slash, task = given.rpartition("/")
    if slash:
        return _in_graph(client, graph, task)
    if is_whole(given):
        return whole(given)
    recent = [task.id for task in client.tasks.list(limit=RECENT)]
    return choose(given, recent, among="recent tasks")


def resolve_dag(client: "Client", given: str) -> str:
    """Return the id of the one graph of the caller's that `given` names."""
    if is_whole(given):
        return DAG_PREFIX + _name(given)
    recent = [dag.id for dag in client.dags.list(limit=RECENT)]
    return choose(given, recent, among="recent graphs")


@contextmanager
def blamed_on(option: str) -> Iterator[None]:
    """Name the option whose graph cannot be found."""
    from overnight.errors import DagNotFound

    try:
        yield
    except Failure as failure:
        failure.message = f"{option}: {failure.message}"
        raise
    except DagNotFound as error:
        hint = "`overnight dag list` shows those there are."
        raise Failure(f"{option}: {error.message}", hint=hint, word=error.code) from error


def resolve_bulk(client: "Client", given: str) -> str:
    """Return the id of the one bulk operation of the caller's that `given` names."""
    if is_whole(given):
        return BULK_PREFIX + _name(given)
    recent = [bulk.id for bulk in client.bulk.list(limit=RECENT)]
    return choose(given, recent, among="recent bulk operations")


def resolve_trigger(client: "Client", given: str) -> str:
    """Return the id of the one trigger of the caller's that `given` names."""
    if is_whole(given):
        return TRIGGER_PREFIX + _name(given)
    recent = [one.id for one in client.triggers.list(limit=RECENT_TRIGGERS)]
    return choose(given, recent, among="recent triggers")


def resolve_either(client: "Client", given: str) -> str:
    """Return the id of the one task or graph of the caller's that `given` names.

    A whole id without its prefix is a task's, and so is what names a lone task and its graph of
    one, which have the same letters.
    """
    if given.strip().lower().startswith(DAG_PREFIX) and "/" not in given:
        return resolve_dag(client, given)
    if is_whole(given) or "/" in given or given.strip().lower().startswith(PREFIX):
        return resolve(client, given)
    recent = [task.id for task in client.tasks.list(limit=RECENT)]
    recent += [dag.id for dag in client.dags.list(limit=RECENT)]
    return choose(given, recent, among="recent tasks and graphs")


def short(task_id: str) -> str:
    """Return the ending of an id by which commands know it, too.

    >>> short("task_01J8K0000000000000000000AB")
    '000000AB'
    """
    return _name(task_id)[-SHORT:]


def is_whole(given: str) -> bool:
    """Whether an id was written out, so that nobody need be asked what it means."""
    return len(_name(given)) >= WHOLE


def whole(given: str) -> str:
    """Return a written-out id as it is spelt everywhere.

    >>> whole("01j8k0000000000000000000ab")
    'task_01J8K0000000000000000000AB'
    """
    return PREFIX + _name(given)


def choose(given: str, ids: Sequence[str], *, among: str) -> str:
    """Return the one id that begins or ends as given, or fail listing the candidates.

    Ids made close together begin alike, so the ending is what tells them apart.

    >>> choose("0AB", ["task_01J8K0000000000000000000AB"], among="tasks")
    'task_01J8K0000000000000000000AB'
    """
    wanted = _name(given)
    if not wanted:
        raise Failure("an empty id names nothing", code=Code.USAGE)
    named = [
        task_id
        for task_id in ids
        if _name(task_id).startswith(wanted) or _name(task_id).endswith(wanted)
    ]
    if len(named) == 1:
        return named[0]
    if not named:
        by_graph = ", tasks of a graph also by GRAPH/TASK" if "tasks" in among else ""
        raise Failure(
            f"none of the {among} is named {given!r}",
            hint=f"Older ones go by their whole id{by_graph}.",
        )
    shown = ", ".join(named[:SHOWN]) + (", …" if len(named) > SHOWN else "")
    raise Failure(f"{given!r} names {len(named)} {among}: {shown}", code=Code.USAGE)


def _in_graph(client: "Client", graph: str, task: str) -> str:
    """Return the id of the one task of a graph that goes by this name, or by this part of an id."""
    tasks = client.dags.get(resolve_dag(client, graph)).tasks
    called = [one.id for one in tasks if one.name == task]
    return called[0] if called else choose(task, [one.id for one in tasks], among="graph's tasks")


def _name(task_id: str) -> str:
    text = task_id.strip()
    for prefix in (PREFIX, DAG_PREFIX, BULK_PREFIX, TRIGGER_PREFIX):
        if text.lower().startswith(prefix):
            return text[len(prefix) :].upper()
    return text.upper()
