"""Bulk operations: each chosen task once, by the moves of the single commands."""

from typing import Any
from uuid import UUID

import pytest

from overnight.errors import BulkAlreadyFinished, BulkNotFound, InvalidRequest
from overnight.models.bulk import TaskFilter
from overnight_server.control.bulk import BulkOrder, cancel_bulk, preview, start
from overnight_server.control.cancel import cancel
from overnight_server.control.dead_letters import discard
from overnight_server.domain.bulk import Action
from overnight_server.domain.ids import TaskId, UserId, show_bulk
from overnight_server.domain.results import Returned
from overnight_server.insight.bulk import list_bulks
from overnight_server.insight.tasks import TaskCriteria, list_tasks
from overnight_server.intake import submit as submitting
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance import bulk as working
from overnight_server.maintenance.bulk import run_bulks
from overnight_server.store import pass_limit
from tests.support.bulk import (
    FATAL,
    ME,
    begin,
    counts,
    dead,
    finish,
    get_operation,
    moves,
    order,
)
from tests.support.deployment import LOOSE, Deployment
from tests.support.graphs import assert_invariants
from tests.support.graphs import begin as begin_run


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a chunk move two tasks, and look at three to find them."""
    monkeypatch.setattr(working, "CHUNK", 2)
    monkeypatch.setattr(working, "MAX_ROWS_READ", 3)


def test_a_bulk_cancel_changes_only_the_selected_tasks(
    deployment: Deployment, user: UserId
) -> None:
    wanted = [deployment.task(user, tags=("night",)) for _ in range(3)]
    running = deployment.running(user, tags=("night",)).claim.task_id
    ended = dead(deployment, user, tags=("night",))
    others = [deployment.task(user), deployment.task(deployment.user(), tags=("night",))]

    told_before = preview(deployment.app, user, order("cancel", tag="night"))
    bulk_id = begin(deployment, user, order("cancel", tag="night"))
    finish(deployment)

    assert (told_before.total, told_before.applies) == (5, 4)
    assert told_before.sample == [running, *wanted[::-1]]
    assert counts(get_operation(deployment, user, bulk_id)) == (5, 4, 1, {})
    assert [deployment.state(task) for task in wanted] == ["cancelled"] * 3
    assert deployment.row(running)["cancel_requested_at"] is not None
    assert [deployment.state(task) for task in (ended, *others)] == [
        "dead_lettered",
        "ready",
        "ready",
    ]
    assert moves(deployment, wanted[0], "cancelled") == [ME]
    assert_invariants(deployment)


def test_a_preview_changes_nothing(deployment: Deployment, user: UserId) -> None:
    task = deployment.task(user)

    assert preview(deployment.app, user, order("cancel", status="pending")).sample == [task]

    assert deployment.state(task) == "ready"
    assert list_bulks(deployment.app, user) == []


def test_failed_tasks_are_retried_and_closed_ones_are_refused(
    deployment: Deployment, user: UserId
) -> None:
    first, second, closed = (dead(deployment, user) for _ in range(3))
    discard(deployment.app, closed, actor=ME)

    bulk_id = begin(deployment, user, order("retry", status="failed"))
    finish(deployment)
    of_cancelled = begin(deployment, user, order("retry", status="cancelled"))
    finish(deployment)

    view = get_operation(deployment, user, bulk_id)
    assert counts(view) == (2, 2, 0, {})
    assert (view.state, view.done) == ("completed", 2)
    refused = get_operation(deployment, user, of_cancelled)
    assert counts(refused) == (1, 0, 0, {"NOT_RETRYABLE": 1})
    assert [deployment.state(task) for task in (first, second, closed)] == [
        "ready",
        "ready",
        "cancelled",
    ]
    letter = deployment.one("SELECT * FROM dead_letters WHERE task_id = :id", id=first)
    assert (letter["resolution"], letter["note"]) == ("retry", show_bulk(bulk_id))
    assert_invariants(deployment)


def test_a_bulk_retry_keeps_to_the_users_cap(deployment: Deployment, user: UserId) -> None:
    """A task that brings others back counts with them."""
    deployment.run("UPDATE users SET max_pending = 4 WHERE id = :id", id=user)
    pair = [NewTask("a", "echo"), NewTask("b", "echo")]
    graph = submit_graph(deployment.app, user, pair, LOOSE, edges=[Edge(0, 1)])
    for submitted in graph[::-1]:
        cancel(deployment.app, user, submitted.task_id, actor=ME)
    for _ in range(5):
        cancel(deployment.app, user, deployment.task(user), actor=ME)

    bulk_id = begin(deployment, user, order("retry", status="cancelled"))
    finish(deployment)

    assert counts(get_operation(deployment, user, bulk_id)) == (7, 4, 0, {"TOO_MANY_PENDING": 3})
    assert deployment.lane(user)["waiting"] == 4
    assert_invariants(deployment)


def test_a_bulk_retry_keeps_to_the_deployments_cap(deployment: Deployment, user: UserId) -> None:
    tasks = [dead(deployment, user) for _ in range(4)]
    deployment.task(deployment.user())

    bulk_id = begin(deployment, user, order("retry", status="failed"))
    run_bulks(deployment.dispatcher, Caps(queue_max_size=3))

    assert counts(get_operation(deployment, user, bulk_id)) == (4, 2, 0, {"QUEUE_FULL": 2})
    states = [deployment.state(task) for task in tasks]
    assert states == ["ready"] * 2 + ["dead_lettered"] * 2
    left = deployment.rows(
        "SELECT task_id FROM dead_letters WHERE resolved_at IS NULL ORDER BY task_id"
    )
    assert [row["task_id"] for row in left] == tasks[2:]
    assert_invariants(deployment)


def test_a_refused_retry_is_rolled_back(deployment: Deployment, user: UserId) -> None:
    """A dead letter is resolved before the edges are looked at."""
    tasks = [NewTask("a", "echo", max_attempts=1), NewTask("b", "echo")]
    parent, child = submit_graph(deployment.app, user, tasks, LOOSE, edges=[Edge(0, 1)])
    deployment.settle(*begin_run(deployment, parent.task_id), FATAL)
    assert deployment.state(child.task_id) == "cancelled"

    bulk_id = begin(deployment, user, order("retry", title="b"))
    finish(deployment)

    assert counts(get_operation(deployment, user, bulk_id)) == (1, 0, 0, {"UPSTREAM_ENDED": 1})
    assert [deployment.state(submitted.task_id) for submitted in (parent, child)] == [
        "dead_lettered",
        "cancelled",
    ]
    assert_invariants(deployment)


@pytest.mark.usefixtures("small_chunks")
def test_a_chain_is_cancelled_and_retried_in_bulk(deployment: Deployment, user: UserId) -> None:
    tasks = [NewTask(f"step {n}", "echo") for n in range(5)]
    edges = [Edge(n, n + 1) for n in range(4)]
    chain = [
        submitted.task_id
        for submitted in submit_graph(deployment.app, user, tasks, LOOSE, edges=edges)
    ]

    stopped = begin(deployment, user, order("cancel", title="step"))
    finish(deployment)
    back = begin(deployment, user, order("retry", status="cancelled"))
    finish(deployment)

    assert counts(get_operation(deployment, user, stopped)) == (5, 5, 0, {})
    # A task revived with its parent in one chunk is not changed again in the next.
    total, changed, skipped, refused = counts(get_operation(deployment, user, back))
    assert (total, changed + skipped, refused) == (5, 5, {})
    assert [deployment.state(task) for task in chain] == ["ready", *["pending"] * 4]
    assert_invariants(deployment)


def test_a_graph_is_retried_in_bulk_against_its_submit_order(
    deployment: Deployment, user: UserId
) -> None:
    tasks = [NewTask(f"step {n}", "echo") for n in range(4)]
    edges = [Edge(n + 1, n) for n in range(3)]
    chain = [
        submitted.task_id
        for submitted in submit_graph(deployment.app, user, tasks, LOOSE, edges=edges)
    ]
    begin(deployment, user, order("cancel", title="step"))
    finish(deployment)

    bulk_id = begin(deployment, user, order("retry", title="step"))
    finish(deployment)

    assert counts(get_operation(deployment, user, bulk_id)) == (4, 4, 0, {})
    assert [deployment.state(task) for task in chain] == [*["pending"] * 3, "ready"]
    assert_invariants(deployment)


def test_a_task_that_was_retried_and_failed_again_is_not_changed(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "CHUNK", 1)
    monkeypatch.setattr(pass_limit, "PASS_SECONDS", 0)
    tasks = [NewTask(name, "echo", max_attempts=1) for name in ("a", "b")]
    parent, child = submit_graph(deployment.app, user, tasks, LOOSE, edges=[Edge(0, 1)])
    deployment.settle(*begin_run(deployment, parent.task_id), FATAL)
    bulk_id = begin(deployment, user, order("retry", type="echo"))
    assert run_bulks(deployment.dispatcher) == 1
    deployment.settle(*begin_run(deployment, parent.task_id), Returned())
    deployment.settle(*begin_run(deployment, child.task_id), FATAL)

    finish(deployment)

    assert deployment.state(child.task_id) == "dead_lettered"
    assert counts(get_operation(deployment, user, bulk_id)) == (2, 1, 1, {})


def test_waiting_tasks_are_moved_up_and_the_others_skipped(
    deployment: Deployment, user: UserId
) -> None:
    running = deployment.running(user, priority=5).claim.task_id
    late = [deployment.task(user, priority=70) for _ in range(2)]
    same = deployment.task(user, priority=20)

    bulk_id = begin(deployment, user, order("reprioritise", 20, type="echo"))
    finish(deployment)

    assert counts(get_operation(deployment, user, bulk_id)) == (4, 2, 2, {})
    assert [deployment.row(task)["priority"] for task in (*late, same)] == [20, 20, 20]
    assert deployment.row(running)["priority"] == 5
    assert deployment.row(late[0])["sort_key"] < deployment.row(same)["sort_key"]
    assert_invariants(deployment)


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
def test_a_bulk_filter_selects_the_same_tasks_as_the_list(
    deployment: Deployment, user: UserId, fields: dict[str, Any]
) -> None:
    deployment.task(user, tags=("a", "b"), title="one")
    deployment.task(user, project_id="p", title="None", type="other")
    deployment.task(user, source="cli")
    dead(deployment, user)
    task_filter = TaskFilter(**fields)
    states = working.selection_of(task_filter).states
    chosen = TaskCriteria(
        of_type=task_filter.type,
        of_tag=task_filter.tag,
        of_project=task_filter.project_id,
        of_source=task_filter.source,
        made_from=task_filter.created_after,
        made_until=task_filter.created_before,
        titled=task_filter.title,
    )

    listed = list_tasks(deployment.app, user, states=states, criteria=chosen)

    assert preview(deployment.app, user, BulkOrder(Action.CANCEL, task_filter)).total == len(listed)


@pytest.mark.usefixtures("small_chunks")
def test_each_chunk_is_a_short_transaction_of_its_own(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks moved and three looked at in each, through a field of those not meant."""
    monkeypatch.setattr(pass_limit, "PASS_SECONDS", 0)
    tasks = [deployment.task(user, title="yes" if n % 4 == 0 else "no") for n in range(14)]
    bulk_id = begin(deployment, user, order("cancel", title="yes"))
    steps = []
    while not (view := get_operation(deployment, user, bulk_id)).finished_at:
        steps.append(view.done)
        assert run_bulks(deployment.dispatcher) <= 2

    assert counts(view) == (4, 4, 0, {})
    assert len(steps) >= 5
    assert steps == sorted(steps)
    assert [deployment.state(task) for task in tasks] == ["cancelled", *["ready"] * 3] * 3 + [
        "cancelled",
        "ready",
    ]


def test_every_operation_gets_a_chunk_before_a_second_one(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "CHUNK", 1)
    monkeypatch.setattr(pass_limit, "PASS_SECONDS", 0)
    large, small = deployment.user(), deployment.user()
    for _ in range(3):
        deployment.task(large)
    only = deployment.task(small)
    first = begin(deployment, large, order("cancel", type="echo"))
    second = begin(deployment, large, order("cancel", status="ready"))
    begin(deployment, small, order("cancel", type="echo"))

    assert run_bulks(deployment.dispatcher) == 2

    assert deployment.state(only) == "cancelled"
    assert [get_operation(deployment, large, item).done for item in (first, second)] == [1, 0]


def test_tasks_submitted_after_the_start_are_not_changed(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id is made before the lane is held, perhaps on a machine whose clock is slow."""
    early = deployment.task(user)
    bulk_id = begin(deployment, user, order("cancel", type="echo"))
    late = deployment.task(user)
    monkeypatch.setattr(submitting, "new_task_id", lambda: TaskId(UUID(int=early.int - 1)))
    slow = deployment.task(user)

    finish(deployment)

    assert slow < early < late
    assert counts(get_operation(deployment, user, bulk_id)) == (1, 1, 0, {})
    assert [deployment.state(task) for task in (slow, early, late)] == [
        "ready",
        "cancelled",
        "ready",
    ]


def test_a_task_that_no_longer_matches_is_counted_as_skipped(
    deployment: Deployment, user: UserId
) -> None:
    tasks = [deployment.task(user) for _ in range(3)]
    bulk_id = begin(deployment, user, order("reprioritise", 5, status="pending"))
    cancel(deployment.app, user, tasks[1], actor=ME)

    finish(deployment)

    view = get_operation(deployment, user, bulk_id)
    assert counts(view) == (3, 2, 1, {})
    assert view.done == 3


@pytest.mark.usefixtures("small_chunks")
def test_a_cancelled_operation_changes_no_more_tasks(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_limit, "PASS_SECONDS", 0)
    tasks = [deployment.task(user) for _ in range(5)]
    bulk_id = begin(deployment, user, order("cancel", type="echo"))
    run_bulks(deployment.dispatcher)

    cancel_bulk(deployment.app, user, bulk_id, actor=ME)
    after = run_bulks(deployment.dispatcher)

    assert after == 0
    view = get_operation(deployment, user, bulk_id)
    assert (view.state, view.changed) == ("cancelled", 2)
    assert [deployment.state(task) for task in tasks] == ["ready"] * 3 + ["cancelled"] * 2
    with pytest.raises(BulkAlreadyFinished, match="cancelled"):
        cancel_bulk(deployment.app, user, bulk_id, actor=ME)
    with pytest.raises(BulkNotFound):
        cancel_bulk(deployment.app, deployment.user(), bulk_id, actor=ME)


def test_a_failing_bulk_operation_does_not_delay_the_others(
    deployment: Deployment, user: UserId
) -> None:
    deployment.task(user)
    stuck = begin(deployment, user, order("cancel", type="echo"))
    deployment.run("UPDATE bulk_operations SET filter = '{\"sort\": 1}' WHERE id = :id", id=stuck)
    other = deployment.user()
    task = deployment.task(other)
    begin(deployment, other, order("cancel", type="echo"))

    assert run_bulks(deployment.dispatcher) == 1

    assert deployment.state(task) == "cancelled"
    assert get_operation(deployment, user, stuck).state == "running"


def test_the_same_key_starts_one_operation(deployment: Deployment, user: UserId) -> None:
    once, again = (
        start(deployment.app, user, order("cancel", type="echo"), actor=ME, idempotency_key="k")
        for _ in range(2)
    )
    other = start(
        deployment.app,
        deployment.user(),
        order("cancel", type="echo"),
        actor=ME,
        idempotency_key="k",
    )

    assert (once.created, again.created, other.created) == (True, False, True)
    assert again.bulk_id == once.bulk_id


@pytest.mark.parametrize(
    ("bulk_order", "field"),
    [
        (order("cancel"), "filter"),
        (BulkOrder(Action.CANCEL, TaskFilter(type="a"), everything=True), "everything"),
        (order("reprioritise", type="a"), "priority"),
        (order("retry", 5, type="a"), "priority"),
        (order("retry", status="gone"), "filter.status"),
    ],
)
def test_a_contradictory_bulk_order_is_refused(
    deployment: Deployment, user: UserId, bulk_order: BulkOrder, field: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: ") as refused:
        preview(deployment.app, user, bulk_order)
    with pytest.raises(InvalidRequest):
        begin(deployment, user, bulk_order)

    assert refused.value.fields[0].legal
    assert list_bulks(deployment.app, user) == []


def test_a_bulk_order_for_all_tasks_needs_everything_true(
    deployment: Deployment, user: UserId
) -> None:
    task = deployment.task(user)

    begin(deployment, user, BulkOrder(Action.CANCEL, TaskFilter(), everything=True))
    finish(deployment)

    assert deployment.state(task) == "cancelled"


def test_the_actors_of_start_and_stop_are_recorded(deployment: Deployment, user: UserId) -> None:
    bulk_id = begin(deployment, user, order("cancel", type="echo"), key_id="key")
    cancel_bulk(deployment.app, user, bulk_id, actor="human:other")

    acts = deployment.rows("SELECT * FROM audit_log WHERE user_id = :u ORDER BY id", u=user)

    assert [(act["act"], act["actor"]) for act in acts if act["act"].startswith("bulk")] == [
        ("bulk.started", ME),
        ("bulk.cancelled", "human:other"),
    ]
