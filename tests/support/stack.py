"""A whole stack of real processes with short intervals; a test may end any of them."""

import re
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from overnight import Client
from overnight.models.enums import PlanTier
from overnight_server.control.keys import issue
from overnight_server.control.users import create_user
from overnight_server.domain.ids import UserId
from overnight_server.local.guarded_program import GuardedProgram, Program
from overnight_server.local.ports import free_port
from overnight_server.settings import Settings
from tests.support import logins
from tests.support.deployment import Deployment
from tests.support.wait import wait_until
from tests.support.workers import SOURCES, environment, worker_settings

CLOCKS: dict[str, object] = {
    "lease_seconds": 3,
    "heartbeat_interval": 0.5,
    "claim_ttl": 3,
    "worker_liveness": 2,
    "lease_check_interval": 0.5,
    "timeout_check_interval": 1,
    "promote_interval": 0.5,
    "trigger_interval": 0.5,
    "bulk_interval": 0.5,
    "dispatch_tick_interval": 2,
    "poll_interval": 1,
    "cancel_grace": 1,
    "shutdown_grace": 1,
    "concurrency": 2,
    "retry_initial_delay_sec": 0.2,
}
SERVICES = ("api", "dispatcher", "maintenance", "beat", "worker")


@dataclass
class Stack:
    """Processes by name, and clients of users."""

    deployment: Deployment
    settings: Settings
    logs: Path
    processes: dict[str, GuardedProgram] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)

    def start(self, *names: str) -> Self:
        """Start processes; `worker-2` is another `worker`."""
        for name in names:
            command = re.sub(r"-\d+$", "", name)
            with (self.logs / f"{name}.log").open("ab") as output:
                self.processes[name] = GuardedProgram(
                    Program(
                        [sys.executable, "-m", "overnight_server.cli.main", command],
                        env={
                            **environment(self.settings),
                            "OVERNIGHT_DATABASE_URL": self._login(command),
                            "PYTHONPATH": SOURCES,
                        },
                        cwd=self.logs,
                    ),
                    output=output,
                )
        return self

    def _login(self, command: str) -> str:
        url = str(self.settings.database_url)
        return logins.for_api(url) if command == "api" else logins.for_service(url)

    def ready(self) -> Self:
        """Wait until everything that was started can do its work."""
        if "api" in self.processes:
            wait_until(self._api_answers, what="the API to answer", timeout=60)
        workers = sum(name.startswith("worker") for name in self.processes)
        wait_until(lambda: self._alive() >= workers, what=f"{workers} workers to join", timeout=60)
        return self

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process; SIGKILL takes its children along."""
        self.processes[name].send_signal(number)

    def ended(self, name: str, within: float = 20) -> int:
        """Wait for a process to end; return its exit code."""
        process = self.processes[name]
        code = process.wait(within)
        assert code is not None, f"{name} still runs:\n{self.log_text(name)[-2000:]}"
        process.close()
        del self.processes[name]
        return code

    def log_text(self, name: str) -> str:
        """Return the log of a process."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def user(
        self, name: str = "ada", plan: PlanTier = PlanTier.ENTERPRISE
    ) -> tuple[UserId, Client]:
        """Make a user with a key and a client, and with room for a test's many tasks."""
        user_id = create_user(self.deployment.app, name=name, plan=plan)
        self.deployment.run("UPDATE users SET max_pending = 100000 WHERE id = :id", id=user_id)
        key = issue(self.deployment.app, user_id, name="test")
        client = Client(f"http://127.0.0.1:{self.settings.api_port}", key)
        self.clients.append(client)
        return user_id, client

    def drained(self, timeout: float = 60) -> None:
        """Wait until every task has ended."""
        wait_until(
            lambda: (
                self.deployment.one("SELECT coalesce(sum(waiting + active), 0) AS n FROM lanes")[
                    "n"
                ]
                == 0
            ),
            timeout=timeout,
            what="every task to end",
            pause=0.2,
        )

    def stop(self) -> None:
        """End everything that still runs, as if it had crashed."""
        for client in self.clients:
            client.close()
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGKILL)
        for process in self.processes.values():
            process.stop()
        self.processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            for name in sorted(self.processes):
                print(f"--- {name}\n{self.log_text(name)[-3000:]}")  # noqa: T201 - for the report
        self.stop()

    def _api_answers(self) -> bool:
        url = f"http://127.0.0.1:{self.settings.api_port}/ready"
        try:
            with urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def _open(self) -> int:
        sql = "SELECT coalesce(sum(waiting + active), 0) AS n FROM lanes"
        return int(self.deployment.one(sql)["n"])

    def _alive(self) -> int:
        return int(
            self.deployment.one(
                "SELECT count(*) AS n FROM agents WHERE status = 'active'"
                " AND last_heartbeat_at > clock() - interval '2 seconds'"
            )["n"]
        )


def stack(
    deployment: Deployment, database_url: str, redis_url: str, logs: Path, **changes: object
) -> Stack:
    """Prepare a stack on a test's own database; nothing is started yet."""
    settings = worker_settings(
        database_url, redis_url, api_port=free_port(), **{**CLOCKS, **changes}
    )
    return Stack(deployment, settings, logs)
