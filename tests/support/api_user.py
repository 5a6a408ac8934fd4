"""The API on a test's own database, and users who call it with their keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx2 import Response

from overnight import Client
from overnight_server.api.main import create_app
from overnight_server.control.keys import issue
from overnight_server.domain.ids import UserId, parse_task
from overnight_server.settings import load
from tests.support import logins
from tests.support.deployment import Deployment

TASKS = "/api/v1/tasks"
NO_FILE = Path("no-such-file")
# Nothing listens on this port, so every wake-up is lost.
DEAD_REDIS = "redis://127.0.0.1:1/0"


@dataclass
class ApiUser:
    """The API and one user with a key."""

    http: TestClient
    deployment: Deployment
    user: UserId
    key: str
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Send the user's key with every request."""
        self.headers = {"Authorization": f"Bearer {self.key}"}

    def new_user(self, scopes: tuple[str, ...] = ("*",), **columns: object) -> "ApiUser":
        """Return a new user of the same API."""
        return _api_user(self.http, self.deployment, scopes, **columns)

    def request(self, method: str, path: str, **options: Any) -> Response:
        """Send one request with the user's key."""
        headers = {**self.headers, **options.pop("headers", {})}
        return self.http.request(method, path, headers=headers, **options)

    def create(self, **body: Any) -> Response:
        """Send a request that creates a task."""
        return self.request("POST", TASKS, json={"title": "a task", **body})

    def created(self, **body: Any) -> dict[str, Any]:
        """Create a task and return the response body."""
        response = self.create(**body)
        assert response.status_code == 201, response.text
        task: dict[str, Any] = response.json()
        return task

    def openapi(self) -> dict[str, Any]:
        """Return the whole OpenAPI document, with the routes for admins."""
        document: dict[str, Any] = cast("FastAPI", self.http.app).openapi()
        return document

    def row_id(self, task_id: str) -> UUID:
        """Return the database id of a task from its id in the API."""
        return parse_task(task_id)

    def client(self, **options: Any) -> Client:
        """Return a client of this app."""
        url, transport = str(self.http.base_url), self.http._transport
        return Client(url, self.key, transport=transport, retries=0, **options)

    def take_commands(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        """Make CLI commands of this process call this app with this user's key."""
        monkeypatch.setenv("OVERNIGHT_URL", str(self.http.base_url))
        monkeypatch.setenv("OVERNIGHT_API_KEY", self.key)
        monkeypatch.setattr("overnight.Client", lambda *_, **__: self.client(**options))


@contextmanager
def serve_api(deployment: Deployment, database_url: str, **environ: str) -> Iterator[ApiUser]:
    """Serve the API on the test's database; further settings by their environment names."""
    settings = load(
        {
            "OVERNIGHT_DATABASE_URL": logins.for_api(database_url),
            "OVERNIGHT_REDIS_URL": DEAD_REDIS,
            **environ,
        },
        dotenv=NO_FILE,
    )
    with TestClient(create_app(settings), raise_server_exceptions=False) as http:
        yield _api_user(http, deployment, ("*",))


def _api_user(
    http: TestClient, deployment: Deployment, scopes: tuple[str, ...], **columns: object
) -> ApiUser:
    user = deployment.user(**columns)  # type: ignore[arg-type]
    return ApiUser(http, deployment, user, issue(deployment.app, user, name="test", scopes=scopes))
