"""Many HTTP agents in one process: each path `/0`, `/1`, … is the address of one agent.

    python -m benchmarks.agent_server PORT SECONDS

A task takes so many seconds. The agents trust every caller and forget nothing.
"""

import asyncio
import json
import resource
import sys
import time
from typing import Any

BOOT_ID = "benchmark"
OK, CREATED, NOT_FOUND = 200, 201, 404


class ManyAgents:
    """The tasks of all agents, by path and key, with the instants at which they end."""

    def __init__(self, task_seconds: float) -> None:
        self._task_seconds = task_seconds
        self._ends: dict[str, dict[str, float]] = {}

    def answer(self, method: str, path: str, key: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of the answer to a request."""
        _, agent, *rest = path.split("/", 3)
        tasks = self._ends.setdefault(agent, {})
        match method, rest:
            case "GET", ["health"]:
                working = [name for name, ends_at in tasks.items() if ends_at > time.monotonic()]
                status = "busy" if working else "idle"
                return OK, {"status": status, "boot_id": BOOT_ID, "tasks": working}
            case "POST", ["task"]:
                tasks.setdefault(key, time.monotonic() + self._task_seconds)
                return CREATED, {}
            case "GET", ["task", name] if name in tasks:
                state = "working" if tasks[name] > time.monotonic() else "completed"
                return OK, {"state": state, "boot_id": BOOT_ID, "output": name}
            case _:
                return NOT_FOUND, {"boot_id": BOOT_ID}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it is closed."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request, *lines = head.decode().split("\r\n")
                pairs = [line.split(": ", 1) for line in lines if ": " in line]
                headers = {name.lower(): value for name, value in pairs}
                await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = request.split(" ")
                key = headers.get("idempotency-key", "")
                status, document = self.answer(method, path, key)
                body = json.dumps(document).encode()
                writer.write(
                    f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def main(port: int, task_seconds: float) -> None:
    """Serve all agents until the process is ended."""
    # Each agent is called over a connection of its own; the usual limit is 1,024 files.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    agents = ManyAgents(task_seconds)
    server = await asyncio.start_server(agents.serve, "127.0.0.1", port, backlog=1000)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
