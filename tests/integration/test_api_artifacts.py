"""Artifacts over HTTP and the command line: parts of a content, downloads, saved files."""

import base64
import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight.errors import ArtifactChanged
from overnight_server.artifact_store.folder import FolderStore
from overnight_server.domain.ids import show_artifact, show_task
from overnight_server.domain.results import Returned
from overnight_server.outcome.artifacts import ArtifactCaps, NewArtifact, store_artifact
from tests.support.api_user import ApiUser, serve_api
from tests.support.command import run as run_command
from tests.support.deployment import Deployment
from tests.support.pull_agent import register_agent

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


@pytest.mark.parametrize("header", ["bytes=256000-", "bytes=256000-256001", "bytes=-0"])
def test_a_range_without_a_byte_is_refused_with_the_size(
    api_user: ApiUser, store: FolderStore, header: str
) -> None:
    artifact_id = stored(api_user, store, LARGE)

    response = api_user.request(
        "GET", f"/api/v1/artifacts/{artifact_id}/content", headers={"Range": header}
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


def test_a_user_deletes_an_artifact_over_http_and_by_a_command(
    api_user: ApiUser, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_user.take_commands(monkeypatch)
    first, second = stored(api_user, store, LARGE), stored(api_user, store, b"small")
    path = f"/api/v1/artifacts/{first}"
    other = api_user.new_user()
    assert other.request("DELETE", path).status_code == 404

    assert api_user.request("DELETE", path).json() == {"ok": True}
    assert run_command("artifacts", "delete", second).exit_code == 0

    assert api_user.request("DELETE", path).status_code == 404
    assert api_user.request("GET", f"{path}/content").status_code == 404
    assert list(store.blobs()) == []


def test_what_an_agent_stores_over_http_leaves_no_unneeded_content(
    api_user: ApiUser, store: FolderStore
) -> None:
    """The API sees only the rows of its caller, but keeps the contents of everybody."""
    stranger = api_user.new_user()
    stored(stranger, store, LARGE)
    api_user.created(type="echo")
    agent = register_agent(api_user)
    work = agent.begin()
    for content in (LARGE, LARGE[::-1], b"small"):
        body = {"name": "a", "kind": "bytes", "content": base64.b64encode(content).decode()}
        assert agent.report(work, "artifacts", **body).status_code == 201

    [blob] = store.blobs()
    assert b"".join(store.open(blob.digest)) == LARGE


def test_an_agent_learns_that_the_storage_of_its_owner_is_full(
    api_user: ApiUser, store: FolderStore
) -> None:
    api_user.deployment.run("UPDATE users SET artifact_storage_mb = 0")
    api_user.created(type="echo")
    agent = register_agent(api_user)

    refused = agent.report(agent.begin(), "artifacts", name="a", content="text")

    assert (refused.status_code, refused.json()["code"]) == (403, "STORAGE_LIMIT_REACHED")
    assert "0 of 0 bytes" in refused.json()["detail"]
    assert (refused.json()["stored_bytes"], refused.json()["limit_bytes"]) == (0, 0)


def test_a_store_that_cannot_be_used_is_no_internal_error(
    api_user: ApiUser, store: FolderStore, tmp_path: Path
) -> None:
    artifact_id = stored(api_user, store, LARGE)
    shutil.rmtree(tmp_path / "blobs")
    (tmp_path / "blobs").write_text("a file is no store")
    api_user.created(type="echo")
    agent = register_agent(api_user)
    content = base64.b64encode(LARGE).decode()

    upload = agent.report(agent.begin(), "artifacts", name="a", kind="bytes", content=content)
    download = api_user.request("GET", f"/api/v1/artifacts/{artifact_id}/content")

    for answer in (upload, download):
        assert (answer.status_code, answer.json()["code"]) == (503, "ARTIFACT_STORE_UNAVAILABLE")
        assert str(tmp_path) not in answer.text
    assert api_user.deployment.rows("SELECT * FROM staged_artifacts") == []


def test_a_task_whose_artifacts_are_too_large_for_an_agent_fails_before_they_are_read(
    api_user: ApiUser, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overnight_server.control.agent_work.MAX_ARTIFACT_BYTES", 300_000)
    references = [f"artifact:{stored(api_user, store, LARGE, name)}" for name in "ab"]
    fitting = api_user.created(type="echo", context_refs=references[:1])
    task = api_user.created(type="echo", context_refs=references)
    agent = register_agent(api_user, slots=2)

    assert agent.work()["task_id"] == fitting["id"]
    assert agent.claim().status_code == 204

    shown = api_user.request("GET", f"/api/v1/tasks/{task['id']}").json()
    assert (shown["status"], shown["failure_reason"]) == ("failed", "invalid_input")
    assert "its artifacts have 512000 bytes; legal: at most 300000" in shown["error"]


def test_a_task_whose_artifact_is_lost_fails_and_does_not_hold_up_others(
    api_user: ApiUser, store: FolderStore, tmp_path: Path
) -> None:
    artifact_id = stored(api_user, store, LARGE)
    task = api_user.created(type="echo", context_refs=[f"artifact:{artifact_id}"])
    other = api_user.created(type="echo")
    shutil.rmtree(tmp_path / "blobs")

    assert register_agent(api_user).work()["task_id"] == other["id"]

    shown = api_user.request("GET", f"/api/v1/tasks/{task['id']}").json()
    assert (shown["status"], shown["failure_reason"]) == ("failed", "invalid_input")
    assert "has no blob" in shown["error"]


def test_a_download_that_fails_leaves_no_file(
    api_user: ApiUser, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_user.take_commands(monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    artifact_id = stored(api_user, store, LARGE, name="report.txt")
    shutil.rmtree(tmp_path / "blobs")
    target = tmp_path / "report"

    for artifact in (artifact_id, artifact_id[:-1] + "0"):
        assert run_command("artifacts", "get", artifact, "-o", str(target)).exit_code == 1
        assert run_command("artifacts", "open", artifact).exit_code == 1
    nowhere = run_command("artifacts", "get", artifact_id, "-o", str(tmp_path / "no" / "where"))

    assert nowhere.exit_code == 2
    assert "cannot be written: No such file or directory" in nowhere.stderr
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "name", ["run.command", "x.exe", "x.desktop", "x.html", "noend", "a.pdf.sh"]
)
def test_a_program_is_saved_but_not_opened(
    api_user: ApiUser,
    store: FolderStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    api_user.take_commands(monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    launched: list[str] = []
    monkeypatch.setattr("typer.launch", launched.append)
    artifact_id = stored(api_user, store, b"echo", name=name)

    opened = run_command("artifacts", "open", artifact_id)

    assert launched == []
    file = Path(opened.stdout.strip())
    assert (file.suffix, file.read_bytes()) == ("", b"echo")
    assert "only saved" in opened.stderr


def test_a_terminal_shows_text_without_control_sequences_and_no_bytes(
    api_user: ApiUser, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_user.take_commands(monkeypatch)
    api_user.created(type="echo")
    agent = register_agent(api_user)
    work = agent.begin()
    evil = agent.report(work, "artifacts", name="a", content="\x1b]0;title\x07red\x1b[31m\n").json()
    raw = agent.report(work, "artifacts", name="b", kind="bytes", content="AAAA").json()
    agent.report(work, "complete", output={})
    monkeypatch.setattr("overnight_server.cli.terminal.output.is_terminal", lambda _: True)

    assert run_command("artifacts", "get", evil["id"]).stdout == "red\n"
    refused = run_command("artifacts", "get", raw["id"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "-o" in refused.stderr


def test_a_content_that_a_later_run_replaces_is_not_mixed_with_the_new_one(
    api_user: ApiUser, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overnight.client.tasks.PART_BYTES", 100_000)
    artifact_id = stored(api_user, store, LARGE)

    class ReplacedAfterFirstPart(io.BytesIO):
        def write(self, part: object) -> int:
            api_user.deployment.run("UPDATE artifacts SET epoch = epoch + 1")
            return super().write(part)  # type: ignore[arg-type]

    with pytest.raises(ArtifactChanged):
        api_user.client().tasks.save_artifact(artifact_id, ReplacedAfterFirstPart())


def test_parts_of_one_content_have_one_etag(api_user: ApiUser, store: FolderStore) -> None:
    artifact_id = stored(api_user, store, LARGE)
    path = f"/api/v1/artifacts/{artifact_id}/content"
    etag = api_user.request("GET", path).headers["ETag"]

    for given, status in ((etag, 206), ("*", 206), ('"other"', 412)):
        headers = {"Range": "bytes=5-6", "If-Match": given}
        assert api_user.request("GET", path, headers=headers).status_code == status
