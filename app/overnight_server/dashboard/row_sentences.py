"""The sentences of rows: what a task does, or the narrowest of the reasons why it waits."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from markupsafe import Markup

from overnight.models.explain import Reason
from overnight.models.tasks import TaskResponse
from overnight_server.dashboard.clocks import Clock, count, usd
from overnight_server.dashboard.render import safe_text
from overnight_server.dashboard.sentences import failure, reason_sentence, sentence
from overnight_server.dashboard.task_story import linked
from overnight_server.dashboard.visit import Visit
from overnight_server.dashboard.words import CAUSES
from overnight_server.domain.ids import parse_task, show_task
from overnight_server.domain.lifecycle import WAITING, State
from overnight_server.domain.reasons import ReasonCode
from overnight_server.explain.explain import explain_many
from overnight_server.insight.neighbours import titles_of


def row_sentences(visit: Visit, tasks: Collection[TaskResponse]) -> dict[str, Markup]:
    """Return the sentences of tasks by their ids; what they wait for is read for all at once."""
    reasons = read_reasons(visit, [task for task in tasks if State(task.state) in WAITING])
    titles = titles_of(visit.db, visit.user_id, _named(reasons.values()))
    return {
        task.id: waiting_sentence(task, reasons.get(task.id, ()), titles, visit.clock)
        if State(task.state) in WAITING
        else sentence(task, visit.clock)
        for task in tasks
    }


def waiting_sentence(
    task: TaskResponse, reasons: Sequence[Reason], titles: Mapping[str, str], clock: Clock
) -> Markup:
    """Return why a task waits: the first of its reasons, which is the narrowest."""
    if not reasons:
        if task.position is not None:
            return Markup("Place {} in your queue").format(task.position)
        return Markup("Ready to start") if task.state == State.READY else Markup("Waits")
    reason = reasons[0]
    details = reason.details
    match ReasonCode(reason.code):
        case ReasonCode.DEPENDENCY if task.wait_reason == "children":
            return Markup("Waits for the tasks that it spawned")
        case ReasonCode.DEPENDENCY if details["tasks"]:
            unmet = details["unmet"]
            more = f" and {count(unmet - 1, 'other task')}" if unmet > 1 else ""
            return Markup("Waits for {}{}{}").format(
                _named_task(details["tasks"][0], titles), more, _then(reasons)
            )
        case ReasonCode.LOCK:
            holder = _named_task({"id": details["held_by"]}, titles)
            key = safe_text(details["key"], 80)
            return Markup("{} holds the lock <code>{}</code>{}").format(holder, key, _then(reasons))
        case ReasonCode.START_AT:
            return Markup("Starts {}{}").format(clock.at(task.start_at), _then(reasons))
        case ReasonCode.RETRY_AT:
            return Markup("{} <span class='until'>· again at {}</span>").format(
                failure(task), clock.at(task.retry_at)
            )
        case ReasonCode.APPROVAL:
            spent = usd(task.cost_usd) or "$0.00"
            text = Markup("Asks for more money <span class='until'>· {} spent so far</span>")
            return text.format(spent)
        case _:
            return linked(reason_sentence(reason), titles, clock)


def _then(reasons: Sequence[Reason]) -> Markup:
    """Return what would hold a task next."""
    name = next((CAUSES[one.code].name for one in reasons[1:] if one.code != reasons[0].code), "")
    then = f"{name[:1].lower()}{name[1:]}"
    return Markup(" <span class='until'>· then {}</span>").format(then) if then else Markup()


def read_reasons(visit: Visit, tasks: Sequence[TaskResponse]) -> dict[str, list[Reason]]:
    """Return the reasons of those tasks that wait, by their ids; nobody's turn is judged."""
    found = explain_many(
        visit.db,
        visit.user_id,
        [parse_task(task.id) for task in tasks],
        visit.claim_settings,
        visit.audience,
    )
    return {show_task(task_id): reasons for task_id, reasons in found.items()}


def _named(all_reasons: Iterable[Sequence[Reason]]) -> set[str]:
    """Return the ids of the tasks whose titles the sentences need."""
    named: set[str] = set()
    for reasons in all_reasons:
        for reason in reasons[:1]:
            if reason.code == ReasonCode.DEPENDENCY:
                named.update(task["id"] for task in reason.details["tasks"][:1])
            elif reason.code == ReasonCode.LOCK:
                named.add(reason.details["held_by"])
    return named


def _named_task(task: Mapping[str, str], titles: Mapping[str, str]) -> Markup:
    title = titles.get(task["id"], task["id"][-6:])
    return Markup("<em><bdi>{}</bdi></em>").format(safe_text(title, 200))
