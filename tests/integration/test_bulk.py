"""Bulk operations: each chosen task once, by the moves of the single commands."""

from typing import Any
from uuid import UUID

import pytest

from overnight.models.bulk import TaskFilter
from overnight_server.control.bulk import Order, cancel_bulk, preview, start
from overnight_server.control.cancel import cancel
from overnight_server.control.dead_letters import discard
from overnight_server.domain.bulk import Action
from overnight_server.domain.errors import BulkAlreadyFinished, BulkNotFound, InvalidRequest
from overnight_server.domain.ids import TaskId, UserId, show_bulk
from overnight_server.domain.results import Returned
from overnight_server.insight.bulk import list_bulks
from overnight_server.insight.tasks import Chosen, list_tasks
from overnight_server.intake import submit as submitting
from overnight_server.intake.submit import Caps, Edge, NewTask, submit_graph
from overnight_server.maintenance import bulk as working
from overnight_server.maintenance.bulk import work_off
from tests.support.bulk import FATAL, ME, begin, counts, dead, finish, moves, order, seen, sound
from tests.support.graphs import begin as begin_run
from tests.support.house import LOOSE, House


@pytest.fixture
def user(house: House) -> UserId:
    house.agent()
    return house.user()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a chunk move two tasks, and look at three to find them."""
    monkeypatch.setattr(working, "CHUNK", 2)
    monkeypatch.setattr(working, "LOOK", 3)


def test_what_the_filter_chooses_is_cancelled_and_nothing_else(house: House, user: UserId) -> None:
    wanted = [house.task(user, tags=("night",)) for _ in range(3)]
    running = house.running(user, tags=("night",)).claim.task_id
    ended = dead(house, user, tags=("night",))
    others = [house.task(user), house.task(house.user(), tags=("night",))]

    told_before = preview(house.app, user, order("cancel", tag="night"))
    bulk_id = begin(house, user, order("cancel", tag="night"))
    finish(house)

    assert (told_before.total, told_before.applies) == (5, 4)
    assert told_before.sample == [running, *wanted[::-1]]
    assert counts(seen(house, user, bulk_id)) == (5, 4, 1, {})
    assert [house.state(task) for task in wanted] == ["cancelled"] * 3
    assert house.row(running)["cancel_requested_at"] is not None
    assert [house.state(task) for task in (ended, *others)] == ["dead_lettered", "ready", "ready"]
    assert moves(house, wanted[0], "cancelled") == [ME]
    sound(house)


def test_a_preview_changes_nothing(house: House, user: UserId) -> None:
    task = house.task(user)

    assert preview(house.app, user, order("cancel", status="pending")).sample == [task]

    assert house.state(task) == "ready"
    assert list_bulks(house.app, user) == []


def test_failed_tasks_are_retried_and_what_is_closed_is_refused(house: House, user: UserId) -> None:
    first, second, closed = (dead(house, user) for _ in range(3))
    discard(house.app, closed, actor=ME)

    bulk_id = begin(house, user, order("retry", status="failed"))
    finish(house)

    view = seen(house, user, bulk_id)
    assert counts(view) == (3, 2, 0, {"NOT_RETRYABLE": 1})
    assert (view.state, view.done) == ("completed", 3)
    assert [house.state(task) for task in (first, second, closed)] == [
        "ready",
        "ready",
        "dead_lettered",
    ]
    letter = house.one("SELECT * FROM dead_letters WHERE task_id = :id", id=first)
    assert (letter["resolution"], letter["note"]) == ("retry", show_bulk(bulk_id))
    sound(house)


def test_a_bulk_retry_keeps_to_the_users_cap(house: House, user: UserId) -> None:
    """A task that brings others back counts with them."""
    house.run("UPDATE users SET max_pending = 4 WHERE id = :id", id=user)
    pair = [NewTask("a", "echo"), NewTask("b", "echo")]
    graph = submit_graph(house.app, user, pair, LOOSE, edges=[Edge(0, 1)])
    for one in graph[::-1]:
        cancel(house.app, user, one.task_id, actor=ME)
    for _ in range(5):
        cancel(house.app, user, house.task(user), actor=ME)

    bulk_id = begin(house, user, order("retry", status="cancelled"))
    finish(house)

    assert counts(seen(house, user, bulk_id)) == (7, 4, 0, {"TOO_MANY_PENDING": 3})
    assert house.lane(user)["waiting"] == 4
    sound(house)


def test_a_bulk_retry_keeps_to_the_houses_cap(house: House, user: UserId) -> None:
    tasks = [dead(house, user) for _ in range(4)]
    house.task(house.user())

    bulk_id = begin(house, user, order("retry", status="failed"))
    work_off(house.dispatcher, Caps(queue_max_size=3))

    assert counts(seen(house, user, bulk_id)) == (4, 2, 0, {"QUEUE_FULL": 2})
    states = [house.state(task) for task in tasks]
    assert states == ["ready"] * 2 + ["dead_lettered"] * 2
    left = house.rows("SELECT task_id FROM dead_letters WHERE resolved_at IS NULL ORDER BY task_id")
    assert [row["task_id"] for row in left] == tasks[2:]
    sound(house)


def test_a_refused_retry_takes_back_what_it_began(house: House, user: UserId) -> None:
    """A dead letter is resolved before the edges are looked at."""
    tasks = [NewTask("a", "echo", max_attempts=1), NewTask("b", "echo")]
    parent, child = submit_graph(house.app, user, tasks, LOOSE, edges=[Edge(0, 1)])
    house.settle(*begin_run(house, parent.task_id), FATAL)
    assert house.state(child.task_id) == "cancelled"

    bulk_id = begin(house, user, order("retry", title="b"))
    finish(house)

    assert counts(seen(house, user, bulk_id)) == (1, 0, 0, {"UPSTREAM_ENDED": 1})
    assert [house.state(one.task_id) for one in (parent, child)] == ["dead_lettered", "cancelled"]
    sound(house)


@pytest.mark.usefixtures("small_chunks")
def test_a_chain_is_cancelled_and_brought_back_task_by_task(house: House, user: UserId) -> None:
    tasks = [NewTask(f"step {n}", "echo") for n in range(5)]
    edges = [Edge(n, n + 1) for n in range(4)]
    chain = [one.task_id for one in submit_graph(house.app, user, tasks, LOOSE, edges=edges)]

    stopped = begin(house, user, order("cancel", title="step"))
    finish(house)
    back = begin(house, user, order("retry", status="cancelled"))
    finish(house)

    assert counts(seen(house, user, stopped)) == (5, 5, 0, {})
    # What came back with its parent in one chunk is left alone in the next.
    total, changed, skipped, refused = counts(seen(house, user, back))
    assert (total, changed + skipped, refused) == (5, 5, {})
    assert [house.state(task) for task in chain] == ["ready", *["pending"] * 4]
    sound(house)


def test_a_graph_comes_back_though_its_first_task_waits_for_its_last(
    house: House, user: UserId
) -> None:
    tasks = [NewTask(f"step {n}", "echo") for n in range(4)]
    edges = [Edge(n + 1, n) for n in range(3)]
    chain = [one.task_id for one in submit_graph(house.app, user, tasks, LOOSE, edges=edges)]
    begin(house, user, order("cancel", title="step"))
    finish(house)

    bulk_id = begin(house, user, order("retry", title="step"))
    finish(house)

    assert counts(seen(house, user, bulk_id)) == (4, 4, 0, {})
    assert [house.state(task) for task in chain] == [*["pending"] * 3, "ready"]
    sound(house)


def test_a_task_that_came_back_and_failed_again_is_left_alone(
    house: House, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "CHUNK", 1)
    monkeypatch.setattr(working, "FURTHER_CHUNKS", 0)
    tasks = [NewTask(name, "echo", max_attempts=1) for name in ("a", "b")]
    parent, child = submit_graph(house.app, user, tasks, LOOSE, edges=[Edge(0, 1)])
    house.settle(*begin_run(house, parent.task_id), FATAL)
    bulk_id = begin(house, user, order("retry", type="echo"))
    assert work_off(house.dispatcher) == 1
    house.settle(*begin_run(house, parent.task_id), Returned())
    house.settle(*begin_run(house, child.task_id), FATAL)

    finish(house)

    assert house.state(child.task_id) == "dead_lettered"
    assert counts(seen(house, user, bulk_id)) == (2, 1, 1, {})


def test_waiting_tasks_are_moved_up_and_the_others_skipped(house: House, user: UserId) -> None:
    running = house.running(user, priority=5).claim.task_id
    late = [house.task(user, priority=70) for _ in range(2)]
    same = house.task(user, priority=20)

    bulk_id = begin(house, user, order("reprioritise", 20, type="echo"))
    finish(house)

    assert counts(seen(house, user, bulk_id)) == (4, 2, 2, {})
    assert [house.row(task)["priority"] for task in (*late, same)] == [20, 20, 20]
    assert house.row(running)["priority"] == 5
    assert house.row(late[0])["sort_key"] < house.row(same)["sort_key"]
    sound(house)


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "pending"},
        {"status": "failed"},
        {"status": "DEAD"},
        {"type": "echo"},
        {"tag": "a"},
        {"project_id": "p"},
        {"source": "cli"},
        {"title": "ONE"},
        {"created_after": "2020-01-01T00:00:00Z", "created_before": "2999-01-01T00:00:00Z"},
        {"created_before": "2020-01-01T00:00:00Z"},
    ],
)
def test_what_is_chosen_is_what_the_list_shows(
    house: House, user: UserId, fields: dict[str, Any]
) -> None:
    house.task(user, tags=("a", "b"), title="one")
    house.task(user, project_id="p", title="None", type="other")
    house.task(user, source="cli")
    dead(house, user)
    wanted = TaskFilter(**fields)
    states = working.selected_by(wanted).states
    chosen = Chosen(
        of_type=wanted.type,
        of_tag=wanted.tag,
        of_project=wanted.project_id,
        of_source=wanted.source,
        made_from=wanted.created_after,
        made_until=wanted.created_before,
        titled=wanted.title,
    )

    listed = list_tasks(house.app, user, states=states, chosen=chosen)

    assert preview(house.app, user, Order(Action.CANCEL, wanted)).total == len(listed)


@pytest.mark.usefixtures("small_chunks")
def test_each_chunk_is_a_short_transaction_of_its_own(
    house: House, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks moved and three looked at in each, through a field of those not meant."""
    monkeypatch.setattr(working, "FURTHER_CHUNKS", 0)
    tasks = [house.task(user, title="yes" if n % 4 == 0 else "no") for n in range(14)]
    bulk_id = begin(house, user, order("cancel", title="yes"))
    steps = []
    while not (view := seen(house, user, bulk_id)).finished_at:
        steps.append(view.done)
        assert work_off(house.dispatcher) <= 2

    assert counts(view) == (4, 4, 0, {})
    assert len(steps) >= 5
    assert steps == sorted(steps)
    assert [house.state(task) for task in tasks] == ["cancelled", *["ready"] * 3] * 3 + [
        "cancelled",
        "ready",
    ]


def test_everybody_gets_a_chunk_before_anybody_gets_a_second(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "CHUNK", 1)
    monkeypatch.setattr(working, "FURTHER_CHUNKS", 0)
    large, small = house.user(), house.user()
    for _ in range(3):
        house.task(large)
    only = house.task(small)
    first = begin(house, large, order("cancel", type="echo"))
    second = begin(house, large, order("cancel", status="ready"))
    begin(house, small, order("cancel", type="echo"))

    assert work_off(house.dispatcher) == 2

    assert house.state(only) == "cancelled"
    assert [seen(house, large, one).done for one in (first, second)] == [1, 0]


def test_what_comes_in_later_is_not_touched_whatever_its_id(
    house: House, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id is made before the lane is held, perhaps on a machine whose clock is slow."""
    early = house.task(user)
    bulk_id = begin(house, user, order("cancel", type="echo"))
    late = house.task(user)
    monkeypatch.setattr(submitting, "new_task_id", lambda: TaskId(UUID(int=early.int - 1)))
    slow = house.task(user)

    finish(house)

    assert slow < early < late
    assert counts(seen(house, user, bulk_id)) == (1, 1, 0, {})
    assert [house.state(task) for task in (slow, early, late)] == ["ready", "cancelled", "ready"]


def test_what_is_chosen_no_more_is_counted_as_skipped(house: House, user: UserId) -> None:
    tasks = [house.task(user) for _ in range(3)]
    bulk_id = begin(house, user, order("reprioritise", 5, status="pending"))
    cancel(house.app, user, tasks[1], actor=ME)

    finish(house)

    view = seen(house, user, bulk_id)
    assert counts(view) == (3, 2, 1, {})
    assert view.done == 3


@pytest.mark.usefixtures("small_chunks")
def test_a_cancelled_operation_goes_no_further(
    house: House, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "FURTHER_CHUNKS", 0)
    tasks = [house.task(user) for _ in range(5)]
    bulk_id = begin(house, user, order("cancel", type="echo"))
    work_off(house.dispatcher)

    cancel_bulk(house.app, user, bulk_id, actor=ME)
    after = work_off(house.dispatcher)

    assert after == 0
    view = seen(house, user, bulk_id)
    assert (view.state, view.changed) == ("cancelled", 2)
    assert [house.state(task) for task in tasks] == ["ready"] * 3 + ["cancelled"] * 2
    with pytest.raises(BulkAlreadyFinished, match="cancelled"):
        cancel_bulk(house.app, user, bulk_id, actor=ME)
    with pytest.raises(BulkNotFound):
        cancel_bulk(house.app, house.user(), bulk_id, actor=ME)


def test_one_that_cannot_go_on_keeps_nobody_waiting(house: House, user: UserId) -> None:
    house.task(user)
    stuck = begin(house, user, order("cancel", type="echo"))
    house.run("UPDATE bulk_operations SET filter = '{\"sort\": 1}' WHERE id = :id", id=stuck)
    other = house.user()
    task = house.task(other)
    begin(house, other, order("cancel", type="echo"))

    assert work_off(house.dispatcher) == 1

    assert house.state(task) == "cancelled"
    assert seen(house, user, stuck).state == "running"


def test_the_same_key_begins_one_operation(house: House, user: UserId) -> None:
    once, again = (
        start(house.app, user, order("cancel", type="echo"), actor=ME, idempotency_key="k")
        for _ in range(2)
    )
    other = start(
        house.app, house.user(), order("cancel", type="echo"), actor=ME, idempotency_key="k"
    )

    assert (once.created, again.created, other.created) == (True, False, True)
    assert again.bulk_id == once.bulk_id


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (order("cancel"), "filter"),
        (Order(Action.CANCEL, TaskFilter(type="a"), everything=True), "everything"),
        (order("reprioritise", type="a"), "priority"),
        (order("retry", 5, type="a"), "priority"),
        (order("retry", status="gone"), "filter.status"),
    ],
)
def test_an_order_that_cannot_be_meant_is_refused(
    house: House, user: UserId, wanted: Order, field: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: ") as refused:
        preview(house.app, user, wanted)
    with pytest.raises(InvalidRequest):
        begin(house, user, wanted)

    assert refused.value.details["legal"]
    assert list_bulks(house.app, user) == []


def test_everything_may_be_meant_if_it_is_said(house: House, user: UserId) -> None:
    task = house.task(user)

    begin(house, user, Order(Action.CANCEL, TaskFilter(), everything=True))
    finish(house)

    assert house.state(task) == "cancelled"


def test_who_asked_and_who_took_back_is_on_record(house: House, user: UserId) -> None:
    bulk_id = begin(house, user, order("cancel", type="echo"), key_id="key")
    cancel_bulk(house.app, user, bulk_id, actor="human:other")

    acts = house.rows("SELECT * FROM audit_log WHERE user_id = :u ORDER BY id", u=user)

    assert [(act["act"], act["actor"]) for act in acts if act["act"].startswith("bulk")] == [
        ("bulk.started", ME),
        ("bulk.cancelled", "human:other"),
    ]
