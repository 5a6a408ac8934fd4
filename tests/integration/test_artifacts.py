"""Artifacts are staged under the claim of their run, and visible once that run has ended."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from overnight.errors import ArtifactNotFound, InvalidRequest
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import ArtifactId, UserId, show_artifact
from overnight_server.domain.results import (
    Deferred,
    Died,
    Interrupted,
    Lost,
    Raised,
    Result,
    Returned,
    StoppedByCancel,
    TimedOut,
)
from overnight_server.insight.artifacts import get_artifact, list_artifacts
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from overnight_server.maintenance.stale_artifacts import delete_stale_artifacts
from overnight_server.outcome.artifacts import ArtifactCaps, NewArtifact, store_artifact
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from tests.support.deployment import Deployment
from tests.support.rivals import Rival, meet_at_lane


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def run(deployment: Deployment, user: UserId) -> Run:
    return deployment.running(user)


def kept(
    deployment: Deployment, run: Run, name: str = "report", content: bytes = b"text"
) -> ArtifactId:
    artifact = NewArtifact(name, "text", content)
    return store_artifact(deployment.dispatcher, run.claim, artifact, ArtifactCaps())


def started_again(deployment: Deployment) -> Run:
    [claimed] = deployment.claim().claims
    run = deployment.start(claimed)
    assert run is not None
    return run


def test_an_artifact_of_a_running_task_is_not_visible(deployment: Deployment, run: Run) -> None:
    artifact = kept(deployment, run)

    assert list_artifacts(deployment.app, run.user_id, run.claim.task_id) == []
    with pytest.raises(ArtifactNotFound):
        get_artifact(deployment.app, run.user_id, artifact)
    with pytest.raises(InvalidRequest, match="there is no artifact"):
        deployment.task(run.user_id, context_refs=[f"artifact:{show_artifact(artifact)}"])


@pytest.mark.parametrize(
    ("result", "is_visible"),
    [
        (Raised("error", "boom", retryable=True), True),
        (Raised("error", "boom", retryable=False), True),
        (TimedOut(by_plan=False), True),
        (StoppedByCancel(), True),
        (Deferred(30.0), True),
        (Interrupted("shutdown"), False),
        (Died(), False),
        (Lost(), False),
    ],
)
def test_the_artifacts_of_a_run_that_is_repeated_are_never_seen(
    deployment: Deployment, run: Run, result: Result, *, is_visible: bool
) -> None:
    kept(deployment, run)

    deployment.settle(run, result)

    listed = list_artifacts(deployment.app, run.user_id, run.claim.task_id)
    assert bool(listed) is is_visible


def test_the_id_of_a_name_stays_the_same_in_every_run(deployment: Deployment, run: Run) -> None:
    first = kept(deployment, run, content=b"one")
    deployment.settle(run, Interrupted("shutdown"))
    second_run = started_again(deployment)

    assert kept(deployment, second_run, content=b"two") == first
    deployment.settle(second_run, Interrupted("shutdown"))
    third_run = started_again(deployment)
    assert kept(deployment, third_run, content=b"three") == first
    deployment.settle(third_run, Returned())

    assert get_artifact(deployment.app, run.user_id, first)[1].value() == "three"
    [artifact] = deployment.rows("SELECT epoch FROM artifacts")
    assert artifact["epoch"] == 3


def test_a_result_that_loses_against_the_reaper_promotes_nothing(
    deployment: Deployment, run: Run, connect: Callable[..., Db]
) -> None:
    kept(deployment, run, content=b"loser")
    deployment.move_clock(timedelta(minutes=5))
    reaper = Rival(connect, "reaper", reap)
    late = Rival(connect, "late", settle, run, Returned(), agent="late")

    assert meet_at_lane(connect, run.user_id, reaper, late) == [1, False]

    assert not deployment.rows("SELECT * FROM artifacts")
    deployment.run("UPDATE tasks SET retry_at = clock()")
    promote(deployment.dispatcher)
    winner = started_again(deployment)
    kept(deployment, winner, "other")
    deployment.settle(winner, Returned())
    [artifact] = deployment.rows("SELECT name, epoch FROM artifacts")
    assert (artifact["name"], artifact["epoch"]) == ("other", 2)


def test_a_reaper_that_comes_after_the_result_changes_nothing(
    deployment: Deployment, run: Run, connect: Callable[..., Db]
) -> None:
    kept(deployment, run)
    deployment.move_clock(timedelta(minutes=5))
    first = Rival(connect, "first", settle, run, Returned(), agent="first")
    reaper = Rival(connect, "reaper", reap)

    assert meet_at_lane(connect, run.user_id, first, reaper) == [True, 0]

    assert len(deployment.rows("SELECT * FROM artifacts")) == 1
    assert not deployment.rows("SELECT * FROM staged_artifacts")


def test_what_lost_runs_stored_is_deleted_after_a_day(deployment: Deployment, run: Run) -> None:
    kept(deployment, run)
    deployment.settle(run, Interrupted("shutdown"))
    living = started_again(deployment)
    kept(deployment, living, "of a living run")

    assert delete_stale_artifacts(deployment.dispatcher) == 0
    deployment.run("UPDATE staged_artifacts SET created_at = created_at - interval '25 hours'")
    assert delete_stale_artifacts(deployment.dispatcher) == 1
    assert delete_stale_artifacts(deployment.dispatcher) == 0

    [left] = deployment.rows("SELECT name FROM staged_artifacts")
    assert left["name"] == "of a living run"
