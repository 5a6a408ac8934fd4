"""Edges in the database: conditions, policies, and the consequences of an end."""

import pytest

from overnight.errors import (
    InvalidRequest,
)
from overnight_server.control.cancel import cancel
from overnight_server.domain.graphs import Condition, OnUnmet
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Raised, Returned
from overnight_server.intake.new_graph import Edge
from tests.support.deployment import Deployment
from tests.support.graphs import assert_invariants, end, linked, states, status

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")
FALLBACK, CLEAN_UP = Condition.FAILURE, Condition.FINISHED


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


def test_a_fallback_takes_over_and_the_graph_stays_failed(
    deployment: Deployment, user: UserId
) -> None:
    task, fallback = linked(deployment, user, 2, Edge(0, 1, FALLBACK))

    end(deployment, task, FATAL)
    assert deployment.state(fallback) == "ready"
    end(deployment, fallback, Returned())

    assert status(deployment, task) == "failed"
    assert_invariants(deployment)


def test_a_fallback_that_is_not_needed_leaves_the_graph_completed(
    deployment: Deployment, user: UserId
) -> None:
    task, fallback, behind = linked(deployment, user, 3, Edge(0, 1, FALLBACK), Edge(1, 2))

    end(deployment, task, Returned())

    rows = [deployment.row(task_id) for task_id in (fallback, behind)]
    assert {(row["state"], row["failure_reason"]) for row in rows} == {("cancelled", "not_needed")}
    dag = deployment.one("SELECT * FROM dags")
    assert (dag["status"], dag["cancelled"], dag["stopped"]) == ("completed", 2, 0)
    assert_invariants(deployment)


def test_a_clean_up_task_runs_however_the_chain_before_it_ended(
    deployment: Deployment, user: UserId
) -> None:
    root, middle, last, clean_up = linked(
        deployment, user, 4, Edge(0, 1), Edge(1, 2), Edge(2, 3, CLEAN_UP)
    )

    end(deployment, root, FATAL)

    assert states(deployment, middle, last, clean_up) == ["cancelled", "cancelled", "ready"]
    assert_invariants(deployment)


def test_an_edge_with_on_unmet_continue_ignores_a_failure(
    deployment: Deployment, user: UserId
) -> None:
    optional, needed, child = linked(
        deployment, user, 3, Edge(0, 2, on_unmet=OnUnmet.CONTINUE), Edge(1, 2)
    )

    end(deployment, optional, FATAL)
    assert deployment.state(child) == "pending"
    end(deployment, needed, Returned())

    assert deployment.state(child) == "ready"
    assert_invariants(deployment)


def test_unknown_edge_conditions_are_refused(deployment: Deployment, user: UserId) -> None:
    for edge, field in (
        (Edge(0, 1, "sometimes"), "edges.condition"),
        (Edge(0, 1, on_unmet="shrug"), "edges.on_unmet"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            linked(deployment, user, 2, edge)
        assert refused.value.fields[0].field == field
    with pytest.raises(InvalidRequest, match="2 edges lead from 0 to 1"):
        linked(deployment, user, 2, Edge(0, 1), Edge(0, 1, FALLBACK))


def test_a_chain_of_a_thousand_is_cancelled_in_one_statement(
    deployment: Deployment, user: UserId
) -> None:
    chain = linked(deployment, user, 1000, *(Edge(n, n + 1) for n in range(999)))

    cancel(deployment.app, user, chain[0], actor=ME)

    dag = deployment.one("SELECT * FROM dags")
    assert (dag["status"], dag["cancelled"], dag["stopped"]) == ("cancelled", 1000, 1)
