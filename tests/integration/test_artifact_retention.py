"""Artifacts are deleted some time after their task has ended, or when their owner asks for it."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from overnight.errors import ArtifactNotFound
from overnight_server.artifact_store.folder import FolderStore
from overnight_server.control.artifacts import delete_artifact
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import ArtifactId, UserId, show_artifact
from overnight_server.domain.results import Raised, Returned
from overnight_server.insight.artifacts import get_artifact, list_artifacts
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit
from overnight_server.maintenance import artifact_retention
from overnight_server.maintenance.artifact_retention import delete_old_artifacts
from overnight_server.maintenance.promote import promote
from overnight_server.outcome.artifacts import ArtifactCaps, NewArtifact, store_artifact
from overnight_server.outcome.inputs import inputs_of
from overnight_server.store.db import Db
from tests.support.deployment import LOOSE, Deployment
from tests.support.rivals import Rival, meet_at_lane

RETENTION = timedelta(days=90)
LARGE = b"0123456789" * 20_000


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "blobs")


def keep(
    deployment: Deployment,
    run: Run,
    name: str = "a",
    content: bytes = b"text",
    store: FolderStore | None = None,
) -> ArtifactId:
    artifact = NewArtifact(name, "text", content)
    return store_artifact(deployment.dispatcher, run.claim, artifact, ArtifactCaps(), store)


def ended(deployment: Deployment, user: UserId, names: str = "a") -> ArtifactId:
    """Let a run store artifacts with names of one letter; return the id of the last one."""
    run = deployment.running(user)
    kept = [keep(deployment, run, name) for name in names]
    deployment.settle(run, Returned())
    return kept[-1]


def sweep(db: Db) -> int:
    return delete_old_artifacts(db, retention=RETENTION)


def test_artifacts_are_deleted_when_their_task_ended_long_ago(
    deployment: Deployment, user: UserId
) -> None:
    ended(deployment, user, "abc")
    ended(deployment, deployment.user(), "de")
    deployment.move_clock(RETENTION - timedelta(minutes=1))
    assert sweep(deployment.dispatcher) == 0
    young = ended(deployment, user)
    deployment.move_clock(timedelta(minutes=2))

    assert sweep(deployment.dispatcher) == 5
    assert sweep(deployment.dispatcher) == 0

    [left] = deployment.rows("SELECT id FROM artifacts")
    assert left["id"] == young
    counts = deployment.rows("SELECT artifacts FROM artifact_usage ORDER BY artifacts")
    assert [row["artifacts"] for row in counts] == [0, 1]


def test_a_sweep_deletes_more_than_one_batch(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_retention, "BATCH", 2)
    ended(deployment, user, "abcde")
    deployment.move_clock(RETENTION + timedelta(minutes=1))

    assert sweep(deployment.dispatcher) == 5


def test_artifacts_of_a_task_that_has_not_ended_are_kept(
    deployment: Deployment, user: UserId
) -> None:
    run = deployment.running(user)
    keep(deployment, run)
    deployment.settle(run, Raised("error", "boom", retryable=True))
    assert len(list_artifacts(deployment.app, user, run.claim.task_id)) == 1
    deployment.move_clock(RETENTION + timedelta(days=1))
    promote(deployment.dispatcher)

    assert sweep(deployment.dispatcher) == 0


def test_an_artifact_that_an_open_task_refers_to_is_kept_until_that_task_has_ended(
    deployment: Deployment, user: UserId
) -> None:
    artifact = ended(deployment, user, "ab")
    reference = f"artifact:{show_artifact(artifact)}"
    reader = deployment.task(user, context_refs=[reference])
    deployment.move_clock(RETENTION + timedelta(days=1))

    assert sweep(deployment.dispatcher) == 1
    assert sweep(deployment.dispatcher) == 0
    assert inputs_of(deployment.dispatcher, user, reader) == {reference: "text"}
    [claimed] = deployment.claim().claims
    run = deployment.start(claimed)
    assert run is not None
    deployment.settle(run, Returned())
    assert sweep(deployment.dispatcher) == 1


def test_a_sweep_that_meets_a_new_reference_at_the_lane_keeps_the_artifact(
    deployment: Deployment, user: UserId, connect: Callable[..., Db]
) -> None:
    reference = f"artifact:{show_artifact(ended(deployment, user))}"
    deployment.move_clock(RETENTION + timedelta(days=1))
    reader = NewTask(title="a reader", type="echo", context_refs=[reference])
    first = Rival(connect, "first", submit, user, reader, LOOSE)
    late = Rival(connect, "late", sweep)

    assert meet_at_lane(connect, user, first, late)[1] == 0


def test_the_owner_deletes_an_artifact_and_its_content(
    deployment: Deployment, user: UserId, folder: FolderStore
) -> None:
    run = deployment.running(user)
    artifact = keep(deployment, run, content=LARGE, store=folder)
    deployment.settle(run, Returned())

    with pytest.raises(ArtifactNotFound):
        delete_artifact(deployment.app, deployment.user(), artifact, folder)
    delete_artifact(deployment.app, user, artifact, folder)

    with pytest.raises(ArtifactNotFound):
        get_artifact(deployment.app, user, artifact, folder)
    with pytest.raises(ArtifactNotFound):
        delete_artifact(deployment.app, user, artifact, folder)
    assert list(folder.blobs()) == []
    [count] = deployment.rows("SELECT artifacts, bytes FROM artifact_usage")
    assert (count["artifacts"], count["bytes"]) == (0, 0)


def test_a_deleted_artifact_leaves_a_content_that_another_one_needs(
    deployment: Deployment, user: UserId, folder: FolderStore
) -> None:
    run = deployment.running(user)
    first = keep(deployment, run, "first", LARGE, folder)
    second = keep(deployment, run, "second", LARGE, folder)
    deployment.settle(run, Returned())

    delete_artifact(deployment.app, user, first, folder)

    assert get_artifact(deployment.app, user, second, folder)[1].value() == LARGE.decode()
