"""A batch whose command is killed in the middle is completed by the same command."""

import os
import subprocess
import sys
from pathlib import Path

from sqlalchemy import text

from overnight_server.store.db import Db
from tests.support.deployment import Deployment
from tests.support.live_api import serve
from tests.support.rivals import Connect, wait_until_blocked

TITLES = ["one", "two", "three", "four", "five"]
LOCK = 4_711
# The insert of this task waits for a lock that the test holds.
STOP_AT = f"""
    CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock({LOCK});
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER tasks_wait_for_test AFTER INSERT ON tasks
        FOR EACH ROW WHEN (NEW.title = 'three') EXECUTE FUNCTION wait_for_test();
"""


def test_a_killed_batch_is_completed_without_duplicates(
    deployment: Deployment, database_url: str, connect: Connect, tmp_path: Path
) -> None:
    (tmp_path / "night.yaml").write_text("".join(f"- title: {title}\n" for title in TITLES))
    deployment.run(STOP_AT)
    holder: Db = connect("holder", role=None, pool_size=1)
    watcher: Db = connect("watcher", role=None, pool_size=1)
    with serve(deployment, database_url) as api:
        command = [sys.executable, "-m", "overnight_server.cli.main", "batch", "night.yaml"]
        environment = {
            **{name: value for name, value in os.environ.items() if "OVERNIGHT" not in name},
            "OVERNIGHT_URL": api.url,
            "OVERNIGHT_API_KEY": api.key,
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        with holder.engine.connect() as held:
            held.execute(text(f"SELECT pg_advisory_lock({LOCK})"))
            held.commit()
            killed = subprocess.Popen(command, cwd=tmp_path, env=environment)
            try:
                wait_until_blocked(watcher, "overnight-api")
            finally:
                killed.kill()
                killed.wait()
            held.execute(text(f"SELECT pg_advisory_unlock({LOCK})"))
            held.commit()
        second = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert second.returncode == 0, second.stderr
    assert "what it submitted is not submitted again" in second.stderr
    rows = deployment.rows("SELECT title FROM tasks ORDER BY id")
    assert [row["title"] for row in rows] == TITLES
    assert not list((tmp_path / "state" / "overnight" / "batches").iterdir())
