"""Where the processes of a local stack keep artifacts, and which repositories they may read."""

from pathlib import Path

import pytest

from overnight_server.local.home import Home
from overnight_server.local.local_stack import LocalStack
from overnight_server.settings import load
from tests.support.command import run

STORE, REPOSITORIES = "OVERNIGHT_ARTIFACT_STORE", "OVERNIGHT_ALLOWED_REPOSITORIES"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.chdir(tmp_path)
    home = Home(tmp_path / ".overnight")
    home.prepare()
    return home


def worker_environment(home: Home, **settings: str) -> dict[str, str]:
    return LocalStack.plan(load(settings), home).environment("worker")


def test_a_stack_of_ones_own_has_artifacts_in_its_home_and_repositories_around_it(
    home: Home, tmp_path: Path
) -> None:
    environment = worker_environment(home)

    assert environment[STORE] == str(home.artifacts)
    assert home.artifacts.stat().st_mode & 0o777 == 0o700
    assert environment[REPOSITORIES] == str(tmp_path)


def test_allowed_repositories_are_remembered_and_forgotten(home: Home, tmp_path: Path) -> None:
    home.remember_repositories(["/srv/site"])
    with_working_directory = worker_environment(home)
    with_setting = worker_environment(home, OVERNIGHT_ALLOWED_REPOSITORIES="/srv/a")
    home.remember_repositories([])

    assert with_working_directory[REPOSITORIES] == f"/srv/site,{tmp_path}"
    assert with_setting[REPOSITORIES] == "/srv/a,/srv/site"
    assert worker_environment(home)[REPOSITORIES] == str(tmp_path)


def test_a_shared_postgres_has_neither_unless_they_are_set(home: Home) -> None:
    url = "postgresql://overnight@127.0.0.1:1/overnight"

    environment = worker_environment(home, OVERNIGHT_DATABASE_URL=url)

    assert STORE not in environment
    assert REPOSITORIES not in environment


@pytest.mark.parametrize(("name", "message"), [("none", "is no directory"), ("a,b", "has a comma")])
def test_a_path_that_cannot_be_allowed_is_refused(home: Home, name: str, message: str) -> None:
    (home.path / "a,b").mkdir()

    refused = run("up", "--allow-repo", str(home.path / name))

    assert refused.exit_code == 2
    assert message in " ".join(refused.stderr.split())
