"""Fixtures that several modules of integration tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight_server.control.keys import issue
from tests.support.api_user import ApiUser, serve_api
from tests.support.browser import Browser, serve_dashboard
from tests.support.deployment import Deployment
from tests.support.night import Night


@pytest.fixture
def browser(night: Night, night_url: str) -> Iterator[Browser]:
    """A browser without scripts at the night's dashboard, signed in as its user."""
    with serve_dashboard(night_url) as opened:
        opened.sign_in(issue(night.deployment.app, night.user, name="laptop"))
        yield opened


@pytest.fixture
def empty_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, and an environment without settings and unfinished batches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def database_environment(
    empty_environment: None, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that names the test's database and no API."""
    monkeypatch.setenv("OVERNIGHT_DATABASE_URL", database_url)


@pytest.fixture
def admin_api_settings() -> dict[str, str]:
    """Settings of the API that `admin_cli` serves; modules may override this fixture."""
    return {}


@pytest.fixture
def admin_cli(
    database_environment: None,
    deployment: Deployment,
    database_url: str,
    admin_api_settings: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ApiUser]:
    """An environment whose commands call an API with the key of an admin named `root`."""
    with serve_api(deployment, database_url, **admin_api_settings) as admin:
        deployment.run(
            "UPDATE users SET is_admin = true, name = 'root' WHERE id = :id", id=admin.user
        )
        admin.take_commands(monkeypatch)
        yield admin
