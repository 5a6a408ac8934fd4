"""The API on a real socket, for what a test client cannot do, such as endless responses."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from overnight_server.api.main import create_app
from overnight_server.api.server import ApiServer
from overnight_server.control.keys import issue
from overnight_server.domain.ids import UserId
from overnight_server.local.ports import free_port
from overnight_server.settings import load
from tests.support.deployment import Deployment
from tests.support.wait import wait_until

DEAD_REDIS = "redis://127.0.0.1:1/0"


@dataclass
class LiveApi:
    """An API server in a thread, and a user with a key."""

    deployment: Deployment
    server: ApiServer
    port: int
    user: UserId
    key: str

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    def another_key(self, user: UserId) -> str:
        """Give another user a key."""
        return issue(self.deployment.app, user, name="test")


@contextmanager
def serve(deployment: Deployment, database_url: str, **environ: str) -> Iterator[LiveApi]:
    """Serve the API on a port of this machine until the context ends."""
    settings = load(
        {"OVERNIGHT_DATABASE_URL": database_url, "OVERNIGHT_REDIS_URL": DEAD_REDIS, **environ},
        dotenv=Path("no-such-file"),
    )
    port = free_port()
    api = create_app(settings)
    # The grace is longer than the wait below: a server whose requests do not end at its stop fails.
    server = ApiServer(api, settings, host="127.0.0.1", port=port, timeout_graceful_shutdown=60)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, what="the API to listen")
        user = deployment.user()
        yield LiveApi(deployment, server, port, user, issue(deployment.app, user, name="test"))
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"
