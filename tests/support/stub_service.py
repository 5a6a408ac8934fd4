"""A small HTTP server with prepared responses, for tests of the user's commands."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "overnight_live_test"
ALPHA = "task_01J8K0000000000000000000AA"
BETA = "task_01J8K0000000000000000000BB"
Answer = tuple[int, Any]


def task(task_id: str = ALPHA, state: str = "ready", **fields: Any) -> dict[str, Any]:
    """Return the JSON of a task."""
    status = {
        "ready": "pending",
        "retrying": "pending",
        "dead_lettered": "failed",
    }.get(state, state)
    return {
        "id": task_id,
        "queue_id": task_id,
        "dag_id": task_id.replace("task_", "dag_"),
        "title": "say hello",
        "type": "echo",
        "payload": {},
        "status": status,
        "state": state,
        "priority": 3,
        "priority_score": 50,
        "created_at": "2026-11-16T03:00:00Z",
        "attempts": 0,
        "max_attempts": 3,
        **fields,
    }


def problem(status: int, code: str, detail: str, **members: Any) -> Answer:
    """Return an error response."""
    return status, {"status": status, "code": code, "detail": detail, **members}


@dataclass
class Service:
    """Each route has a list of responses, of which the last repeats; requests are recorded."""

    url: str = ""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    def on(self, route: str, *answers: Answer) -> None:
        """Set the responses of a method and path, in order."""
        self.answers[route] = list(answers)

    def reply(self, method: str, path: str, body: Any, key: str) -> Answer:
        """Record one request and return its response."""
        self.asked.append((method, path, body))
        self.keys.add(key)
        waiting = self.answers.get(f"{method} {path.partition('?')[0]}")
        if not waiting and path.partition("?")[0].endswith("/wait"):
            return problem(404, "NOT_FOUND", "as a service says that holds nothing back")
        if not waiting and path.partition("?")[0].endswith("/attempts"):
            return 200, []
        if not waiting:
            return problem(404, "TASK_NOT_FOUND", "no such task")
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


@contextmanager
def stub_service() -> Iterator[Service]:
    """Serve on a free loopback port."""
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            key = self.headers.get("Authorization", "").removeprefix("Bearer ")
            status, answer = service.reply(self.command, self.path, body, key)
            text = json.dumps(answer).encode() if not isinstance(answer, bytes) else answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815 - http.server's own names

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
