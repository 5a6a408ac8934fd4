"""`overnight backup` and `restore`: everything comes back, and nothing from before is accepted."""

import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import Result

from overnight_server.control.pauses import PauseSubject, resume
from overnight_server.domain.claims import Run
from overnight_server.domain.results import Returned
from overnight_server.local.home import Home, LocalConnection
from overnight_server.local.home_lock import hold
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.maintenance.audit import audit_all
from overnight_server.store import migrate
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.restored_server import deployment_on, open_directory


@pytest.fixture
def home(empty_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home in which Postgres ran, with one open run and one artifact."""
    with open_directory() as directory:
        home = Home(directory / "first")
        home.prepare()
        monkeypatch.setenv("OVERNIGHT_HOME", str(home.path))
        yield home


@contextmanager
def served(home: Home) -> Iterator[str]:
    """Run the home's Postgres, and say so as a running stack does; yield its address."""
    with hold(home.lock), EmbeddedPostgres(home.path, fsync=False) as postgres:
        migrate.upgrade(postgres.url())
        home.publish(
            LocalConnection(
                api_url="",
                api_key_path="",
                flower_url="",
                flower_login="",
                database_url=postgres.url(),
                redis_url="",
                pid=os.getpid(),
                started_by="test",
                ready=True,
            )
        )
        yield postgres.url()
        home.unpublish()


def test_a_backup_of_a_running_home_brings_back_everything_but_its_claims(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home.path.parent / "night.backup"
    (home.artifacts / "ab").mkdir()
    (home.artifacts / "ab" / "abcd").write_bytes(b"content")
    with served(home) as url, deployment_on(url) as deployment:
        deployment.agent()
        user = deployment.user()
        done = deployment.running(user)
        deployment.settle(done, Returned("result"))
        open_run = deployment.running(user)
        waiting = deployment.task(user)

        saved = run("backup", str(file), "--json")
        again = run("backup", str(file))
        refused = run("restore", str(file))
        after = deployment.task(user)

    assert saved.exit_code == 0, saved.output
    assert json.loads(saved.stdout)["artifacts"] == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "exists" in again.output
    assert "running" in refused.output
    assert "has data" in run("restore", str(file)).output
    second = Home(home.path.parent / "second")
    monkeypatch.setenv("OVERNIGHT_HOME", str(second.path))

    restored = run("restore", str(file), "--json")

    assert restored.exit_code == 0, restored.output
    report = json.loads(restored.stdout)
    assert [one["title"] for one in report["runs"]] == ["a task"]
    assert (report["runs"][0]["epoch"], report["waiting"]) == (open_run.claim.epoch, 1)
    assert (second.artifacts / "ab" / "abcd").read_bytes() == b"content"
    with served(second) as url, deployment_on(url) as deployment:
        assert deployment.row(done.claim.task_id)["output"] == "result"
        assert deployment.rows("SELECT id FROM tasks WHERE id = :id", id=after) == []
        assert not deployment.settle(open_run, Returned("late"))
        check_that_numbers_moved_on(deployment, open_run, waiting)


def check_that_numbers_moved_on(deployment: Deployment, old: Run, waiting: object) -> None:
    """Nothing is claimed before the resume; then claims have new numbers, and the audit agrees."""
    deployment.agent()
    assert not deployment.claim().claims
    resume(deployment.app, PauseSubject(), actor="human:me")
    claims = {one.claim.task_id: one.claim.epoch for one in deployment.claim().claims}
    assert claims.keys() == {old.claim.task_id, waiting}
    assert min(claims.values()) > 1_000
    assert audit_all(deployment.dispatcher) == 0


def test_a_backup_takes_the_place_of_other_data_and_keeps_them(home: Home) -> None:
    file = home.path.parent / "night.backup"
    with served(home) as url, deployment_on(url) as deployment:
        first = deployment.task(deployment.user())
    assert run("backup", str(file)).exit_code == 0  # the stack does not run
    with served(home) as url, deployment_on(url) as deployment:
        second = deployment.task(deployment.user())

    replaced = run("restore", str(file), "--replace", "--json")

    assert replaced.exit_code == 0, replaced.output
    assert (Path(json.loads(replaced.stdout)["replaced"]) / "postgres" / "PG_VERSION").exists()
    with served(home) as url, deployment_on(url) as deployment:
        assert {row["id"] for row in deployment.rows("SELECT id FROM tasks")} == {first}
        assert second != first


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "There is no file"),
        ("text", "is no backup of Overnight"),
        ({"format": 2}, "a format that this version cannot read"),
        ({"schema": "of tomorrow"}, "with schema of tomorrow"),
    ],
)
def test_what_cannot_be_restored_is_refused_and_nothing_is_made(
    home: Home, content: object, problem: str
) -> None:
    file = home.path.parent / "night.backup"
    if isinstance(content, str):
        file.write_text(content)
    elif isinstance(content, dict):
        manifest = {"format": 1, "overnight": "9", "schema": "x", "postgres": 18, "made_at": ""}
        encoded = json.dumps(manifest | content).encode()
        with tarfile.open(file, "w") as archive:
            member = tarfile.TarInfo("manifest.json")
            member.size = len(encoded)
            archive.addfile(member, io.BytesIO(encoded))

    refused = run("restore", str(file))

    assert refused.exit_code == 1
    assert problem in refused.output
    assert not home.postgres.exists()


def test_a_file_that_cannot_be_written_is_refused_with_the_reason(home: Home) -> None:
    home.postgres.mkdir()
    (home.postgres / "PG_VERSION").write_text("18")
    (no_directory := home.path.parent / "file").touch()

    missing = run("backup", str(home.path / "missing" / "dir" / "x"))
    wrong = run("backup", str(no_directory / "x"))

    assert (missing.exit_code, wrong.exit_code) == (1, 1)
    assert f"cannot be written: No such file or directory: {home.path}/missing/dir" in told(missing)
    assert f"cannot be written: Not a directory: {no_directory}" in told(wrong)
    assert "Choose a directory that exists and that you may write to." in told(missing)


def told(result: Result) -> str:
    """Return what a command said, in one line."""
    return " ".join(result.output.split())


def test_a_restore_that_ends_between_two_moves_leaves_no_empty_home(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home.path.parent / "night.backup"
    with served(home) as url, deployment_on(url) as deployment:
        task = deployment.task(deployment.user())
    assert run("backup", str(file)).exit_code == 0
    move = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if target == home.postgres:
            raise KeyboardInterrupt
        return move(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", interrupted)
        assert run("restore", str(file), "--replace").exit_code != 0
    assert not home.postgres.exists()

    # The command passes these on to its processes; the test gets back what it had.
    monkeypatch.setenv("OVERNIGHT_HANDLERS", "")
    monkeypatch.setenv("OVERNIGHT_DEMO_HANDLERS", "true")
    refused = run("up")
    assert refused.exit_code == 1, refused.output
    said = told(refused)
    assert told(run("backup", str(home.path / "another"))).count("has no data yet") == 1
    [former] = home.path.glob("replaced-*")
    assert "a restore was interrupted" in said
    assert str(former) in said
    assert "overnight restore FILE --replace" in said
    assert not home.postgres.exists()

    again = run("restore", str(file), "--replace")

    assert again.exit_code == 0, again.output
    home.check_whole()
    with served(home) as url, deployment_on(url) as deployment:
        assert [row["id"] for row in deployment.rows("SELECT id FROM tasks")] == [task]


def test_a_home_without_data_has_no_backup(home: Home) -> None:
    refused = run("backup", str(home.path / "b"))

    assert refused.exit_code == 1
    assert "has no data yet" in refused.output
