"""Tasks: the list of all, where each stands, and acts on those that were selected."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from overnight.errors import Refused
from overnight.models.tasks import QueueBlock, TaskResponse
from overnight_server.control.bulk import BulkOrder, preview, selection_of, start
from overnight_server.control.cancel import cancel
from overnight_server.control.edit import ANY, TaskEdit, edit
from overnight_server.control.retry import retry
from overnight_server.dashboard.clocks import count
from overnight_server.dashboard.commands import list_command
from overnight_server.dashboard.life_lines import (
    Axis,
    axis_of,
    kinds_of_waits,
    life_line,
    ticks,
)
from overnight_server.dashboard.parts import MAX_PARTS
from overnight_server.dashboard.row_sentences import read_reasons, row_sentences
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.search import GROUPS, QUALIFIERS, Search, parse_search
from overnight_server.dashboard.sentences import shown_state
from overnight_server.dashboard.visit import Visit
from overnight_server.dashboard.words import KIND_WORDS
from overnight_server.domain.bulk import Action
from overnight_server.domain.ids import (
    MalformedId,
    TaskId,
    parse_task,
    show_bulk,
    show_dag,
    show_task,
)
from overnight_server.domain.lifecycle import ACTIVE, OPEN, State, names_of
from overnight_server.domain.priority import score
from overnight_server.domain.reasons import ReasonCode
from overnight_server.insight.queue_status import queue_status
from overnight_server.insight.task_life import task_lives
from overnight_server.insight.task_rows import (
    ENDING,
    find_by_ending,
    find_graph_by_ending,
    row_facts,
)
from overnight_server.insight.tasks import (
    TaskSelection,
    get_tasks,
    list_tasks,
    reach_of_search,
)
from overnight_server.intake.caps import Caps

screen = Screen("tasks")
#: What the template of a row shows.
Row = dict[str, Any]
PAGE = 50
#: Pages of tasks that are looked at for those that one reason holds back.
MOST_LOOKS = 10
#: A number that must be typed before more tasks are changed at once.
MOST_UNTYPED = 100
#: Of more tasks the page says only that there are more, because it takes long to count them.
MOST_COUNTED = 10_000
TABS = (
    ("", "All"),
    ("waiting", "Waiting"),
    ("active", "Active"),
    ("done", "Done"),
    ("dead", "Dead"),
    ("cancelled", "Cancelled"),
)
VIEWS = (
    ("Asks me", "waits:approval"),
    ("Waits for a lock", "waits:lock"),
    ("Cost over $1", "cost:>1"),
    ("Last night", "made:last-night"),
)
VERBS = {"retry": "Retry", "cancel": "Cancel", "priority": "Set the priority of"}
PRIORITIES = ((1, "1 critical"), (2, "2 high"), (3, "3 normal"), (4, "4 low"))
RETRYABLE = frozenset({State.DEAD_LETTERED, State.CANCELLED})


@dataclass(frozen=True)
class Listing:
    """What an address of the list selects: a search, a tab, and the task after which it begins."""

    search: Search
    tab: str = ""
    before: str = ""


@screen.page("/tasks")
def show_tasks(visit: Visit) -> Response:
    """Show the tasks that a search selects, newest first."""
    if found := _by_id(visit, visit.query("q").strip()):
        return RedirectResponse(f"/tasks/{found}", status_code=303)
    listing = read_listing(visit)
    search, tab = listing.search, listing.tab
    tasks, more = _select(visit, listing)
    axis = axis_of(tasks, visit.clock.now)
    rows = _rows(visit, tasks, axis)
    shown: set[str] = set().union(*(row["kinds"] for row in rows))
    return visit.page(
        "tasks.html",
        title="Tasks",
        place="tasks",
        rows=rows,
        keys=[(kind, word) for kind, word in KIND_WORDS.items() if kind in shown],
        axis=axis,
        ticks=ticks(axis, visit.clock),
        search=search,
        tab=tab,
        tabs=[
            (name, label, _address(search.text, name), _number(visit, name)) for name, label in TABS
        ],
        views=[(label, f"/tasks?{urlencode({'q': query})}") for label, query in VIEWS],
        qualifiers=QUALIFIERS,
        command=list_command(search, states_chosen(search, tab)),
        older=_address(search.text, tab, more) if more else "",
        matches=_matches(tasks, more),
        is_cut=bool(more) and len(tasks) < PAGE,
        bulk_address=f"/tasks/all?{urlencode({'q': search.text, 'tab': tab})}",
    )


@screen.page("/tasks/selected")
def ask_selected(visit: Visit) -> Response:
    """Ask before an act on selected tasks: what it fits, and what it does not."""
    act = visit.query("act")
    tasks = list(_find_all(visit, visit.request.query_params.getlist("id")[:PAGE]).values())
    if act not in VERBS or not tasks:
        return visit.refused("No tasks were selected. Nothing was changed.", to="/tasks")
    fitting = [task for task in tasks if fits(act, task)]
    return visit.page(
        "tasks_selected.html",
        title=f"{VERBS[act]} {count(len(fitting), 'task')}?",
        place="tasks",
        act=act,
        verb=VERBS[act],
        fitting=fitting,
        others=[task for task in tasks if not fits(act, task)],
        running=[task for task in fitting if State(task.state) in ACTIVE],
        priorities=PRIORITIES,
        back=visit.query("back") or "/tasks",
    )


@screen.act("/tasks/selected")
def act_on_selected(visit: Visit) -> Response:
    """Retry, cancel or reprioritise selected tasks, one after the other; say what was refused."""
    act = visit.value("act")
    changed, refused = 0, ""
    for text in visit.values("id")[:PAGE]:
        try:
            _change(visit, act, parse_task(text))
            changed += 1
        except (Refused, MalformedId) as error:
            refused = str(getattr(error, "message", error))
    done = {"retry": "retried", "cancel": "cancelled", "priority": "changed"}.get(act, "changed")
    text = f"{count(changed, 'task')} {done}."
    if refused:
        text += f" The rest was left alone: {refused}."
    return visit.done(
        text, to=visit.value("to") if visit.value("to").startswith("/tasks") else "/tasks"
    )


@screen.page("/tasks/all")
def ask_all(visit: Visit) -> Response:
    """Ask before an act on all tasks that a search selects: how many it selects and fits."""
    search = _search(visit, visit.query("q"))
    act = visit.query("act") or "cancel"
    name = _status_names(search, visit.query("tab"))
    problem = _bulk_problem(search, visit.query("tab"), name)
    counted = None
    if act not in VERBS:
        act = "cancel"
    if not problem:
        order = _order(act, search, name, 3)
        counted = preview(visit.db, visit.user_id, order, most=MOST_COUNTED + 1)
    return visit.page(
        "tasks_all.html",
        title="All tasks that match",
        place="tasks",
        search=search,
        tab=visit.query("tab"),
        act=act,
        acts=VERBS,
        problem=problem,
        counted=counted,
        sample=[show_task(task_id) for task_id in counted.sample] if counted else [],
        priorities=PRIORITIES,
        must_type=counted is not None and counted.applies > MOST_UNTYPED,
        most=MOST_COUNTED,
    )


@screen.act("/tasks/all")
def act_on_all(visit: Visit) -> Response:
    """Start an operation on all tasks that a search selects."""
    search = _search(visit, visit.value("q"))
    act, name = visit.value("act"), _status_names(search, visit.value("tab"))
    problem = _bulk_problem(search, visit.value("tab"), name)
    if problem or act not in VERBS:
        return visit.refused(problem or "No act was chosen. Nothing was changed.")
    priority = (
        int(visit.value("priority")) if visit.value("priority") in {"1", "2", "3", "4"} else 3
    )
    order = _order(act, search, name, priority)
    counted = preview(visit.db, visit.user_id, order, most=MOST_COUNTED + 1)
    applies = min(counted.applies, MOST_COUNTED)
    typed = visit.value("number").replace(",", "").removesuffix("+")
    if applies > MOST_UNTYPED and typed != str(applies):
        return visit.refused(f"Type {applies} to change that many tasks. Nothing was changed.")
    started = start(visit.db, visit.user_id, order, actor=visit.actor, key_id=visit.caller.key_id)
    to = f"/bulk/{show_bulk(started.bulk_id)}" if "bulk" in visit.places else "/tasks"
    return visit.done("The operation has started.", to=to)


@screen.part("row")
def show_row(visit: Visit, key: str) -> Markup | None:
    """Return one row of the list, on the axis of its page."""
    row = _asked_rows(visit).get(key)
    return None if row is None else visit.fragment("parts/row.html", row=row, axis=row["axis"])


def _asked_rows(visit: Visit) -> Mapping[str, Row]:
    """Return all rows for which a request for parts asks; they are read once, for all parts."""
    state = visit.request.state
    if not hasattr(state, "asked_rows"):
        names = visit.request.query_params.getlist("for")[:MAX_PARTS]
        keys = [name.removeprefix("row:") for name in names if name.startswith("row:")]
        state.asked_rows = _read_asked(visit, keys)
    found: Mapping[str, Row] = state.asked_rows
    return found


def _read_asked(visit: Visit, keys: Sequence[str]) -> dict[str, Row]:
    """Return rows by their keys; a page has one axis, so that all its rows are read together."""
    tasks = _find_all(visit, [key.partition("~")[0] for key in keys])
    by_axis: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        by_axis[key.partition("~")[2]].append(key)
    found: dict[str, Row] = {}
    for axis_key, of_axis in by_axis.items():
        known = {
            key: tasks[key.partition("~")[0]] for key in of_axis if key.partition("~")[0] in tasks
        }
        axis = Axis.of_key(axis_key, visit.clock.now)
        found.update(zip(known, _rows(visit, list(known.values()), axis), strict=True))
    return found


@screen.part("matches", tokens=5)
def show_matches(visit: Visit, key: str) -> Markup:
    """Return which tasks the list of the asking page would show now.

    The page says how many of them it does not show, and dims the rows that are not among them. The
    key is the last task of a page that has a next one: what is older belongs there.
    """
    tasks, _ = _select(visit, read_listing(visit))
    return visit.fragment("parts/matches.html", matches=_matches(tasks, key))


def read_listing(visit: Visit) -> Listing:
    """Return what the address of the page selects; of a part, that of the page that asks."""
    fields = parse_qs(urlsplit(visit.address).query)
    text, tab, before = (fields.get(name, [""])[0].replace("\0", "") for name in ADDRESS_FIELDS)
    return Listing(_search(visit, text), tab, before)


ADDRESS_FIELDS = ("q", "tab", "before")


def _matches(tasks: Sequence[TaskResponse], after: str) -> dict[str, Any]:
    return {"ids": [task.id for task in tasks], "after": after, "most": PAGE}


def fits(act: str, task: TaskResponse) -> bool:
    """Whether an act can be done to a task as it is now."""
    state = State(task.state)
    if act == "retry":
        return state in RETRYABLE
    return state in OPEN if act == "cancel" else state in OPEN - ACTIVE


def _rows(visit: Visit, tasks: Sequence[TaskResponse], axis: Axis) -> list[Row]:
    """Return rows of the list; the number of statements does not depend on that of the tasks."""
    ids = [parse_task(task.id) for task in tasks]
    facts = row_facts(visit.db, visit.user_id, ids) if ids else {}
    sentences = row_sentences(visit, tasks)
    lives = task_lives(
        visit.db,
        visit.user_id,
        ids,
        (axis.begin, axis.end),
        liveness=visit.claim_settings.liveness,
    )
    return [
        {
            "task": task,
            "state": shown_state(task),
            "facts": facts.get(task.id),
            "why": sentences[task.id],
            "life": life_line(lives.get(task.id), axis),
            "kinds": kinds_of_waits(lives.get(task.id), axis),
            "axis": axis,
            "is_active": State(task.state) in ACTIVE,
        }
        for task in tasks
    ]


def blocks(visit: Visit) -> Sequence[QueueBlock]:
    """Return what keeps every task of the user waiting; it is asked for once per request."""
    state = visit.request.state
    if not hasattr(state, "blocks"):
        status = queue_status(visit.db, visit.user_id, visit.claim_settings, visit.audience)
        state.blocks = status.held_by
    found: Sequence[QueueBlock] = state.blocks
    return found


def _select(visit: Visit, listing: Listing) -> tuple[list[TaskResponse], str]:
    """Return a page of tasks, and the id of the last one looked at if older ones may follow.

    A search reads a bounded number of tasks. What keeps a task waiting that has no reason of its
    own is judged as explain does, so that further tasks are looked at until the page is full, up to
    a bound.
    """
    search = listing.search
    selection = TaskSelection(
        states_chosen(search, listing.tab), selection_of(search.filter).criteria
    )
    before: TaskId | None = None
    with suppress(MalformedId):
        before = parse_task(listing.before)
    kept: list[TaskResponse] = []
    for _ in range(MOST_LOOKS):
        reach = reach_of_search(visit.db, visit.user_id, selection, before)
        found = list_tasks(
            visit.db,
            visit.user_id,
            states=selection.states,
            criteria=selection.criteria,
            limit=PAGE + 1,
            before=before,
            reach=reach,
        )
        page = found[:PAGE]
        kept += _held(visit, page, search.waits_for)
        if len(kept) > PAGE:
            return kept[:PAGE], kept[PAGE - 1].id
        if len(found) <= PAGE:
            return kept, "" if reach is None else show_task(reach)
        before = parse_task(page[-1].id)
        if len(kept) == PAGE:
            break
    return kept, page[-1].id


def _held(visit: Visit, tasks: list[TaskResponse], code: str | None) -> list[TaskResponse]:
    """Return the tasks that a reason holds back; all of them if the search names none."""
    if code is None or code == ReasonCode.BEHIND:
        return tasks
    reasons = read_reasons(visit, tasks)
    return [task for task in tasks if any(one.code == code for one in reasons.get(task.id, ()))]


def states_chosen(search: Search, tab: str) -> frozenset[State] | None:
    """Return the states that a search and a tab leave; None for all."""
    of_tab = GROUPS.get(tab) or (frozenset({State.CANCELLED}) if tab == "cancelled" else None)
    if of_tab is None or search.states is None:
        return search.states or of_tab
    return of_tab & search.states


def _search(visit: Visit, text: str) -> Search:
    """Return a search; the ends of ids that it names are looked up among the user's graphs."""

    def find_graph(ending: str) -> str | None:
        found = find_graph_by_ending(visit.db, visit.user_id, ending)
        return None if found is None else show_dag(found)

    return parse_search(text, visit.clock, find_graph)


def _status_names(search: Search, tab: str) -> str | None:
    """Return what names exactly the chosen states; None if nothing does, or all are chosen."""
    states = states_chosen(search, tab)
    return None if states is None else names_of(states)


def _bulk_problem(search: Search, tab: str, name: str | None) -> str:
    """Return why an operation on all tasks of a search is not possible; empty if it is."""
    if search.problems:
        return f"The search is not understood: {search.problems[0]}. Nothing was changed."
    if search.waits_for is not None:
        return "An operation cannot select by what keeps all of your tasks waiting."
    if name is None and states_chosen(search, tab) is not None:
        return "The search and the tab have no state in common, so no task matches."
    return ""


def _order(act: str, search: Search, name: str | None, priority: int) -> BulkOrder:
    action = {"retry": Action.RETRY, "cancel": Action.CANCEL}.get(act, Action.REPRIORITISE)
    wanted = search.filter.model_copy(update={"status": name} if name else {})
    is_everything = not wanted.model_dump(exclude_none=True)
    sets = score(priority) if action is Action.REPRIORITISE else None
    return BulkOrder(action, wanted, sets, everything=is_everything)


def _change(visit: Visit, act: str, task_id: TaskId) -> None:
    if act == "cancel":
        cancel(visit.db, visit.user_id, task_id, actor=visit.actor)
    elif act == "retry":
        caps = Caps.of(visit.settings)
        retry(visit.db, visit.user_id, task_id, actor=visit.actor, caps=caps)
    else:
        level = visit.value("priority")
        changes = TaskEdit(priority=score(int(level) if level in {"1", "2", "3", "4"} else 3))
        edit(visit.db, visit.user_id, task_id, changes, editions=[ANY], actor=visit.actor)


def _by_id(visit: Visit, text: str) -> str:
    """Return the id of the task that a search names by its id or by the end of it."""
    try:
        task_id = parse_task(text)
    except MalformedId:
        ending = find_by_ending(visit.db, visit.user_id, text) if _may_be_ending(text) else None
        return "" if ending is None else show_task(ending)
    return show_task(task_id)


def _may_be_ending(text: str) -> bool:
    """Whether a text looks like the end of an id, not like a word: it has a digit."""
    return len(text) == ENDING and text.isalnum() and any(letter.isdigit() for letter in text)


def _find_all(visit: Visit, texts: Sequence[str]) -> dict[str, TaskResponse]:
    """Return the user's tasks among some ids, by their ids, in this order."""
    ids = []
    for text in texts:
        with suppress(MalformedId):
            ids.append(parse_task(text))
    found = get_tasks(visit.db, visit.user_id, ids)
    return {text: found[text] for text in texts if text in found}


def _address(query: str, tab: str, before: str = "") -> str:
    fields = {"q": query, "tab": tab, "before": before}
    text = urlencode({name: value for name, value in fields.items() if value})
    return f"/tasks?{text}" if text else "/tasks"


def _number(visit: Visit, tab: str) -> str:
    """Return the number beside a tab, where a counter knows it."""
    frame = visit.frame
    known = {"waiting": f"{frame.waiting:,}", "active": f"{frame.running:,}"}
    return known.get(tab) or (visit.marks.get("dead", "") if tab == "dead" else "")
