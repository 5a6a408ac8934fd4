"""The queues we are measured against, as the one who measures sees them."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2

from benchmarks.arena import ROOT, Arena, DidNotRun, clean_environment
from benchmarks.asked import Asked
from benchmarks.waiting import wait_for_count, wait_until

PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
OURS_PYTHON = Path(sys.executable)
HOW_TO_GET_THEM = "`benchmarks/peers/install` (or `make bench`) installs the other queues"
SLOTS = 2
USERS = 100
TIMEOUT = 900


@dataclass(frozen=True)
class Rival:
    """One queue in one way of using it; `unfinished` counts the jobs that have not ended."""

    name: str
    script: str
    python: Path = PEERS_PYTHON
    options: Mapping[str, object] = field(default_factory=dict)
    unfinished: str | None = None

    @property
    def is_there(self) -> bool:
        """Whether it is installed."""
        return self.python.exists()


CELERY = Rival("celery", "celery_peer", python=OURS_PYTHON)
PROCRASTINATE = Rival(
    "procrastinate",
    "procrastinate_peer",
    unfinished="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
)
PROCRASTINATE_LOCKED = Rival(
    "procrastinate+lock",
    "procrastinate_peer",
    options={"locked": True},
    unfinished=PROCRASTINATE.unfinished,
)
PGQUEUER = Rival("pgqueuer", "pgqueuer_peer", unfinished="SELECT count(*) FROM public.pgqueuer")
DBOS = Rival(
    "dbos",
    "dbos_peer",
    unfinished="SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
)
ALL = (CELERY, PROCRASTINATE, PROCRASTINATE_LOCKED, PGQUEUER, DBOS)


def present(asked: Asked, candidates: Sequence[Rival] = ALL) -> list[Rival]:
    """Return the rivals that were asked for and are installed; say what is missing."""
    wanted = [rival for rival in candidates if asked.wants(rival.name)]
    missing = [rival.name for rival in wanted if not rival.is_there]
    if missing:
        print(f"  (without {', '.join(missing)}: {HOW_TO_GET_THEM})", flush=True)
    return [rival for rival in wanted if rival.is_there]


class Seat:
    """One rival in the arena, with a fresh database and an empty Redis."""

    def __init__(self, arena: Arena, rival: Rival) -> None:
        self.arena = arena
        self.rival = rival
        self.database = rival.script
        self.url = arena.database(self.database)
        arena.empty_redis()
        self.marks = arena.marks()
        self.ask("install")

    def ask(self, action: str, **options: object) -> dict[str, Any]:
        """Run one command of the rival's script; return its answer."""
        ran = subprocess.run(
            self._command(action, options),
            env=clean_environment() | self._environment(),
            cwd=self.arena.directory,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        if ran.returncode:
            raise DidNotRun(f"{self.rival.name} {action}:\n{ran.stderr[-3000:]}")
        answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return answer

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let the rival's worker run for the length of a block."""
        command = self._command("work", {"slots": SLOTS})
        with self.arena.running(self.rival.script, command, self._environment()):
            yield

    def unfinished(self) -> int:
        """Count the jobs that have not ended; a rival that keeps no record has ended them all."""
        if self.rival.unfinished is None:
            return 0
        connection = psycopg2.connect(self.url)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(self.rival.unfinished)
                [(left,)] = cursor.fetchall()
                return int(left)
        finally:
            connection.close()

    def drain(self, jobs: int) -> float:
        """Fill the queue, then work it off; return the jobs done a second, from the first start."""
        self.ask("fill", jobs=jobs, users=USERS)
        self.arena.settle_down(self.database)
        with self.working():
            wait_until(lambda: self.marks.count() > 0, what=f"{self.rival.name} to start")
            with self.arena.watch(self.rival.name):
                wait_for_count(self.marks.count, jobs, what=f"runs of {self.rival.name}")
                wait_until(lambda: self.unfinished() == 0, what="every job to end")
                ended = time.monotonic()
        started = self.marks.read()
        if len(started) != jobs:
            raise DidNotRun(f"{self.rival.name} ran {len(started)} of {jobs} jobs")
        return jobs / (ended - started[0][0])

    def _command(self, action: str, options: Mapping[str, object]) -> list[str]:
        given = json.dumps({**self.rival.options, **options})
        script = f"benchmarks.peers.{self.rival.script}"
        return [str(self.rival.python), "-m", script, action, given]

    def _environment(self) -> dict[str, str]:
        return {
            "PEER_DATABASE_URL": self.url,
            "PEER_REDIS_URL": self.arena.redis.url,
            **self.marks.environment,
        }
