"""An HTTP agent: a web server to which Overnight sends tasks. It needs only Python itself.

    AGENT_SECRET=... python examples/agents/http_agent.py --port 9000

A task is a pretence here: it waits for `payload.seconds` and answers with its prompt in capitals.
Replace `work` with a real job. The rest is what every HTTP agent must do:

- check the signature, and refuse requests that are older than a minute;
- start a task once, however often it is sent with the same Idempotency-Key;
- answer 409 while it is busy, and 404 with its boot_id for a task that it does not have;
- stop a task on DELETE, and never start it afterwards.
"""

import argparse
import hashlib
import hmac
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_AGE_SECONDS = 60
TICK_SECONDS = 0.05
OK, CREATED, NO_CONTENT = 200, 201, 204
UNAUTHORIZED, NOT_FOUND, CONFLICT, GONE = 401, 404, 409, 410


class Cancelled(Exception):
    """The task was stopped with a DELETE."""


def work(task: dict[str, Any], report: Callable[..., None]) -> dict[str, Any]:
    """Do the job of one task; `report` stores progress and raises Cancelled if it must stop."""
    seconds = float(task["payload"].get("seconds", 0.2))
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        report(fraction=round(1 - left / seconds, 2))
        time.sleep(min(TICK_SECONDS, left))
    prompt = str(task["spec"].get("prompt") or task["title"])
    return {"output": {"text": prompt.upper()}, "summary": f"answered {prompt!r}", "cost_usd": 0.01}


class Agent:
    """The tasks that this process has, by their keys; a restart forgets them."""

    def __init__(self, secret: str, slots: int = 1) -> None:
        self.secret = secret
        self.slots = slots
        self.boot_id = uuid.uuid4().hex
        self.lock = threading.Lock()
        self.tasks: dict[str, dict[str, Any]] = {}

    def is_genuine(self, headers: Any, method: str, path: str, body: bytes) -> bool:  # noqa: ANN401
        """Return whether a request is fresh and was signed with the secret."""
        stamp = headers.get("X-Overnight-Timestamp", "")
        if not stamp.isdigit() or abs(time.time() - int(stamp)) > MAX_AGE_SECONDS:
            return False
        signed = f"{stamp}.{method}.{path}.".encode() + body
        expected = "v1=" + hmac.new(self.secret.encode(), signed, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected, headers.get("X-Overnight-Signature", ""))

    def working(self) -> list[str]:
        """Return the keys of the tasks that it works on."""
        return [key for key, state in self.tasks.items() if state["state"] == "working"]

    def health(self) -> dict[str, Any]:
        """Return the answer to GET /health."""
        with self.lock:
            keys = self.working()
        status = "busy" if len(keys) >= self.slots else "idle"
        return {"status": status, "boot_id": self.boot_id, "tasks": keys}

    def submit(self, key: str, body: bytes) -> int:
        """Start a task unless it was sent before; return the status of the answer."""
        with self.lock:
            known = self.tasks.get(key)
            if known is not None:
                return GONE if known["state"] == "cancelled" else OK
            if len(self.working()) >= self.slots:
                return CONFLICT
            self.tasks[key] = {"state": "working"}
        threading.Thread(target=self.run, args=(key, json.loads(body)), daemon=True).start()
        return CREATED

    def run(self, key: str, task: dict[str, Any]) -> None:
        """Do one task and keep its result for the next GET."""

        def report(**progress: object) -> None:
            with self.lock:
                if self.tasks[key]["state"] == "cancelled":
                    raise Cancelled
                self.tasks[key]["progress"] = progress

        try:
            result = {"state": "completed", **work(task, report)}
        except Cancelled:
            return
        except Exception as error:  # noqa: BLE001 - a failed task must not end the agent
            result = {"state": "failed", "error": str(error), "error_type": type(error).__name__}
        with self.lock:
            if self.tasks[key]["state"] == "working":
                self.tasks[key] = result

    def state(self, key: str) -> dict[str, Any] | None:
        """Return the state of a task; None if it does not have the task."""
        with self.lock:
            state = self.tasks.get(key)
            return None if state is None else {**state, "boot_id": self.boot_id}

    def cancel(self, key: str) -> None:
        """Stop a task, and remember the key so that a late request does not start it."""
        with self.lock:
            self.tasks[key] = {"state": "cancelled"}


class Requests(BaseHTTPRequestHandler):
    """Serves the four routes of an HTTP agent."""

    agent: Agent
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """GET /health and GET /task/KEY."""
        if not self.admitted():
            return
        if self.path == "/health":
            self.answer(OK, self.agent.health())
            return
        state = self.agent.state(self.path.removeprefix("/task/"))
        if state is None:
            self.answer(NOT_FOUND, {"boot_id": self.agent.boot_id})
        else:
            self.answer(OK, state)

    def do_POST(self) -> None:
        """POST /task."""
        if self.admitted():
            status = self.agent.submit(self.headers["Idempotency-Key"], self.body)
            self.answer(status, {"boot_id": self.agent.boot_id})

    def do_DELETE(self) -> None:
        """DELETE /task/KEY."""
        if self.admitted():
            self.agent.cancel(self.path.removeprefix("/task/"))
            self.answer(NO_CONTENT)

    def admitted(self) -> bool:
        """Read the body and check the signature; answer 401 if it is not valid."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.agent.is_genuine(self.headers, self.command, self.path, self.body):
            return True
        self.answer(UNAUTHORIZED, {"error": "the signature is not valid"})
        return False

    def answer(self, status: int, document: object = None) -> None:
        """Send an answer with a JSON body."""
        content = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing for each request; health checks alone would fill the screen."""


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="An HTTP agent for Overnight.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--slots", type=int, default=1, help="tasks at once")
    options = parser.parse_args()
    secret = os.environ.get("AGENT_SECRET")
    if not secret:
        parser.error("set AGENT_SECRET to the secret that `overnight agents add` printed")
    Requests.agent = Agent(secret, options.slots)
    server = ThreadingHTTPServer((options.host, options.port), Requests)
    print(f"agent {Requests.agent.boot_id} listens on http://{options.host}:{options.port}")
    server.serve_forever()


if __name__ == "__main__":
    main()
