"""The watched folder: each file makes its tasks once, or is refused with a reason."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from overnight_server.domain.ids import UserId
from overnight_server.maintenance.file_drop import MAX_BYTES, take_files
from overnight_server.settings import Settings, load
from tests.support.api_user import NO_FILE
from tests.support.deployment import Deployment
from tests.support.workers import ROOT

TASK = "title: from a file\n"
GRAPH = """
title: release
tasks:
  - name: build
  - name: test
    after: build
"""
LIST = json.dumps([{"title": "one"}, {"title": "two", "priority": 2}])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "drop" / "ada").mkdir(parents=True)
    return tmp_path / "drop" / "ada"


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    return deployment.user(name="ada", max_pending=100)


@pytest.fixture
def settings(folder: Path, database_url: str) -> Settings:
    environ = {"OVERNIGHT_DATABASE_URL": database_url, "OVERNIGHT_DROP_FOLDER": str(folder.parent)}
    return load(environ, dotenv=NO_FILE)


@pytest.fixture
def sweep(deployment: Deployment, settings: Settings, user: UserId) -> Callable[[], int]:
    return lambda: take_files(deployment.dispatcher, settings)


def put(folder: Path, name: str, content: str | bytes, *, seconds_ago: float = 60) -> Path:
    """Write a file that has not changed for a while."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    changed_at = time.time() - seconds_ago
    os.utime(path, (changed_at, changed_at))
    return path


def names(folder: Path) -> list[str]:
    """Return all files below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def titles(deployment: Deployment) -> list[str]:
    return [row["title"] for row in deployment.rows("SELECT title FROM tasks ORDER BY id")]


def test_files_become_tasks_and_graphs(
    deployment: Deployment, folder: Path, user: UserId, sweep: Callable[[], int]
) -> None:
    put(folder, "a.yaml", TASK)
    put(folder, "b.yml", GRAPH)
    put(folder, "c.json", LIST)

    assert [sweep(), sweep()] == [3, 0]

    assert titles(deployment) == ["from a file", "build", "test", "one", "two"]
    assert names(folder) == ["accepted/a.yaml", "accepted/b.yml", "accepted/c.json"]
    rows = deployment.rows("SELECT DISTINCT user_id, source, created_by FROM tasks")
    assert [tuple(row.values()) for row in rows] == [(user, "file", "human:ada")]
    assert deployment.one("SELECT count(*) AS n FROM task_edges")["n"] == 1


def test_the_file_of_the_guide_becomes_tasks(
    deployment: Deployment, folder: Path, sweep: Callable[[], int]
) -> None:
    page = (ROOT / "docs/guides/file-drop.md").read_text()
    put(folder, "tonight.yaml", page.partition("```yaml\n")[2].partition("```")[0])

    assert sweep() == 1

    assert titles(deployment) == ["Summarize the reports of the day", "build", "test"]


def test_without_a_folder_nothing_is_done(deployment: Deployment, database_url: str) -> None:
    settings = load({"OVERNIGHT_DATABASE_URL": database_url}, dotenv=NO_FILE)
    assert take_files(deployment.dispatcher, settings) == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("title: a\npriorty: 1\n", "bad.yaml:2: priorty: "),
        ("- title: a\n- title: b\n  priority: 9\n", "bad.yaml:3: 1.priority: is too large"),
        ("title: [", "bad.yaml:"),
        ("", "holds no task"),
        (b"\xff\xfe", "is not UTF-8 text"),
        ("title: a\ndeadline_at: 02:00\n", "is not an instant"),
        ("title: a\ndepends_on: [task_1]\n", "depends_on"),
        ("title: a\nstart_at: 2020-01-01T00:00Z\ndeadline_at: 2020-01-02T00:00Z\n", "has passed"),
        (b"#" * (MAX_BYTES + 1), "bytes; at most"),
        (GRAPH + "edges: [{parent: test, child: build}]\n", "build"),
    ],
)
def test_a_file_with_a_fault_is_refused_whole_with_the_reason(
    deployment: Deployment,
    folder: Path,
    sweep: Callable[[], int],
    content: str | bytes,
    reason: str,
) -> None:
    put(folder, "bad.yaml", content)
    put(folder, "good.yaml", TASK)

    assert sweep() == 2

    assert titles(deployment) == ["from a file"]
    assert names(folder) == [
        "accepted/good.yaml",
        "refused/bad.yaml",
        "refused/bad.yaml.reason.txt",
    ]
    assert reason in (folder / "refused/bad.yaml.reason.txt").read_text()


def test_files_that_are_being_written_are_left_alone(
    deployment: Deployment, folder: Path, sweep: Callable[[], int]
) -> None:
    put(folder, "fresh.yaml", TASK, seconds_ago=0)
    put(folder, "upload.yaml.part", TASK)
    put(folder, ".hidden.yaml", TASK)
    slow = put(folder, "slow.yaml", TASK)

    with slow.open("a"):
        # It has not changed for a minute, and somebody still has it open.
        assert sweep() == 0
        assert titles(deployment) == []
    assert sweep() == 1
    assert "fresh.yaml" in names(folder)


def test_a_file_under_a_name_that_was_used_is_another_file(
    deployment: Deployment, folder: Path, sweep: Callable[[], int]
) -> None:
    for seconds_ago in (90, 60, 30):
        put(folder, "nightly.yaml", TASK, seconds_ago=seconds_ago)
        assert sweep() == 1

    assert len(titles(deployment)) == 3
    assert len(names(folder)) == 3


def test_a_full_queue_lets_files_wait_in_their_order(
    deployment: Deployment,
    folder: Path,
    user: UserId,
    sweep: Callable[[], int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="overnight")
    deployment.run("UPDATE users SET max_pending = 2")
    deployment.task(user, title="before")
    put(folder, "a.json", LIST)
    put(folder, "b.yaml", TASK)

    assert [sweep(), sweep()] == [0, 0]
    [line] = re.findall(r"queue=file_waits ([^\n]*)", caplog.text)
    assert "file=a.json user=ada" in line
    assert "the limit is 2" in line
    deployment.run("UPDATE users SET max_pending = 10")
    assert sweep() == 2
    assert titles(deployment) == ["before", "one", "two", "from a file"]


def test_a_file_that_can_never_fit_is_refused_and_holds_back_nothing(
    deployment: Deployment, folder: Path, user: UserId, sweep: Callable[[], int]
) -> None:
    deployment.run("UPDATE users SET max_pending = 2")
    put(folder, "a.json", json.dumps([{"title": str(number)} for number in range(3)]))
    put(folder, "b.yaml", TASK)

    assert sweep() == 2

    assert titles(deployment) == ["from a file"]
    reason = (folder / "refused/a.json.reason.txt").read_text()
    assert "has 3 tasks, but at most 2 may wait" in reason


def test_tasks_that_were_submitted_before_do_not_count(
    deployment: Deployment, folder: Path, user: UserId, sweep: Callable[[], int]
) -> None:
    tasks = [{"title": str(number), "idempotency_key": f"k{number}"} for number in range(3)]
    put(folder, "a.json", json.dumps(tasks[:2]))
    assert sweep() == 1
    deployment.run("UPDATE users SET max_pending = 2")
    put(folder, "b.json", json.dumps(tasks))

    assert sweep() == 0

    assert "b.json" in names(folder)


@pytest.mark.parametrize("letter", ["a", "é", "漢", "🦉"])
def test_long_names_are_cut_in_whole_letters(
    folder: Path, sweep: Callable[[], int], letter: str
) -> None:
    longest = letter * (250 // len(letter.encode()))
    for seconds_ago in (90, 60):
        put(folder, f"{longest}.json", LIST, seconds_ago=seconds_ago)
        assert sweep() == 1
    put(folder, f"{longest}.yaml", "title: [")
    assert sweep() == 1

    found = names(folder)
    assert len(found) == 4
    assert any(name.endswith(".yaml.reason.txt") for name in found)
    assert all(longest.startswith(Path(name).name.split(".")[0].split("-")[0]) for name in found)


def test_files_of_disabled_users_wait_and_those_of_nobody_are_refused(
    deployment: Deployment, folder: Path, sweep: Callable[[], int]
) -> None:
    deployment.run("UPDATE users SET disabled_at = clock()")
    put(folder, "a.yaml", TASK)
    (nobody := folder.parent / "bob").mkdir()
    put(nobody, "a.yaml", TASK)
    put(folder.parent, "no-user.yaml", TASK)

    assert sweep() == 1

    assert names(folder) == ["a.yaml"]
    assert "no user is called bob" in (nobody / "refused/a.yaml.reason.txt").read_text()
    deployment.run("UPDATE users SET disabled_at = NULL")
    assert sweep() == 1


def test_links_and_pipes_are_not_followed(
    deployment: Deployment, folder: Path, tmp_path: Path, sweep: Callable[[], int]
) -> None:
    secret = put(tmp_path, "secret.yaml", "title: of another\n")
    (folder / "link.yaml").symlink_to(secret)
    (folder / "hard.yaml").hardlink_to(secret)
    os.mkfifo(folder / "pipe.yaml")
    (folder / "directory.yaml").mkdir()

    assert sweep() == 4

    assert titles(deployment) == []
    told = [path.read_text() for path in (folder / "refused").glob("*.reason.txt")]
    assert len(told) == 4
    assert not [text for text in told if "of another" in text]
    assert secret.exists()

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (eve := folder.parent / "eve").mkdir()
    deployment.user(name="eve")
    (eve / "accepted").symlink_to(elsewhere)
    put(eve, "a.yaml", TASK)
    (folder.parent / "mallory").symlink_to(folder)
    assert sweep() == 0
    assert names(elsewhere) == []
    assert names(eve) == ["a.yaml"]


DYING_SWEEP = """
import sys
from pathlib import Path
from overnight_server import fault_points
from overnight_server.maintenance.file_drop import take_files
from overnight_server.settings import load
from overnight_server.store.db import DISPATCHER, Db

point, url, folder = sys.argv[1:]
fault_points.arm(f"{point}=kill")
settings = load(
    {"OVERNIGHT_DATABASE_URL": url, "OVERNIGHT_DROP_FOLDER": folder}, dotenv=Path("no-such-file")
)
take_files(Db.connect(url, role=DISPATCHER), settings)
"""


@pytest.mark.parametrize(
    ("point", "made"), [("intake.before_commit", 0), ("intake.after_commit", 3)]
)
def test_a_crash_between_submit_and_move_makes_no_second_task(
    deployment: Deployment, settings: Settings, sweep: Callable[[], int], point: str, made: int
) -> None:
    assert settings.drop_folder is not None
    folder, url = settings.drop_folder / "ada", str(settings.database_url)
    put(
        folder,
        "both.yaml",
        f"dags:\n  - {json.dumps({'title': 'g', 'tasks': [{'name': 'a'}]})}\n"
        "tasks:\n  - title: one\n  - title: two\n    deadline_at: 2999-01-01T00:00Z\n",
    )

    died = subprocess.run(
        [sys.executable, "-c", DYING_SWEEP, point, url, str(folder.parent)],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert died.returncode == -signal.SIGKILL, died.stderr
    assert names(folder) == ["both.yaml"]
    assert len(titles(deployment)) == made
    assert sweep() == 1
    assert len(titles(deployment)) == 3
    assert names(folder) == ["accepted/both.yaml"]
