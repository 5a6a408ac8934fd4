"""Dead letters: one bug or fifty; what they have in common, and what a retry would bring back."""

from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from overnight.errors import Refused
from overnight.models.account import DeadLetter, DeadLetterGroup
from overnight.models.bulk import TaskFilter
from overnight_server.control import dead_letters
from overnight_server.control.bulk import BulkOrder, start
from overnight_server.dashboard.clocks import count
from overnight_server.dashboard.dead_groups import in_common, rows_of, title_of
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.domain.bulk import Action
from overnight_server.domain.ids import TaskId, parse_task, show_bulk
from overnight_server.domain.lifecycle import State
from overnight_server.insight.dead_letters import (
    find_dead_letter_group,
    list_dead_letters,
    read_dead_letters_by_group,
)
from overnight_server.insight.neighbours import count_revived
from overnight_server.intake.caps import Caps

screen = Screen("dead")
MOST_GROUPS = 30
#: Letters of a group that are shown on the page of all groups, and on its own page.
FEW, MANY = 5, 100
#: So many are resolved one by one with one press.
MOST_RESOLVED = 200


@screen.page("/dead")
def show_dead(visit: Visit) -> Response:
    """Show the dead letters that wait for a decision, by how they failed."""
    dead = read_dead_letters_by_group(visit.db, user_id=visit.user_id, limit=MOST_GROUPS)
    return visit.page(
        "dead.html",
        title="Dead letters",
        place="dead",
        dead=dead,
        groups=views_of(visit, dead.groups),
    )


@screen.page("/dead/decided")
def show_decided(visit: Visit) -> Response:
    """Show the dead letters that were decided, the latest first."""
    before = visit.query("before")
    letters = list_dead_letters(
        visit.db,
        user_id=visit.user_id,
        resolved=True,
        before=int(before) if before.isdecimal() and len(before) < MAX_DIGITS else None,
        limit=MANY + 1,
    )
    older = f"/dead/decided?before={letters[MANY - 1].id}" if len(letters) > MANY else ""
    decided = [letter for letter in letters[:MANY] if letter.resolution is not None]
    return visit.page(
        "dead_decided.html", title="Decided", place="dead", letters=decided, older=older
    )


MAX_DIGITS = 19


@screen.page("/dead/{fingerprint}")
def show_group(visit: Visit, fingerprint: str) -> Response:
    """Show one group with all its letters."""
    group = _find(visit, fingerprint)
    if group is None:
        return visit.refused("There is no such group of dead letters any more.", to="/dead")
    view = view_of(group, *_read_letters(visit, group))
    return visit.page("dead_group.html", title=view["title"], place="dead", view=view)


@screen.page("/dead/{fingerprint}/rest")
def ask_rest(visit: Visit, fingerprint: str) -> Response:
    """Ask for a note before the dead letters of a group are closed without a retry."""
    group = _find(visit, fingerprint)
    if group is None:
        return visit.refused("There is no such group of dead letters any more.", to="/dead")
    return visit.page(
        "dead_rest.html", title="Close?", place="dead", group=group, most=MOST_RESOLVED
    )


@screen.act("/dead/{fingerprint}/retry")
def retry_group(visit: Visit, fingerprint: str) -> Response:
    """Retry the dead letters of a group, many of them with a bulk operation."""
    group = _find(visit, fingerprint)
    if group is not None and group.count > MOST_RESOLVED and not visit.values("id"):
        return _retry_in_bulk(visit, group)
    caps, note = Caps.of(visit.settings), visit.value("note")

    def retry(task_id: TaskId) -> None:
        dead_letters.retry(
            visit.db, task_id, actor=visit.actor, note=note, user_id=visit.user_id, caps=caps
        )

    done, refused = _resolve(visit, fingerprint, retry)
    text = f"{count(done, 'task')} {'waits' if done == 1 else 'wait'} to run again.{refused}"
    return visit.done(text)


@screen.act("/dead/{fingerprint}/rest")
def rest_group(visit: Visit, fingerprint: str) -> Response:
    """Close the dead letters of a group without a retry."""
    note = visit.value("note")

    def close(task_id: TaskId) -> None:
        dead_letters.discard(visit.db, task_id, actor=visit.actor, note=note, user_id=visit.user_id)

    done, refused = _resolve(visit, fingerprint, close)
    text = f"{count(done, 'dead letter')} closed.{refused}"
    group = _find(visit, fingerprint)
    if group is None or refused or done < MOST_RESOLVED:
        return visit.done(text, to="/dead")
    left = f"{count(group.count, 'more is', 'more are')} left: close {_them(group.count)} next."
    return visit.done(f"{text} {left}", to=f"/dead/{fingerprint}/rest")


def _them(number: int) -> str:
    return "it" if number == 1 else "them"


@screen.part("dead", tokens=5)
def show_group_part(visit: Visit, key: str) -> Markup | None:
    """Return one group as the page of all groups shows it."""
    group = _find(visit, key)
    if group is None:
        return None
    [view] = views_of(visit, [group])
    return visit.fragment("parts/dead_group.html", view=view)


def views_of(visit: Visit, groups: Sequence[DeadLetterGroup]) -> list[dict[str, Any]]:
    """Return what the page of all groups shows of each: a few of its newest letters."""
    ids = {group.fingerprint: group.task_ids[:FEW] for group in groups}
    tasks = [task_id for some in ids.values() for task_id in some]
    if not tasks:
        return []
    # Those of all groups at once: a group may have thousands, and there may be many groups.
    letters = list_dead_letters(visit.db, user_id=visit.user_id, tasks=tasks, limit=len(tasks))
    revived = count_revived(visit.db, visit.user_id, ids)
    by_group: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        by_group.setdefault(letter.fingerprint, []).append(letter)
    return [
        view_of(group, by_group.get(group.fingerprint, []), revived.get(group.fingerprint, 0))
        for group in groups
    ]


def _read_letters(visit: Visit, group: DeadLetterGroup) -> tuple[Sequence[DeadLetter], int]:
    """Return the newest letters of a group, and how many other tasks come back with them."""
    name = group.fingerprint
    letters = list_dead_letters(visit.db, user_id=visit.user_id, fingerprint=name, limit=MANY)
    ids = [letter.task_id for letter in letters]
    return letters, count_revived(visit.db, visit.user_id, {name: ids}).get(name, 0)


def view_of(group: DeadLetterGroup, letters: Sequence[DeadLetter], revived: int) -> dict[str, Any]:
    """Return what a page shows of one group."""
    rows = rows_of(letters)
    return {
        "group": group,
        "title": title_of(letters, group.count, group.failure_reason),
        "common": in_common(letters),
        "rows": rows,
        "most": max((len(row.attempts) for row in rows), default=0),
        "attempts": sum(letter.attempts for letter in letters),
        "is_poison": any(letter.poison_pill for letter in letters),
        "revived": revived,
        "expected": sum(letter.total_cost_usd / max(letter.attempts, 1) for letter in letters),
        "is_whole": group.count <= len(letters),
    }


def _find(visit: Visit, fingerprint: str) -> DeadLetterGroup | None:
    return find_dead_letter_group(visit.db, fingerprint, user_id=visit.user_id)


def _retry_in_bulk(visit: Visit, group: DeadLetterGroup) -> Response:
    """Start an operation that retries all tasks of a group, and lead to its page."""
    chosen = TaskFilter(status=State.DEAD_LETTERED.value, fingerprint=group.fingerprint)
    order = BulkOrder(Action.RETRY, chosen)
    started = start(visit.db, visit.user_id, order, actor=visit.actor, key_id=visit.caller.key_id)
    text = f"{count(group.count, 'task')} will be retried; this page shows how far it is."
    return visit.done(text, to=f"/bulk/{show_bulk(started.bulk_id)}")


def _resolve(visit: Visit, fingerprint: str, act: Callable[[TaskId], None]) -> tuple[int, str]:
    """Resolve the letters of a group one by one; return how many, and what was refused."""
    letters = list_dead_letters(
        visit.db, user_id=visit.user_id, fingerprint=fingerprint, limit=MOST_RESOLVED
    )
    chosen = set(visit.values("id"))
    done, refused = 0, ""
    for letter in letters:
        if chosen and letter.task_id not in chosen:
            continue
        try:
            act(parse_task(letter.task_id))
            done += 1
        except Refused as error:
            refused = f" The rest was left alone: {error.message}."
    return done, refused
