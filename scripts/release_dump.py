"""Write `tests/migrations/releases/VERSION.sql`: the data of a database of this release.

Its first line names the schema. Every later version must be able to migrate such a database. The
file is written again as long as the schema of the release changes, and never after the release is
cut: the changelog then has its date.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

from overnight_server.local.postgres import DATABASE, EmbeddedPostgres
from overnight_server.store import migrate
from overnight_server.store.schema_fingerprint import schema_fingerprint
from tests.support.deployment import Deployment
from tests.support.live_api import serve
from tests.support.night import connected, play_night
from tests.support.seeded_data import seed
from tests.support.servers import postgres_server

ROOT = Path(__file__).parents[1]
RELEASES = ROOT / "tests" / "migrations" / "releases"
CHANGELOG = ROOT / "docs" / "changelog.md"
# What only psql understands, settings of the session, and comments.
NOISE = re.compile(r"^(\\(un)?restrict |--|SET |SELECT pg_catalog.set_config).*\n", re.MULTILINE)
# What the migrations fill by themselves.
WITHOUT = ("alembic_version", "expected_rights")
CLOCKS = """
    SELECT pg_get_functiondef(oid) AS text FROM pg_proc WHERE proname IN ('clock', 'clock_now')
"""


def main() -> None:
    """Play a night in a new database, and dump it."""
    release = version("overnight")
    if re.search(
        rf"^## {re.escape(release)}\b", CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE
    ):
        raise SystemExit(f"{release} is released: its database does not change any more")
    with postgres_server() as server:
        migrate.upgrade(server.url())
        server.cluster.prepare_logins()
        with connected(server.url()) as deployment, clock_of_yesterday(deployment):
            fill(deployment, server.url())
        text = f"-- schema {schema_fingerprint()} at {migrate.head()}\n\n{dump(server)}"
    RELEASES.mkdir(exist_ok=True)
    target = RELEASES / f"{release}.sql"
    target.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{target.relative_to(ROOT)}: {len(text) // 1000} kB\n")


def fill(deployment: Deployment, url: str) -> None:
    """Make at least one object of every kind: a night of one user, and what the API can make."""
    play_night(deployment, deployment.user(name="Ada", is_admin=True, night_budget_usd=12))
    with serve(deployment, url) as served:
        seed(served, is_admin=True)


@contextmanager
def clock_of_yesterday(deployment: Deployment) -> Iterator[None]:
    """Let the night be over when the dump is made; the clock of the schema comes back."""
    clocks = [row["text"] for row in deployment.rows(CLOCKS)]
    deployment.move_clock(timedelta(days=-1))
    yield
    for clock in clocks:
        deployment.run(clock.replace(":", "\\:"))
    deployment.run("DROP TABLE moved_clock")


def dump(server: EmbeddedPostgres) -> str:
    """Return the rows of all tables, and the numbers that sequences have reached."""
    program = server.cluster.binaries.postgres.with_name("pg_dump")
    environment = os.environ | {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(server.cluster.port),
        "PGUSER": "postgres",
        "PGPASSWORD": server.superuser_url.partition("postgres:")[2].partition("@")[0],
    }
    done = subprocess.run(
        [
            *(program, "--data-only", "--load-via-partition-root", f"--dbname={DATABASE}"),
            *(f"--exclude-table-data={table}" for table in WITHOUT),
        ],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return re.sub(r"\n{3,}", "\n\n", NOISE.sub("", done.stdout)).strip() + "\n"


if __name__ == "__main__":
    main()
