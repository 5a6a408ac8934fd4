"""The HTTP agents of a chaos run, in one process: `python -m tests.chaos.agent_process PORT …`.

Each port is the address of one agent. An agent writes the same record as a handler does, and
forgets its tasks when the process ends.
"""

import sys
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any, Final

from tests.chaos.handler_record import append
from tests.support.example_agent import load_example
from tests.support.recorded_actions import token_suffix

SECRET: Final = "a secret of the agents of a chaos run"
SLOTS: Final = 2
# Shorter than the agents' lease: an agent that was frozen starts no task that is overtaken.
MAX_AGE_SECONDS: Final = 3
PAUSE_SECONDS: Final = 0.02
example = load_example()


def work(task: dict[str, Any], report: Callable[..., None]) -> dict[str, Any]:
    """Work for `seconds`, fail the first `failures` attempts, and return this run's own key."""
    key = f"{task['task_id']}:{task['epoch']}"
    run = {"token_suffix": token_suffix(task["token"]), "type": task["type"]}
    append("start", key, **run)
    try:
        _work(task, report)
    except BaseException as error:
        append("end", key, **run, ok=False, error=type(error).__name__)
        raise
    append("end", key, **run, ok=True)
    return {"output": {"key": key}, "cost_usd": 0.001}


def _work(task: dict[str, Any], report: Callable[..., None]) -> None:
    until = time.monotonic() + float(task["payload"]["seconds"])
    while (left := until - time.monotonic()) > 0:
        report(left=round(left, 2))
        time.sleep(min(left, PAUSE_SECONDS))
    if task["attempt"] <= int(task["payload"].get("failures", 0)):
        raise RuntimeError(f"attempt {task['attempt']} fails on purpose")


class AgentServer(ThreadingHTTPServer):
    """Serves one agent; drivers that are killed leave broken connections, which are no error."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a trace, as the base class does, unless the caller has gone away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(port: int) -> None:
    """Serve one agent for ever."""
    requests = type("AgentRequests", (example.Requests,), {"agent": example.Agent(SECRET, SLOTS)})
    AgentServer(("127.0.0.1", port), requests).serve_forever()


def main(ports: list[int]) -> None:
    """Serve all agents until the process is ended."""
    example.work = work
    example.MAX_AGE_SECONDS = MAX_AGE_SECONDS
    threads = [threading.Thread(target=serve, args=(port,)) for port in ports]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1:]])
