"""Artifacts over HTTP and the command line: parts of a content, downloads, saved files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight_server.artifact_store.folder import FolderStore
from overnight_server.domain.ids import show_artifact, show_task
from overnight_server.domain.results import Returned
from overnight_server.outcome.artifacts import ArtifactCaps, NewArtifact, store_artifact
from tests.support.api_user import ApiUser, serve_api
from tests.support.command import run as run_command
from tests.support.deployment import Deployment

LARGE = bytes(range(256)) * 1000


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "blobs")


@pytest.fixture
def api_user(
    deployment: Deployment, database_url: str, tmp_path: Path, store: FolderStore
) -> Iterator[ApiUser]:
    address = str(tmp_path / "blobs")
    with serve_api(deployment, database_url, OVERNIGHT_ARTIFACT_STORE=address) as api:
        deployment.agent()
        yield api


def stored(api_user: ApiUser, store: FolderStore, content: bytes, name: str = "a.bin") -> str:
    """Let a run store an artifact and end; return the artifact's id."""
    deployment = api_user.deployment
    run = deployment.running(api_user.user)
    artifact = NewArtifact(name, "bytes", content)
    kept = store_artifact(deployment.dispatcher, run.claim, artifact, ArtifactCaps(), store)
    deployment.settle(run, Returned())
    return show_artifact(kept)


@pytest.mark.parametrize("content", [LARGE, LARGE[:1000]])
@pytest.mark.parametrize(
    ("header", "start", "end"),
    [("bytes=0-9", 0, 10), ("bytes=500-", 500, None), ("bytes=-7", -7, None), ("bytes=3-3", 3, 4)],
)
def test_a_part_of_a_content_is_sent(
    api_user: ApiUser,
    store: FolderStore,
    *,
    content: bytes,
    header: str,
    start: int,
    end: int | None,
) -> None:
    artifact_id = stored(api_user, store, content)

    response = api_user.request(
        "GET", f"/api/v1/artifacts/{artifact_id}/content", headers={"Range": header}
    )

    assert (response.status_code, response.content) == (206, content[start:end])
    first = len(content) + start if start < 0 else start
    last = first + len(response.content) - 1
    assert response.headers["Content-Range"] == f"bytes {first}-{last}/{len(content)}"


@pytest.mark.parametrize(
    "header", ["", "bytes=", "bytes=-", "bytes=5-3", "bytes=0-1,5-6", "lines=1-2"]
)
def test_a_range_that_is_none_sends_the_whole_content_as_a_download(
    api_user: ApiUser, store: FolderStore, header: str
) -> None:
    artifact_id = stored(api_user, store, LARGE)

    response = api_user.request(
        "GET", f"/api/v1/artifacts/{artifact_id}/content", headers={"Range": header}
    )

    assert (response.status_code, response.content) == (200, LARGE)
    assert response.headers["Content-Length"] == str(len(LARGE))
    assert response.headers["Accept-Ranges"] == "bytes"
    assert response.headers["Content-Disposition"] == f'attachment; filename="{artifact_id}"'
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_a_range_behind_the_end_is_refused_with_the_size(
    api_user: ApiUser, store: FolderStore
) -> None:
    artifact_id = stored(api_user, store, LARGE)

    response = api_user.request(
        "GET", f"/api/v1/artifacts/{artifact_id}/content", headers={"Range": "bytes=256000-"}
    )

    assert response.status_code == 416
    assert response.headers["Content-Range"] == "bytes */256000"


@pytest.mark.parametrize("content", [b"", b"small", LARGE])
def test_the_client_saves_a_content_in_parts(
    api_user: ApiUser,
    store: FolderStore,
    tmp_path: Path,
    content: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overnight.client.tasks.PART_BYTES", 100_000)
    artifact_id = stored(api_user, store, content)

    with (tmp_path / "saved").open("wb") as file:
        assert api_user.client().tasks.save_artifact(artifact_id, file) == len(content)

    assert (tmp_path / "saved").read_bytes() == content


def test_commands_list_save_and_open_artifacts(
    api_user: ApiUser,
    store: FolderStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api_user.take_commands(monkeypatch)
    artifact_id = stored(api_user, store, LARGE, name="../chart.png")
    [task] = api_user.deployment.rows("SELECT task_id FROM artifacts")

    listed = run_command("artifacts", "list", show_task(task["task_id"]))
    assert artifact_id in listed.stdout
    assert "../chart.png" in listed.stdout
    target = tmp_path / "chart.png"
    assert run_command("artifacts", "get", artifact_id, "-o", str(target)).exit_code == 0
    assert target.read_bytes() == LARGE
    again = run_command("artifacts", "get", artifact_id, "-o", str(target))
    assert again.exit_code == 2
    assert run_command("artifacts", "get", artifact_id).stdout_bytes == LARGE

    launched: list[str] = []
    monkeypatch.setattr("typer.launch", launched.append)
    opened = run_command("artifacts", "open", artifact_id)
    [shown] = launched
    assert opened.stdout.strip() == shown
    assert Path(shown).suffix == ".png"
    assert Path(shown).read_bytes() == LARGE
    Path(shown).unlink()
