"""Every process of the Procfile starts on real servers, becomes healthy, and stops on request."""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from overnight_server.local.redis import EmbeddedRedis
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
PROCFILE = dict(re.findall(r"(?m)^([\w-]+): (.+)$", (ROOT / "Procfile").read_text()))
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@pytest.fixture
def surroundings(database_url: str, redis: EmbeddedRedis, tmp_path: Path) -> dict[str, str]:
    """What the compose file tells the processes, with this test's servers and free ports."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "HOME": str(home),
        "OVERNIGHT_HOME": str(home),
        "OVERNIGHT_DATABASE_URL": database_url,
        "OVERNIGHT_REDIS_URL": redis.url,
        "OVERNIGHT_REDIS_KEY_PREFIX": f"test-{uuid4().hex[:8]}:",
        "OVERNIGHT_API_PORT": free_port(),
        "OVERNIGHT_FLOWER_PORT": free_port(),
        "OVERNIGHT_FLOWER_PASSWORD": uuid4().hex,
    }


@pytest.mark.timeout(240)
def test_every_process_of_the_procfile_starts_is_healthy_and_stops(
    surroundings: dict[str, str], tmp_path: Path
) -> None:
    assert not is_healthy("worker", surroundings)
    assert not is_healthy("beat", surroundings)

    with ExitStack() as stack:
        running = {
            name: stack.enter_context(started(command, surroundings, tmp_path / f"{name}.log"))
            for name, command in PROCFILE.items()
        }
        for name in running:
            check = partial(is_healthy, name, surroundings)
            wait_until(check, timeout=60, what=f"a healthy {name}")
        for process in running.values():
            process.terminate()
        codes = {name: process.wait(timeout=30) for name, process in running.items()}

    assert codes == dict.fromkeys(PROCFILE, 0), logs(tmp_path)


@contextmanager
def started(
    command: str, surroundings: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run one line of the Procfile; all its processes have ended afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            shlex.split(command),
            env=surroundings,
            cwd=log.parent,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=False, stderr=-1)
            process.wait()


def is_healthy(service: str, surroundings: Mapping[str, str]) -> bool:
    """Run the health check of docker-compose.yml at the ports of this test."""
    kind, *words = SERVICES[service]["healthcheck"]["test"]
    ports = {
        f"127.0.0.1:{SERVICES[name]['environment'][f'OVERNIGHT_{name.upper()}_PORT']}/": (
            f"127.0.0.1:{surroundings[f'OVERNIGHT_{name.upper()}_PORT']}/"
        )
        for name in ("api", "flower")
    }
    command = [re.sub("|".join(ports), lambda port: ports[port[0]], word) for word in words]
    asked = subprocess.run(
        ["sh", "-c", command[0].replace("$$", "$")] if kind == "CMD-SHELL" else command,
        env=surroundings,
        check=False,
        capture_output=True,
        timeout=60,
    )
    return asked.returncode == 0


def logs(folder: Path) -> str:
    """What the processes wrote, for the message of a failure."""
    return "\n".join(f"{log.stem}: {log.read_text()[-2000:]}" for log in folder.glob("*.log"))


def free_port() -> str:
    """A port nobody listens on at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])
