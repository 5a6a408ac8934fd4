"""The process of a scripted HTTP agent: the example's, which misbehaves as its script says."""

import json
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.example_agent import load_example
from tests.support.scripted_agent import (
    DO_AND_FAIL,
    DO_AND_HANG,
    FORGETFUL,
    GARBAGE,
    HANG,
    LARGE,
    NORMAL,
    REDIRECT,
    SECRET,
)

LARGE_BYTES = 50 * 1024 * 1024


example = load_example()


@dataclass
class Script:
    """What to do next, and the journal of what was done."""

    folder: Path
    lock: threading.Lock = field(default_factory=threading.Lock)
    used: Counter[tuple[int, str]] = field(default_factory=Counter)

    def read(self) -> dict[str, Any]:
        """Return the script as it stands now."""
        script: dict[str, Any] = json.loads((self.folder / "script.json").read_text())
        return script

    def next_action(self, kind: str) -> Any:
        """Return the next action for a kind of request."""
        script = self.read()
        actions = script.get(kind, [NORMAL])
        with self.lock:
            place = self.used[script["version"], kind]
            self.used[script["version"], kind] += 1
        return actions[min(place, len(actions) - 1)]

    def record(self, event: str, key: str) -> None:
        """Write an event into the journal."""
        with self.lock, (self.folder / "journal").open("a") as journal:
            journal.write(f"{event} {key}\n")

    def wait_for_change(self) -> None:
        """Return when the test has written another script."""
        version = self.read()["version"]
        while self.read()["version"] == version:
            time.sleep(0.02)


class ScriptedTasks(example.Agent):  # type: ignore[misc, name-defined]
    """The example's tasks; each start and end is recorded."""

    script: Script

    def run(self, key: str, task: dict[str, Any]) -> None:
        """Run a task as the example does.

        With `api` in its payload, it first stores its key as an artifact. `later` is the payload
        of every run but the first.
        """
        self.script.record("start", key)
        try:
            self._run(key, task)
        finally:
            self.script.record("end", key)

    def _run(self, key: str, task: dict[str, Any]) -> None:
        payload = task["payload"]
        if "api" in payload:
            _store_key(payload["api"], key, task)
            self.script.record("stored", key)
        if "later" in payload and task["epoch"] > 1:
            task = {**task, "payload": payload["later"]}
        super().run(key, task)


def _store_key(api: str, key: str, task: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"{api}/api/v1/tasks/{task['task_id']}/artifacts",
        data=json.dumps({"name": "key", "content": key}).encode(),
        headers={
            "Authorization": f"Bearer {task['token']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as answer:
        answer.read()


class ScriptedRequests(example.Requests):  # type: ignore[misc, name-defined]
    """The example's routes; the script may replace what they do and what they answer."""

    script: Script
    action: Any = NORMAL

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        """Answer for health or a task."""
        self.play("health" if self.path == "/health" else "get", super().do_GET)

    def do_POST(self) -> None:  # noqa: N802 - as above
        """Take a task."""
        self.play("post", super().do_POST)

    def do_DELETE(self) -> None:  # noqa: N802 - as above
        """Stop a task."""
        self.play("delete", super().do_DELETE)

    def play(self, kind: str, usual: Callable[[], None]) -> None:
        """Do what the script says for this request."""
        key = self.headers.get("Idempotency-Key") or self.path.rpartition("/")[2]
        self.action = self.script.next_action(kind)
        if kind != "health":
            self.script.record(kind, key)
        if self.action == FORGETFUL:
            self.agent.tasks.pop(key, None)
        if self.action in (NORMAL, FORGETFUL, DO_AND_HANG, DO_AND_FAIL):
            usual()
        else:
            self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.answer(200)

    def answer(self, status: int, document: object = None) -> None:
        """Answer as the script says, or as the example does."""
        if self.action in (HANG, DO_AND_HANG):
            self.script.wait_for_change()
            self.close_connection = True
        elif self.action == DO_AND_FAIL:
            super().answer(500)
        elif self.action == REDIRECT:
            self.send_body(307, b"", Location="http://127.0.0.1:1/elsewhere")
        elif self.action == GARBAGE:
            self.send_body(200, b"this is not JSON")
        elif self.action == LARGE:
            self.send_body(200, b" " * LARGE_BYTES)
        elif isinstance(self.action, int):
            super().answer(self.action, {"error": "as the script says"})
        else:
            super().answer(status, document)

    def send_body(self, status: int, content: bytes, **headers: str) -> None:
        """Send an answer that is no JSON."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def handle(self) -> None:
        """Serve a connection; the driver may close it at any time."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True


def main(folder: Path, port: int, slots: int, max_age_seconds: int) -> None:
    """Serve until the process is ended."""
    example.MAX_AGE_SECONDS = max_age_seconds
    ScriptedTasks.script = ScriptedRequests.script = Script(folder)
    ScriptedRequests.agent = ScriptedTasks(SECRET, slots)
    ThreadingHTTPServer(("127.0.0.1", port), ScriptedRequests).serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
