"""Random graphs end in the database as the pure model predicts, in any order of runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overnight.errors import InvalidRequest
from overnight_server.control.cancel import cancel
from overnight_server.control.retry import retry
from overnight_server.domain.claims import Run
from overnight_server.domain.graphs import (
    STOPPED,
    Condition,
    GraphEdge,
    OnUnmet,
    TaskEnd,
    cancel_reason,
    is_met,
    predict_ends,
)
from overnight_server.domain.graphs import status as status_of
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.lifecycle import FINAL, State
from overnight_server.domain.results import Raised, Result, Returned, StoppedByCancel
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from tests.support.deployment import LOOSE, Deployment
from tests.support.invariants import describe_violations, violations
from tests.support.profiles import examples

ME = "human:me"
RESULTS: dict[State, Result] = {
    State.COMPLETED: Returned(),
    State.DEAD_LETTERED: Raised("auth_failure", "wrong key"),
    State.CANCELLED: StoppedByCancel(),
}
RETRYABLE = (State.DEAD_LETTERED, State.CANCELLED)
# The invariants that graphs can violate; other tests cover the rest.
GRAPHS = {
    *("I02", "lane_counters", "graph_counters", "graph_cycle", "owners", "claims", "completions"),
    *("attempt_numbers", "early_claims", "unmet_counts", "edges", "cancel_reasons", "events"),
    "dead_letters",
}


@dataclass(frozen=True)
class Story:
    """A graph, the results of its runs, the tasks stopped first, and the order of the results."""

    runs: Sequence[State]
    links: Sequence[GraphEdge]
    stopped: frozenset[int]
    order: Sequence[int]
    retried: Sequence[int]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    size = draw(st.integers(1, 7))
    places = range(size)
    pairs = [(parent, child) for child in places for parent in range(child)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    links = [
        GraphEdge(
            parent,
            child,
            draw(st.sampled_from(Condition)),
            draw(st.sampled_from([OnUnmet.CANCEL, OnUnmet.CANCEL, OnUnmet.CONTINUE])),
        )
        for parent, child in chosen
    ]
    return Story(
        [draw(st.sampled_from(sorted(RESULTS))) for _ in places],
        links,
        draw(st.frozensets(st.sampled_from(places), max_size=1)),
        draw(st.permutations(places)),
        draw(st.permutations(places)),
    )


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=stories())
def test_every_graph_ends_as_the_model_predicts(deployment: Deployment, story: Story) -> None:
    user = deployment.user(max_concurrent_agents=20)
    deployment.agent()
    tasks = _submitted(deployment, user, story)
    for place in story.stopped:
        cancel(deployment.app, user, tasks[place], actor=ME)
    _play(deployment, user, tasks, story.runs, story.order)

    ends = _ends(deployment, tasks)

    expected = predict_ends(story.runs, story.links, story.stopped)
    assert [end.state for end in ends] == [end.state for end in expected]
    for place, end in enumerate(ends):
        assert end.reason in _possible_reasons(story, ends, place)
    _check_graph(deployment, tasks, status_of(expected))


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=stories())
def test_no_retry_leaves_a_graph_stuck(deployment: Deployment, story: Story) -> None:
    user = deployment.user(max_concurrent_agents=20)
    deployment.agent()
    tasks = _submitted(deployment, user, story)
    _play(deployment, user, tasks, story.runs, story.order)

    for place in story.retried:
        before = _ends(deployment, tasks)
        if before[place].state not in RETRYABLE:
            continue
        try:
            back = retry(deployment.app, user, tasks[place], actor=ME)
        except InvalidRequest:
            assert _is_stuck(story, before, place)
            continue
        assert tasks[place] in back
        revived = deployment.one("SELECT status, finished_at FROM dags WHERE user_id = :u", u=user)
        assert (revived["status"], revived["finished_at"]) == ("running", None)
        _play(deployment, user, tasks, [State.COMPLETED] * len(tasks), story.order)
        assert _ends(deployment, tasks)[place] == TaskEnd(State.COMPLETED)

    _check_graph(deployment, tasks, status_of(_ends(deployment, tasks)))


def _submitted(deployment: Deployment, user: UserId, story: Story) -> list[TaskId]:
    made = submit_graph(
        deployment.app,
        user,
        [NewTask(f"task {place}", "echo") for place in range(len(story.runs))],
        LOOSE,
        edges=[
            Edge(link.parent, link.child, link.condition, link.on_unmet) for link in story.links
        ],
        title="a story",
    )
    return [submitted.task_id for submitted in made]


def _play(
    deployment: Deployment,
    user: UserId,
    tasks: Sequence[TaskId],
    runs: Sequence[State],
    order: Sequence[int],
) -> None:
    """Start every ready task and settle the runs one by one in the given order."""
    running: dict[TaskId, Run] = {}
    while True:
        for claimed in deployment.claim().claims:
            run = deployment.start(claimed)
            assert run is not None
            running[run.claim.task_id] = run
        if not running:
            return
        place = next(place for place in order if tasks[place] in running)
        assert deployment.settle(running.pop(tasks[place]), RESULTS[runs[place]])


def _ends(deployment: Deployment, tasks: Sequence[TaskId]) -> list[TaskEnd]:
    rows = [deployment.row(task) for task in tasks]
    return [
        TaskEnd(
            State(row["state"]),
            row["failure_reason"] if row["state"] == State.CANCELLED else None,
        )
        for row in rows
    ]


def _possible_reasons(story: Story, ends: Sequence[TaskEnd], place: int) -> set[str | None]:
    if ends[place].state is not State.CANCELLED:
        return {None}
    above = [
        cancel_reason(ends[link.parent])
        for link in story.links
        if link.child == place
        and not is_met(link.condition, link.on_unmet, ends[link.parent].state)
    ]
    return {STOPPED} if place in story.stopped or not above else {str(item) for item in above}


def _is_stuck(story: Story, ends: Sequence[TaskEnd], place: int) -> bool:
    return any(ends[link.parent].state in FINAL for link in story.links if link.child == place)


def _check_graph(deployment: Deployment, tasks: Sequence[TaskId], expected: str) -> None:
    graph = deployment.one(
        "SELECT * FROM dags WHERE id = :id", id=deployment.row(tasks[0])["dag_id"]
    )
    assert (graph["status"], graph["open"]) == (expected, 0)
    assert graph["finished_at"] is not None
    broken = violations(deployment.dispatcher, drained=True, codes=GRAPHS)
    assert not broken, describe_violations(broken)
