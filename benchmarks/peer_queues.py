"""The other queues: how a benchmark starts them and reads what they have done."""

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

from benchmarks.options import Options
from benchmarks.servers import ROOT, BenchmarkServers, ProgramFailed, clean_environment
from benchmarks.wait import wait_for_count, wait_until

PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
OURS_PYTHON = Path(sys.executable)
HOW_TO_GET_THEM = "`benchmarks/peers/install` (or `make bench`) installs the other queues"
SLOTS = 2
USERS = 100
TIMEOUT = 900


@dataclass(frozen=True)
class PeerQueue:
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


CELERY = PeerQueue("celery", "celery_peer", python=OURS_PYTHON)
PROCRASTINATE = PeerQueue(
    "procrastinate",
    "procrastinate_peer",
    unfinished="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
)
PROCRASTINATE_LOCKED = PeerQueue(
    "procrastinate+lock",
    "procrastinate_peer",
    options={"locked": True},
    unfinished=PROCRASTINATE.unfinished,
)
PGQUEUER = PeerQueue("pgqueuer", "pgqueuer_peer", unfinished="SELECT count(*) FROM public.pgqueuer")
DBOS = PeerQueue(
    "dbos",
    "dbos_peer",
    unfinished="SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
)
ALL = (CELERY, PROCRASTINATE, PROCRASTINATE_LOCKED, PGQUEUER, DBOS)


def installed_peers(options: Options, candidates: Sequence[PeerQueue] = ALL) -> list[PeerQueue]:
    """Return the chosen peers that are installed, and print which are missing."""
    wanted = [peer for peer in candidates if options.wants(peer.name)]
    missing = [peer.name for peer in wanted if not peer.is_there]
    if missing:
        print(f"  (without {', '.join(missing)}: {HOW_TO_GET_THEM})", flush=True)
    return [peer for peer in wanted if peer.is_there]


class PeerRunner:
    """One peer on the servers of the benchmark, with a new database and an empty Redis."""

    def __init__(self, servers: BenchmarkServers, peer: PeerQueue) -> None:
        self.servers = servers
        self.rival = peer
        self.database = peer.script
        self.url = servers.database(self.database)
        servers.flush_redis()
        self.marks = servers.marks()
        self.ask("install")

    def ask(self, action: str, **options: object) -> dict[str, Any]:
        """Run one command of the peer's script and return what it printed."""
        ran = subprocess.run(
            self._command(action, options),
            env=clean_environment() | self._environment(),
            cwd=self.servers.directory,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        if ran.returncode:
            raise ProgramFailed(f"{self.rival.name} {action}:\n{ran.stderr[-3000:]}")
        answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return answer

    @contextmanager
    def working(self) -> Iterator[None]:
        """Run the peer's worker for the length of a block."""
        command = self._command("work", {"slots": SLOTS})
        with self.servers.running(self.rival.script, command, self._environment()):
            yield

    def unfinished(self) -> int:
        """Count the jobs that have not ended; 0 for a peer that keeps no record of them."""
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
        """Fill the queue, then drain it; return the jobs per second from the first start."""
        self.ask("fill", jobs=jobs, users=USERS)
        self.servers.vacuum_and_checkpoint(self.database)
        with self.working():
            wait_until(lambda: self.marks.count() > 0, what=f"{self.rival.name} to start")
            with self.servers.watch(self.rival.name):
                wait_for_count(self.marks.count, jobs, what=f"runs of {self.rival.name}")
                wait_until(lambda: self.unfinished() == 0, what="every job to end")
                ended = time.monotonic()
        started = self.marks.read()
        if len(started) != jobs:
            raise ProgramFailed(f"{self.rival.name} ran {len(started)} of {jobs} jobs")
        return jobs / (ended - started[0][0])

    def _command(self, action: str, options: Mapping[str, object]) -> list[str]:
        given = json.dumps({**self.rival.options, **options})
        script = f"benchmarks.peers.{self.rival.script}"
        return [str(self.rival.python), "-m", script, action, given]

    def _environment(self) -> dict[str, str]:
        return {
            "PEER_DATABASE_URL": self.url,
            "PEER_REDIS_URL": self.servers.redis.url,
            **self.marks.environment,
        }
