"""A deployment on a Postgres of a test's own: to back it up, and to restore it elsewhere."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.privileges import Identity, unprivileged_user
from overnight_server.store.db import ADMIN, DISPATCHER, Db
from tests.support.deployment import Deployment


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that the user of an embedded Postgres may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


@contextmanager
def deployment_on(url: str) -> Iterator[Deployment]:
    """Open the connections of a deployment to a database; they are closed afterwards."""
    with ExitStack() as stack:

        def connect(role: str) -> Db:
            db = Db.connect(url, role=role, application_name="overnight-cli", pool_size=2)
            stack.callback(db.close)
            return db

        yield Deployment(connect("overnight_owner"), connect(DISPATCHER), connect(ADMIN))


def give_to_server(server: EmbeddedPostgres, path: Path) -> None:
    """Let the user that the server runs as own a directory with everything in it."""
    if server.cluster.identity is Identity.CURRENT_USER:
        return
    user = unprivileged_user()
    for name in (path, *path.rglob("*")):
        os.chown(name, user.pw_uid, user.pw_gid)


def copy_credentials(source: EmbeddedPostgres, target: Path) -> None:
    """Let another server have the passwords of this one, which are in the data too."""
    shutil.copyfile(source.cluster.credentials.path, target / "credentials.json")
