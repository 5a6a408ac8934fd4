"""Both artifact stores: contents by digest, parts of them, and the rows that need them."""

import errno
import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from overnight.errors import InvalidRequest, StaleAttempt, StoreUnavailable
from overnight_server.artifact_store.delete_blobs import delete_if_unneeded
from overnight_server.artifact_store.folder import UNFINISHED, UNFINISHED_SECONDS, FolderStore
from overnight_server.artifact_store.store import (
    ArtifactStore,
    BlobNotFound,
    BlobTooLarge,
    StoreMissing,
    open_store,
)
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import UserId, show_artifact
from overnight_server.domain.results import Returned
from overnight_server.insight.artifacts import get_artifact
from overnight_server.maintenance import orphan_blobs
from overnight_server.maintenance.orphan_blobs import delete_orphan_blobs
from overnight_server.outcome import artifacts
from overnight_server.outcome.artifacts import (
    INLINE_BYTES,
    ArtifactCaps,
    NewArtifact,
    store_artifact,
)
from overnight_server.outcome.heartbeat import HeartbeatAnswer, heartbeat
from overnight_server.outcome.inputs import inputs_of
from overnight_server.store.db import Db
from tests.support.deployment import Deployment
from tests.support.rivals import Rival, queue_up
from tests.support.s3_server import BUCKET, s3_server

LARGE = b"0123456789" * 20_000
DIGEST = hashlib.sha256(LARGE).hexdigest()
NONE = "0" * 64
MAX = 10_000_000


@pytest.fixture(scope="module")
def s3_variables() -> Iterator[dict[str, str]]:
    with s3_server() as variables:
        yield variables


@pytest.fixture(params=["folder", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ArtifactStore:
    address = str(tmp_path / "blobs")
    if request.param == "s3":
        for name, value in request.getfixturevalue("s3_variables").items():
            monkeypatch.setenv(name, value)
        address = f"s3://{BUCKET}/{tmp_path.name}"
    opened = open_store(address)
    assert opened is not None
    return opened


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "blobs")


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def run(deployment: Deployment, user: UserId) -> Run:
    return deployment.running(user)


def digests(store: ArtifactStore, after: str = "") -> list[str]:
    return [blob.digest for blob in store.blobs(after)]


def test_a_content_is_kept_once_under_its_digest(store: ArtifactStore) -> None:
    for _ in range(2):
        blob = store.put(io.BytesIO(LARGE), max_bytes=MAX)

    assert (blob.digest, blob.size) == (DIGEST, len(LARGE))
    assert digests(store) == [DIGEST]
    assert store.has(DIGEST)
    assert b"".join(store.open(DIGEST)) == LARGE


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, None), (0, 10), (7, 100_000), (199_990, 200_000), (199_999, None), (5, 5)],
)
def test_a_part_of_a_content_is_read(store: ArtifactStore, start: int, end: int | None) -> None:
    store.put(io.BytesIO(LARGE), max_bytes=MAX)

    assert b"".join(store.open(DIGEST, start, end)) == LARGE[start:end]


@pytest.mark.parametrize(("start", "end"), [(0, None), (7, 100_000), (199_990, 300_000)])
def test_a_large_content_is_read_with_several_requests(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, start: int, end: int | None
) -> None:
    """The time of a request is limited, however slow the reader is."""
    monkeypatch.setattr("overnight_server.artifact_store.s3.READ_BYTES", 30_000)
    monkeypatch.setattr("overnight_server.artifact_store.folder.PART_BYTES", 30_000)
    store.put(io.BytesIO(LARGE), max_bytes=MAX)

    parts = list(store.open(DIGEST, start, end))

    assert b"".join(parts) == LARGE[start:end]
    assert all(len(part) <= 30_000 for part in parts)


def test_a_content_that_grows_too_large_leaves_nothing(store: ArtifactStore) -> None:
    with pytest.raises(BlobTooLarge):
        store.put(io.BytesIO(LARGE), max_bytes=len(LARGE) - 1)

    assert digests(store) == []


def test_a_deleted_blob_is_gone_and_can_be_deleted_again(store: ArtifactStore) -> None:
    store.put(io.BytesIO(LARGE), max_bytes=MAX)

    for _ in range(2):
        store.delete(DIGEST)

    assert not store.has(DIGEST)
    with pytest.raises(BlobNotFound, match="OVERNIGHT_ARTIFACT_STORE"):
        store.open(DIGEST)


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "ab/cd", "A" * 64, f"{NONE}\n"])
def test_only_a_digest_names_a_blob(store: ArtifactStore, digest: str) -> None:
    with pytest.raises(BlobNotFound):
        store.open(digest)
    with pytest.raises(BlobNotFound):
        store.delete(digest)


def test_blobs_are_listed_in_order_and_after_one(store: ArtifactStore) -> None:
    stored = sorted(
        store.put(io.BytesIO(f"content {number}".encode()), max_bytes=MAX).digest
        for number in range(40)
    )

    assert digests(store) == stored
    assert digests(store, after=stored[17]) == stored[18:]


def test_what_an_interrupted_put_left_is_deleted_after_two_days(
    folder: FolderStore, tmp_path: Path
) -> None:
    folder.put(io.BytesIO(LARGE), max_bytes=MAX)
    young, old = (tmp_path / "blobs" / UNFINISHED / name for name in ("young", "old"))
    for file in (young, old):
        file.write_bytes(b"half")
    long_ago = old.stat().st_mtime - UNFINISHED_SECONDS - 1
    os.utime(old, (long_ago, long_ago))

    assert digests(folder) == [DIGEST]
    assert (young.exists(), old.exists()) == (True, False)


def stage(deployment: Deployment, run: Run, store: ArtifactStore | None, content: Any) -> Any:
    artifact = NewArtifact("report", "bytes", content)
    return store_artifact(deployment.dispatcher, run.claim, artifact, ArtifactCaps(MAX), store)


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize(("size", "is_blob"), [(INLINE_BYTES, False), (INLINE_BYTES + 1, True)])
def test_a_small_content_stays_in_the_row_and_a_large_one_goes_to_the_store(
    deployment: Deployment,
    run: Run,
    store: ArtifactStore,
    size: int,
    *,
    is_blob: bool,
    as_file: bool,
) -> None:
    content = b"x" * size

    artifact = stage(deployment, run, store, io.BytesIO(content) if as_file else content)
    deployment.settle(run, Returned())

    assert bool(digests(store)) is is_blob
    shown, stored = get_artifact(deployment.app, run.user_id, artifact, store)
    assert (shown.size, stored.value()) == (size, content)
    reference = f"artifact:{show_artifact(artifact)}"
    reader = deployment.task(run.user_id, context_refs=[reference])
    assert inputs_of(deployment.dispatcher, run.user_id, reader, store) == {reference: content}


def test_without_a_store_large_contents_stay_in_the_row(deployment: Deployment, run: Run) -> None:
    artifact = stage(deployment, run, None, io.BytesIO(LARGE))
    deployment.settle(run, Returned())

    assert get_artifact(deployment.app, run.user_id, artifact)[1].value() == LARGE


def test_a_content_in_a_store_that_is_not_set_is_refused_with_the_setting(
    deployment: Deployment, run: Run, folder: FolderStore
) -> None:
    artifact = stage(deployment, run, folder, LARGE)
    deployment.settle(run, Returned())

    with pytest.raises(StoreMissing, match="OVERNIGHT_ARTIFACT_STORE"):
        get_artifact(deployment.app, run.user_id, artifact)[1].value()


def test_all_artifacts_of_a_task_together_have_a_limit(deployment: Deployment, run: Run) -> None:
    caps = ArtifactCaps(max_bytes=10, max_total_bytes=15)
    for name in ("first", "second", "first"):
        content = b"1234567" if name == "first" else b"12345678"
        artifact = NewArtifact(name, "bytes", content)
        store_artifact(deployment.dispatcher, run.claim, artifact, caps)

    with pytest.raises(InvalidRequest, match="at most 15 together"):
        store_artifact(deployment.dispatcher, run.claim, NewArtifact("third", "bytes", b"1"), caps)
    with pytest.raises(InvalidRequest, match="at most 10"):
        store_artifact(
            deployment.dispatcher,
            run.claim,
            NewArtifact("file", "bytes", io.BytesIO(b"12345678901")),
            caps,
        )


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every blob as one that was put more than two days ago."""
    monkeypatch.setattr(orphan_blobs, "KEPT_SECONDS", -3600)


def test_blobs_that_no_artifact_needs_are_deleted_after_two_days(
    deployment: Deployment, run: Run, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(deployment, run, store, LARGE)
    orphan = store.put(io.BytesIO(b"orphan"), max_bytes=MAX)

    assert delete_orphan_blobs(deployment.dispatcher, store) == 0
    monkeypatch.setattr(orphan_blobs, "KEPT_SECONDS", -3600)
    assert delete_orphan_blobs(deployment.dispatcher, store) == 1
    assert delete_orphan_blobs(deployment.dispatcher, store) == 0

    assert (store.has(DIGEST), store.has(orphan.digest)) == (True, False)


def test_many_blobs_are_checked_in_several_passes(
    deployment: Deployment, folder: FolderStore, no_grace: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(25):
        folder.put(io.BytesIO(f"{number}".encode()), max_bytes=MAX)
    monkeypatch.setattr(orphan_blobs, "BATCH", 10)
    monkeypatch.setattr("overnight_server.store.pass_limit.PASS_SECONDS", 0.0)

    deleted = [delete_orphan_blobs(deployment.dispatcher, folder) for _ in range(4)]

    assert deleted == [10, 10, 5, 0]


def test_a_blob_that_was_just_deleted_is_put_again_before_its_row_is_stored(
    deployment: Deployment,
    run: Run,
    folder: FolderStore,
    connect: Callable[..., Db],
    no_grace: None,
) -> None:
    """The sweep holds the blob when the run wants to store its row."""
    folder.put(io.BytesIO(LARGE), max_bytes=MAX)
    artifact = NewArtifact("report", "bytes", LARGE)
    late = Rival(connect, "late", store_artifact, run.claim, artifact, ArtifactCaps(), folder)

    with connect("sweep").engine.begin() as tx:
        assert delete_if_unneeded(folder, DIGEST, tx)
        queue_up(connect, [late])
        folder.delete(DIGEST)

    late.answer()
    assert folder.has(DIGEST)


def test_a_row_that_is_being_stored_keeps_its_blob(
    deployment: Deployment,
    run: Run,
    folder: FolderStore,
    connect: Callable[..., Db],
    no_grace: None,
) -> None:
    artifact = NewArtifact("report", "bytes", LARGE)
    kept = artifacts._keep(artifact, ArtifactCaps(), folder)
    sweep = Rival(connect, "sweep", delete_orphan_blobs, folder)

    with connect("storing").engine.begin() as tx:
        artifacts._stage(
            tx, claim=run.claim, artifact=artifact, kept=kept, caps=ArtifactCaps(), store=folder
        )
        queue_up(connect, [sweep])

    assert sweep.answer() == 0
    assert folder.has(DIGEST)


class SlowStore(FolderStore):
    """A store that answers only when it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.was_asked, self.may_answer = threading.Event(), threading.Event()

    def has(self, digest: str) -> bool:
        self.was_asked.set()
        assert self.may_answer.wait(60)
        return super().has(digest)


def test_a_slow_store_delays_neither_heartbeats_nor_the_end_of_the_run(
    deployment: Deployment, run: Run, tmp_path: Path, connect: Callable[..., Db]
) -> None:
    slow = SlowStore(tmp_path / "blobs")
    artifact = NewArtifact("report", "bytes", LARGE)
    late = Rival(connect, "late", store_artifact, run.claim, artifact, ArtifactCaps(), slow)
    late.start()
    assert slow.was_asked.wait(60)

    answer = heartbeat(deployment.dispatcher, run.claim, lease=timedelta(seconds=30))
    assert answer is HeartbeatAnswer.CONTINUE
    assert deployment.settle(run, Returned())
    slow.may_answer.set()

    with pytest.raises(StaleAttempt):
        late.answer()
    assert digests(slow) == []
    assert not deployment.rows("SELECT * FROM staged_artifacts")


def test_a_full_store_is_reported_without_its_path(
    deployment: Deployment, run: Run, folder: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/secret/place")

    monkeypatch.setattr("overnight_server.artifact_store.folder.os.fsync", no_room)

    with pytest.raises(StoreUnavailable, match="No space left on device") as refused:
        stage(deployment, run, folder, LARGE)

    assert "secret" not in refused.value.message
    assert digests(folder) == []
    assert not list((folder._root / UNFINISHED).iterdir())


def test_a_bucket_that_cannot_be_reached_is_reported(
    deployment: Deployment, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    away = open_store("s3://nowhere/prefix")
    assert away is not None

    for use in (
        lambda: stage(deployment, run, away, LARGE),
        lambda: away.has(DIGEST),
        lambda: away.open(DIGEST),
        lambda: away.delete(DIGEST),
        lambda: list(away.blobs()),
    ):
        with pytest.raises(StoreUnavailable, match="it does not answer"):
            use()


def test_a_bucket_that_does_not_exist_is_reported(
    s3_variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_variables.items():
        monkeypatch.setenv(name, value)
    missing = open_store("s3://no-such-bucket/prefix")
    assert missing is not None

    with pytest.raises(StoreUnavailable):
        missing.put(io.BytesIO(LARGE), max_bytes=MAX)


def test_a_run_that_was_killed_between_put_and_row_leaves_an_orphan_for_the_sweep(
    deployment: Deployment, run: Run, store: ArtifactStore, no_grace: None
) -> None:
    artifacts._keep(NewArtifact("report", "bytes", LARGE), ArtifactCaps(), store)
    assert digests(store) == [DIGEST]

    assert delete_orphan_blobs(deployment.dispatcher, store) == 1
    assert digests(store) == []
