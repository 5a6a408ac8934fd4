"""Tasks that work on git repositories: their fields, and the lock of their repository."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overnight_server.domain.ids import parse_task
from tests.support.api_user import ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment

COMMAND: dict[str, Any] = {"runner": "command", "spec": {"argv": ["make"]}}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    deployment.agent(capabilities=["runner:command"])
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def test_tasks_of_one_repository_run_one_after_the_other(api_user: ApiUser) -> None:
    first = api_user.created(**COMMAND, repo="/srv/site")
    second = api_user.created(**COMMAND, repo="/srv/site/")
    other = api_user.created(**COMMAND, repo="/srv/other", ref="main")

    claimed = {each.claim.task_id for each in api_user.deployment.claim().claims}

    assert claimed == {parse_task(first["id"]), parse_task(other["id"])}
    assert second["locks"] == ["repo:/srv/site"]
    assert (other["execution"]["repo"], other["execution"]["ref"]) == ("/srv/other", "main")


def test_parallel_tasks_of_one_repository_run_at_the_same_time(api_user: ApiUser) -> None:
    tasks = [api_user.created(**COMMAND, repo="/srv/site", parallel=True) for _ in range(2)]

    claimed = {each.claim.task_id for each in api_user.deployment.claim().claims}

    assert claimed == {parse_task(task["id"]) for task in tasks}


def test_a_repository_is_locked_beside_the_project(api_user: ApiUser) -> None:
    task = api_user.created(**COMMAND, repo="/srv/site", project_id="site")

    assert task["locks"] == ["project:site", "repo:/srv/site"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**COMMAND, "repo": "relative/path"}, "repo"),
        ({**COMMAND, "repo": "ext::sh -c true"}, "repo"),
        ({**COMMAND, "repo": "/srv/two\nlines"}, "repo"),
        ({**COMMAND, "repo": "https://user:password@example.com/site"}, "repo"),
        ({**COMMAND, "repo": "/srv/site", "ref": "--upload-pack=x"}, "ref"),
        ({**COMMAND, "ref": "main"}, "ref"),
        ({**COMMAND, "parallel": True}, "parallel"),
        ({"repo": "/srv/site"}, "repo"),
    ],
)
def test_a_wrong_repository_is_refused(api_user: ApiUser, body: dict[str, Any], field: str) -> None:
    answer = api_user.create(**body)

    assert answer.status_code in {400, 422}, answer.text
    assert [each["field"] for each in answer.json()["errors"]] == [field]


def test_the_command_line_makes_a_path_absolute(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    api_user.take_commands(monkeypatch)
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")

    added = run("add", "Build", "--repo", ".", "--json", "--", "make")

    assert f'"repo": "{tmp_path}"' in added.stdout, added.stderr


def test_a_path_of_another_machine_is_left_as_it_is(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_user.take_commands(monkeypatch)

    added = run("add", "Build", "--repo", "/srv/our sites/shop", "--json", "--", "make")

    assert '"repo": "/srv/our sites/shop"' in added.stdout, added.stderr


@pytest.mark.parametrize("path", [".", "missing", "{here}"])
def test_a_directory_without_a_repository_is_refused_by_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
) -> None:
    monkeypatch.chdir(tmp_path)

    refused = run("add", "Build", "--repo", path.format(here=tmp_path), "--", "make")

    assert refused.exit_code == 2
    assert "is in no git repository" in " ".join(refused.stderr.split())


def test_a_task_without_a_branch_cannot_be_applied(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_user.take_commands(monkeypatch)
    task = api_user.created(**COMMAND, repo="/srv/site")

    refused = run("apply", task["id"])

    assert f"Task {task['id']} has no branch: it is ready." in refused.stderr
