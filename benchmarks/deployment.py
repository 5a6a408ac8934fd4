"""A deployment under measurement: its database, its users, its processes."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from benchmarks.servers import BenchmarkServers
from benchmarks.start_marks import Marks
from benchmarks.wait import wait_until
from overnight.models.enums import PlanTier
from overnight_server.control.users import create_user
from overnight_server.domain.ids import UserId
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.settings import Settings, load
from overnight_server.settings.field_types import env_of
from overnight_server.store.db import ADMIN, DISPATCHER, Db, Timeouts
from overnight_server.wakeups.wake import Waker

OWNER = "overnight_owner"
BATCH = 500
NO_LIMITS = Caps(
    max_pending_per_user=10_000_000, queue_max_size=100_000_000, max_tasks_per_dag=1_000_000
)
#: A bulk statement over a million rows takes longer than anything the deployment itself does.
LONG_TIMEOUTS = Timeouts(statement=600, lock=600, idle=600, silence=900)
#: What drains a queue and keeps it safe; the API and Flower have no part in it.
DRAINERS = ("dispatcher", "maintenance", "beat", "worker")


def noop(label: int = 0, kind: str = "noop") -> NewTask:
    """Return a task whose handler does nothing, or nearly nothing."""
    return NewTask(title="nothing", type=kind, payload={"label": label} if label else {})


@dataclass
class BenchmarkDeployment:
    """A database of Overnight, opened with each role, and the settings of its processes."""

    servers: BenchmarkServers
    database: str
    url: str
    environment: Mapping[str, str]
    settings: Settings
    owner: Db
    app: Db
    dispatcher: Db

    def users(self, count: int, plan: PlanTier = PlanTier.PRO) -> list[UserId]:
        """Create users with the limits of a plan."""
        return [create_user(self.app, name=f"user-{n}", plan=plan) for n in range(count)]

    def fill(self, users: Sequence[UserId], jobs: int, kind: str = "noop") -> None:
        """Submit tasks of a type, the same number for every user, as the API does."""
        each, rest = divmod(jobs, len(users))
        for servers, user in enumerate(users):
            wanted = each + (servers < rest)
            for start in range(0, wanted, BATCH):
                size = min(BATCH, wanted - start)
                submit_graph(self.app, user, [noop(kind=kind) for _ in range(size)], NO_LIMITS)

    def pause(self, *, paused: bool) -> None:
        """Pause or resume all lanes at once, so that all of a filled queue starts together."""
        self.run("UPDATE lanes SET paused = :paused", paused=paused)

    def wake(self) -> None:
        """Wake the dispatcher as a submit would."""
        waker = Waker(self.settings.redis_url or "", self.settings.redis_key_prefix)
        waker.wake()

    def open_tasks(self) -> int:
        """Count the tasks that have not ended."""
        return int(self.one("SELECT coalesce(sum(waiting + active), 0) AS n FROM lanes")["n"])

    def rows(self, sql: str, **values: object) -> list[Mapping[str, Any]]:
        """Read rows as the owner."""
        with self.owner.engine.begin() as tx:
            return [dict(row) for row in tx.execute(text(sql), values).mappings()]

    def one(self, sql: str, **values: object) -> Mapping[str, Any]:
        """Read exactly one row as the owner."""
        [row] = self.rows(sql, **values)
        return row

    def run(self, sql: str, **values: object) -> None:
        """Execute SQL as the owner."""
        with self.owner.engine.begin() as tx:
            tx.execute(text(sql), values)

    @contextmanager
    def processes(self, *names: str, marks: Marks | None = None) -> Iterator[dict[str, int]]:
        """Run processes of the Procfile (`worker-2` is another worker); yield their pids."""
        more = marks.environment if marks else {}
        workers = sum(name.startswith("worker") for name in names)
        with ExitStack() as stack:
            running = {
                name: stack.enter_context(
                    self.servers.running(
                        name,
                        [
                            sys.executable,
                            "-m",
                            "overnight_server.cli.main",
                            re.sub(r"-\d+$", "", name),
                        ],
                        {**self.environment, **more},
                    )
                )
                for name in names
            }
            wait_until(lambda: self._living() >= workers, what=f"{workers} workers to join")
            yield {name: process.pid for name, process in running.items()}

    def _living(self) -> int:
        sql = "SELECT count(*) AS n FROM agents WHERE status = 'active'"
        return int(self.one(sql)["n"])


def _command(name: str) -> str:
    """Return the command of a process: `worker-2` is another worker."""
    return re.sub(r"-\d+$", "", name)


def supported_settings(**settings: object) -> dict[str, str]:
    """Return the settings that this version knows, and print the names of the others."""
    for name in settings.keys() - Settings.model_fields.keys():
        print(f"  (there is no setting {env_of(name)} yet; measured without it)", flush=True)
    return {name: str(value) for name, value in settings.items() if name in Settings.model_fields}


@contextmanager
def fresh_deployment(
    servers: BenchmarkServers,
    changes: Mapping[str, str] | None = None,
    *,
    database: str = "ours",
) -> Iterator[BenchmarkDeployment]:
    """Create a deployment: default settings but for `changes`, empty tables, an empty Redis."""
    url = servers.our_database(database)
    servers.flush_redis()
    given = {
        "database_url": url,
        "redis_url": servers.redis.url,
        "handlers": "benchmarks.handlers",
        "log_level": "warn",
        "home": str(servers.directory / "home"),
        **(changes or {}),
    }
    environment = {env_of(name): value for name, value in given.items()}
    with ExitStack() as stack:
        owner, app, dispatcher = (
            Db.connect(url, role=role, application_name="overnight-bench", timeouts=LONG_TIMEOUTS)
            for role in (OWNER, ADMIN, DISPATCHER)
        )
        for db in (owner, app, dispatcher):
            stack.callback(db.close)
        yield BenchmarkDeployment(
            servers, database, url, environment, load(environment), owner, app, dispatcher
        )
