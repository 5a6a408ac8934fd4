"""The commands of operators: users, keys and dead letters by API, sweeps on the database."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from overnight_server.cli.terminal.failures import Code
from overnight_server.control.keys import authenticate
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Raised
from overnight_server.local.ports import free_port
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.sweeps import SWEEPS
from overnight_server.store import migrate
from overnight_server.store.db import Db
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.published_home import published_home
from tests.support.wait import wait_until

pytestmark = pytest.mark.usefixtures("admin_cli")


@pytest.fixture
def dead(deployment: Deployment) -> str:
    """The shown id of a task that failed for good."""
    deployment.agent()
    user = deployment.user(name="ada")
    failing = deployment.running(user, title="doomed\x1b[2J", max_attempts=1)
    deployment.settle(failing, Raised("error", "no luck"))
    return show_task(failing.claim.task_id)


def test_an_old_database_fails_the_check_until_it_is_migrated(database_url: str) -> None:
    migrate.empty(database_url)

    checked, migrated, again = run("migrate", "--check"), run("migrate"), run("migrate", "--check")

    assert checked.exit_code == Code.FAILED
    assert "overnight migrate" in checked.stderr
    assert migrated.exit_code == 0, migrated.stderr
    assert migrated.stdout == f"The database is at {migrate.head()}.\n"
    assert again.exit_code == 0


def test_the_error_for_an_unreachable_database_has_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OVERNIGHT_DATABASE_URL", "postgresql://me:hidden@127.0.0.1:9/none")

    for command in (["migrate"], ["sweep", "reap"], ["user", "add", "ada", "--database"]):
        refused = run(*command)

        assert refused.exit_code == Code.FAILED
        assert refused.stderr.startswith("Error: ")
        assert "hidden" not in refused.output
        assert len(refused.stderr.splitlines()) == 2


def test_the_error_for_an_empty_database_names_the_migration(deployment: Deployment) -> None:
    deployment.run("ALTER TABLE users RENAME TO elsewhere")

    refused = run("user", "admin", "ada", "--database")

    assert refused.exit_code == Code.FAILED
    assert "overnight migrate" in refused.stderr


def test_users_and_keys_are_created_listed_and_revoked(app_db: Db) -> None:
    added = run("user", "add", "ada", "--plan", "pro")
    issued = run("key", "issue", "ada", "--name", "laptop", "--expires-in", "30d")
    key = issued.stdout.strip()
    [kept] = json.loads(run("key", "list", "ada", "--json").stdout)

    assert added.exit_code == 0, added.stderr
    assert issued.exit_code == 0, issued.stderr
    caller = authenticate(app_db, key)
    assert caller is not None
    assert str(caller.user_id) == added.stdout.strip()
    assert kept["name"] == "laptop"
    assert kept["last4"] in key
    assert key not in run("key", "list").output

    assert run("key", "revoke", kept["id"]).exit_code == 0
    assert authenticate(app_db, key) is None
    assert "revoked" in run("key", "list").stdout
    assert run("key", "revoke", kept["id"]).exit_code == Code.FAILED


def test_a_long_list_of_users_is_shown_in_pages() -> None:
    for name in ("ada", "adam", "bob"):
        run("user", "add", name)

    first = run("user", "list", "--limit", "2")
    assert [line.split()[0] for line in first.stdout.splitlines()[1:]] == ["ada", "adam"]
    assert "pass --after 'adam'" in first.stderr

    rest = json.loads(run("user", "list", "--after", "adam", "--json").stdout)
    assert [user["name"] for user in rest][:1] == ["bob"]
    named = json.loads(run("user", "list", "--name", "ada", "--all", "--json").stdout)
    assert [user["name"] for user in named] == ["ada", "adam"]
    assert json.loads(run("user", "list", "--name", "a%", "--json").stdout) == []


def test_a_user_is_listed_with_the_limits_of_the_plan() -> None:
    run("user", "add", "ada", "--plan", "pro")

    [listed, _root] = json.loads(run("user", "list", "--json").stdout)

    assert (listed["name"], listed["plan"]) == ("ada", "pro")
    assert listed["max_concurrent_agents"] == 3
    assert "ada" in run("user", "list").stdout


def test_a_name_is_taken_only_once() -> None:
    run("user", "add", "ada")

    refused = run("user", "add", "ada")

    assert refused.exit_code == Code.USAGE
    assert "'ada' is the name of another user" in refused.stderr


def test_a_key_for_an_unknown_user_is_refused() -> None:
    refused = run("key", "issue", "nobody")

    assert refused.exit_code == Code.FAILED
    assert refused.stdout == ""
    assert "overnight user list" in refused.stderr


def test_dead_letters_are_listed_with_their_errors(dead: str) -> None:
    listed = run("dead", "list")

    assert listed.exit_code == 0, listed.stderr
    _, row = listed.stdout.splitlines()
    assert row.split()[0] == dead
    assert "ada" in row
    assert "no luck" in row
    assert "\x1b" not in row


def test_a_dead_letter_is_shown_whole_by_the_end_of_its_id(dead: str) -> None:
    shown = run("dead", "show", dead[-6:], "--json")

    letter = json.loads(shown.stdout)
    assert letter["task_id"] == dead
    assert [failure["error"] for failure in letter["failure_history"]] == ["no luck"]
    assert "no luck" in run("dead", "show", dead).stdout


def test_a_dead_letter_is_retried(dead: str, deployment: Deployment) -> None:
    retried = run("dead", "retry", dead, "--note", "fixed the cause", "--json")

    assert retried.exit_code == 0, retried.stderr
    assert json.loads(retried.stdout) == {"task_id": dead, "resolution": "retry"}
    [letter] = json.loads(run("dead", "list", "--all", "--json").stdout)
    assert letter["note"] == "fixed the cause"
    assert letter["resolved_by"].startswith("user:")
    assert deployment.one("SELECT state FROM tasks")["state"] == "ready"


def test_a_dead_letter_is_closed_only_once(dead: str, deployment: Deployment) -> None:
    first, second = run("dead", "cancel", dead), run("dead", "cancel", dead)

    assert first.exit_code == 0, first.stderr
    assert second.exit_code == Code.FAILED
    assert "is not dead-lettered" in second.stderr
    assert json.loads(run("dead", "list", "--json").stdout) == []
    assert deployment.one("SELECT state FROM tasks")["state"] == "cancelled"


@pytest.mark.parametrize("name", ["task_" + "0" * 26, "zz"])
def test_an_unknown_dead_letter_exits_1(dead: str, name: str) -> None:
    assert run("dead", "retry", name).exit_code == Code.FAILED


def test_a_sweep_runs_at_once_even_when_it_is_not_due() -> None:
    for _ in range(2):
        swept = run("sweep", "promote", "--json")

        assert swept.exit_code == 0, swept.stderr
        assert json.loads(swept.stdout) == {"sweep": "promote", "done": 0}


def test_the_error_for_an_unknown_sweep_lists_all_sweeps() -> None:
    refused = run("sweep", "floor")

    assert refused.exit_code == Code.USAGE
    assert ", ".join(SWEEPS) in " ".join(refused.stderr.split())


def test_a_drill_prints_what_it_wipes_and_needs_a_confirmation(
    redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERNIGHT_REDIS_URL", redis.url)

    declined = run("drill", "broker")

    first, second, third, *_ = declined.stderr.splitlines()
    assert declined.exit_code == Code.USAGE
    assert first.startswith("This wipes redis://")
    assert second.startswith("Messages in Redis are lost;")
    assert third == "Error: Confirmation needs a terminal; pass --yes."


def test_a_drill_without_a_stack_says_how_to_start_one() -> None:
    refused = run("drill", "broker")

    assert refused.exit_code == Code.FAILED
    assert "overnight up" in refused.stderr
    assert "OVERNIGHT_REDIS_URL" in refused.stderr


def test_a_sweep_that_needs_redis_says_so() -> None:
    refused = run("sweep", "dispatch")

    assert refused.exit_code == Code.FAILED
    assert "OVERNIGHT_REDIS_URL" in refused.stderr


def test_the_database_of_the_running_local_deployment_is_found(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OVERNIGHT_DATABASE_URL")
    # The test restores the environment that the command changes.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    servers = {"database_url": database_url, "redis_url": "redis://127.0.0.1:9"}

    with published_home(tmp_path / ".overnight", **servers):
        swept = run("sweep", "promote", "--json")

    assert swept.exit_code == 0, swept.stderr


@pytest.fixture
def api(database_url: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`overnight api` as its own process, and where it answers."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "overnight_server.cli.main", "api"],
        env={**os.environ, "OVERNIGHT_API_PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    yield process, f"http://127.0.0.1:{port}"
    process.kill()
    process.communicate()


def test_the_api_serves_until_it_gets_a_signal(
    api: tuple[subprocess.Popen[bytes], str],
) -> None:
    process, url = api
    wait_until(lambda: _status(f"{url}/ready") == 200, what="the API to be ready")

    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=20) == 0
    assert process.stderr is not None
    assert url.encode() in process.stderr.read()


def _status(url: str) -> int:
    try:
        with urlopen(url, timeout=2) as answer:
            return int(answer.status)
    except OSError:
        return 0


def test_a_user_is_disabled_and_enabled() -> None:
    run("user", "add", "ada")

    shut = run("user", "disable", "ada")
    again = run("user", "disable", "ada")
    listed = run("user", "list").stdout
    opened = run("user", "enable", "ada", "--json")

    assert shut.stdout == "ada is disabled.\n", shut.stderr
    assert again.stderr == "ada was already disabled.\n"
    assert "disabled" in listed.splitlines()[1]
    assert json.loads(opened.stdout) == {"name": "ada", "disabled": False, "changed": True}


def test_admin_rights_are_granted_and_revoked(app_db: Db) -> None:
    def is_admin(key: str) -> bool:
        caller = authenticate(app_db, key)
        assert caller is not None
        return caller.is_admin

    first = json.loads(run("user", "add", "grace", "--admin", "--database", "--json").stdout)
    run("user", "add", "ada")
    grace, ada = (
        run("key", "issue", name, "--database").stdout.strip() for name in ("grace", "ada")
    )
    assert first["is_admin"]
    assert (is_admin(grace), is_admin(ada)) == (True, False)

    appointed = run("user", "admin", "ada")
    again = run("user", "admin", "ada")
    assert appointed.stdout == "ada is now an admin.\n", appointed.stderr
    assert again.stderr == "ada was already an admin.\n"
    assert is_admin(ada)
    assert "open, admin" in run("user", "list").stdout.splitlines()[1]

    revoked = json.loads(run("user", "admin", "ada", "--revoke", "--json").stdout)
    assert revoked == {"name": "ada", "is_admin": False, "changed": True}
    assert not is_admin(ada)
    assert run("user", "admin", "nobody").exit_code == Code.FAILED
    acts = json.loads(run("audit", "list", "--user", "ada", "--json").stdout)
    assert acts[0]["detail"] == {"is_admin": [True, False]}
