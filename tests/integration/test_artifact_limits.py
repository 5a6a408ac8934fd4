"""The plan of a user limits artifacts: one, those of a task, and all that are stored."""

import io
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from overnight.errors import InvalidRequest, StorageLimitReached, StoreUnavailable
from overnight.models.enums import PlanTier
from overnight_server.artifact_store.folder import FolderStore
from overnight_server.control.users import Overrides, change_plan, override_limits, restore_template
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import ArtifactId, UserId
from overnight_server.domain.plans import ARTIFACT_LIMITS, BYTES_PER_MB
from overnight_server.domain.results import Interrupted, Raised, Returned
from overnight_server.insight.limits import user_limits
from overnight_server.insight.usage import usage
from overnight_server.maintenance.audit import audit_all
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.stale_artifacts import delete_stale_artifacts
from overnight_server.outcome.artifacts import (
    INLINE_BYTES,
    ArtifactCaps,
    NewArtifact,
    store_artifact,
)
from overnight_server.store.db import Db
from tests.support.deployment import Deployment
from tests.support.rivals import Rival, queue_up

MB = BYTES_PER_MB
HUGE = ArtifactCaps(10**10, 10**5, 10**12)


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent(slots=5)
    return deployment.user(PlanTier.PRO, artifact_storage_mb=1)


@pytest.fixture
def run(deployment: Deployment, user: UserId) -> Run:
    return deployment.running(user)


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "blobs")


def keep(
    deployment: Deployment,
    run: Run,
    size: int,
    name: str = "report",
    store: FolderStore | None = None,
) -> ArtifactId:
    artifact = NewArtifact(name, "bytes", b"x" * size)
    return store_artifact(deployment.dispatcher, run.claim, artifact, HUGE, store)


def counted(deployment: Deployment) -> list[tuple[int, int]]:
    rows = deployment.rows("SELECT artifacts, bytes FROM artifact_usage")
    return [(row["artifacts"], row["bytes"]) for row in rows]


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("has_store", [False, True])
def test_one_artifact_is_as_large_as_the_plan_allows(
    deployment: Deployment, folder: FolderStore, *, has_store: bool, as_file: bool
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user(PlanTier.FREE))
    most = ARTIFACT_LIMITS[PlanTier.FREE].one_mb * MB
    store = folder if has_store else None
    for size, is_kept in ((most, True), (most + 1, False)):
        content = bytes(size)
        artifact = NewArtifact("a", "bytes", io.BytesIO(content) if as_file else content)
        if is_kept:
            store_artifact(deployment.dispatcher, run.claim, artifact, HUGE, store)
            continue
        with pytest.raises(InvalidRequest, match=f"at most {most} for one artifact .* plan free"):
            store_artifact(deployment.dispatcher, run.claim, artifact, HUGE, store)

    assert counted(deployment) == [(1, most)]


def test_the_artifacts_of_a_task_are_as_large_as_the_plan_allows(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user(PlanTier.FREE))
    limits = ARTIFACT_LIMITS[PlanTier.FREE]
    monkeypatch.setitem(ARTIFACT_LIMITS, PlanTier.FREE, type(limits)(1, 2, 100))
    keep(deployment, run, MB, "first")
    keep(deployment, run, MB, "second")

    with pytest.raises(InvalidRequest, match=r"at most 2000000 together for one task .* plan free"):
        keep(deployment, run, 1, "third")


def test_the_settings_limit_artifacts_below_the_plan(deployment: Deployment, run: Run) -> None:
    artifact = NewArtifact("a", "bytes", bytes(11))

    with pytest.raises(InvalidRequest, match="at most 10 for one artifact"):
        store_artifact(deployment.dispatcher, run.claim, artifact, ArtifactCaps(max_bytes=10))


def test_a_user_stores_no_more_than_the_limit(deployment: Deployment, run: Run) -> None:
    keep(deployment, run, 600_000, "first")

    with pytest.raises(StorageLimitReached) as refused:
        keep(deployment, run, 400_001, "second")

    assert "take 600000 of 1000000 bytes" in refused.value.message
    assert "400001 more" in refused.value.message
    keep(deployment, run, 400_000, "second")
    assert counted(deployment) == [(2, MB)]


def test_artifacts_of_other_tasks_of_the_user_count_and_those_of_other_users_do_not(
    deployment: Deployment, user: UserId, run: Run
) -> None:
    keep(deployment, run, 600_000)
    deployment.settle(run, Returned())
    stranger = deployment.running(deployment.user(PlanTier.PRO, artifact_storage_mb=1))
    keep(deployment, stranger, MB)

    with pytest.raises(StorageLimitReached):
        keep(deployment, deployment.running(user), 600_000)


def test_the_same_name_again_counts_once_in_a_run_and_in_later_runs(
    deployment: Deployment, run: Run
) -> None:
    keep(deployment, run, 700_000)
    keep(deployment, run, 800_000)
    assert counted(deployment) == [(1, 800_000)]
    deployment.settle(run, Interrupted("shutdown"))
    [claimed] = deployment.claim().claims
    again = deployment.start(claimed)
    assert again is not None

    keep(deployment, again, 900_000)
    deployment.settle(again, Returned())

    assert counted(deployment) == [(1, 900_000)]


def test_an_artifact_that_replaces_a_visible_one_counts_besides_it_until_its_run_ends(
    deployment: Deployment, run: Run
) -> None:
    keep(deployment, run, 400_000)
    deployment.settle(run, Raised("error", "boom", retryable=True))
    deployment.run("UPDATE tasks SET retry_at = clock()")
    promote(deployment.dispatcher)
    [claimed] = deployment.claim().claims
    again = deployment.start(claimed)
    assert again is not None

    keep(deployment, again, 500_000)
    assert counted(deployment) == [(2, 900_000)]
    deployment.settle(again, Returned())

    assert counted(deployment) == [(1, 500_000)]


def test_two_runs_cannot_use_the_same_room(
    deployment: Deployment, user: UserId, run: Run, connect: Callable[..., Db]
) -> None:
    second = deployment.running(user)
    artifact = NewArtifact("a", "bytes", bytes(600_000))
    rivals = [
        Rival(connect, f"rival {number}", store_artifact, one.claim, artifact, HUGE)
        for number, one in enumerate((run, second))
    ]
    keep(deployment, run, 1, "zero")

    with connect("holder", role=None).engine.begin() as tx:
        tx.execute(
            text("SELECT 1 FROM artifact_usage WHERE user_id = :id FOR UPDATE"), {"id": user}
        )
        queue_up(connect, rivals)

    refused = 0
    for rival in rivals:
        try:
            rival.answer()
        except StorageLimitReached:
            refused += 1
    assert refused == 1
    assert counted(deployment) == [(2, 600_001)]


def test_what_a_lost_run_stored_counts_until_it_is_deleted(
    deployment: Deployment, user: UserId, run: Run
) -> None:
    keep(deployment, run, MB)
    deployment.settle(run, Interrupted("shutdown"))
    other = deployment.running(user)

    with pytest.raises(StorageLimitReached):
        keep(deployment, other, 1)
    deployment.move_clock(timedelta(hours=25))
    assert delete_stale_artifacts(deployment.dispatcher) == 1

    assert counted(deployment) == [(0, 0)]


def test_stale_artifacts_of_several_users_are_deleted_in_one_pass(deployment: Deployment) -> None:
    deployment.agent(slots=5)
    for _ in range(3):
        run = deployment.running(deployment.user())
        keep(deployment, run, 10)
        keep(deployment, run, 20, "other")
        deployment.settle(run, Interrupted("shutdown"))
    deployment.run("UPDATE staged_artifacts SET created_at = created_at - interval '25 hours'")

    assert delete_stale_artifacts(deployment.dispatcher) == 6
    assert counted(deployment) == [(0, 0)] * 3


def test_what_does_not_fit_is_not_left_in_the_store(
    deployment: Deployment, run: Run, folder: FolderStore
) -> None:
    keep(deployment, run, 900_000, "first", folder)

    with pytest.raises(StorageLimitReached):
        keep(deployment, run, 200_000, "second", folder)

    assert len(list(folder.blobs())) == 1


def test_a_content_that_is_replaced_before_its_run_ends_leaves_the_store(
    deployment: Deployment, run: Run, folder: FolderStore
) -> None:
    """Otherwise one run could fill the store with contents that count for nobody."""
    for size in (100_000, 200_000, 200_000, INLINE_BYTES, 300_000):
        keep(deployment, run, size, store=folder)

    [blob] = folder.blobs()
    assert b"".join(folder.open(blob.digest)) == b"x" * 300_000


def test_a_content_that_another_user_needs_stays_in_the_store(
    deployment: Deployment, run: Run, folder: FolderStore
) -> None:
    stranger = deployment.running(deployment.user())
    keep(deployment, stranger, 100_000, store=folder)
    keep(deployment, run, 100_000, store=folder)
    keep(deployment, run, 1, store=folder)

    assert len(list(folder.blobs())) == 1


def test_a_store_that_loses_contents_is_reported(
    deployment: Deployment, run: Run, folder: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderStore, "has", lambda *_: False)

    with pytest.raises(StoreUnavailable, match="does not have what was put there"):
        keep(deployment, run, 100_000, store=folder)


def test_limits_and_usage_show_what_is_stored(
    deployment: Deployment, user: UserId, run: Run
) -> None:
    keep(deployment, run, 250_000)

    limits = user_limits(deployment.app, user, artifact_caps=HUGE)
    assert (limits.artifact_max_mb, limits.artifact_task_mb) == (64, 1_000)
    assert (limits.artifact_storage_mb, limits.artifact_stored_mb) == (1, 0.25)
    stored = usage(deployment.app, user).artifacts
    assert (stored.number, stored.bytes, stored.limit_bytes) == (1, 250_000, MB)


def test_an_exception_to_the_storage_of_the_plan_ends_with_the_plan(
    deployment: Deployment, user: UserId
) -> None:
    db = deployment.app
    override_limits(db, user, Overrides(artifact_storage_mb=7))
    assert user_limits(db, user).artifact_storage_mb == 7
    change_plan(db, user, PlanTier.FREE)
    assert user_limits(db, user).artifact_storage_mb == ARTIFACT_LIMITS[PlanTier.FREE].stored_mb
    override_limits(db, user, Overrides(artifact_storage_mb=0))
    assert user_limits(db, user).artifact_storage_mb == 0
    restore_template(db, user)
    assert user_limits(db, user).artifact_storage_mb == ARTIFACT_LIMITS[PlanTier.FREE].stored_mb


def test_the_audit_repairs_the_counter(deployment: Deployment, run: Run) -> None:
    keep(deployment, run, 100)
    keep(deployment, run, 200, "other")
    deployment.run("DELETE FROM artifact_usage")

    assert audit_all(deployment.dispatcher) == 1
    assert counted(deployment) == [(2, 300)]
    assert audit_all(deployment.dispatcher) == 0
